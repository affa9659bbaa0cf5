"""The settings by which an expert would make PyTorch faster on this machine's CPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

# MKL takes its slow paths on processors of other makers. It asks these two functions of its own,
# which a library that is loaded before it can replace.
INTEL_CPU = """
int mkl_serv_intel_cpu_true(void) { return 1; }
int mkl_serv_intel_cpu(void) { return 1; }
"""


def tuned_variables(folder: Path) -> dict[str, str]:
    """Environment variables; a library that they name is compiled into `folder`."""
    variables = {"THP_MEM_ALLOC_ENABLE": "1"}  # huge pages for PyTorch's tensors
    if "AuthenticAMD" in Path("/proc/cpuinfo").read_text():
        library = folder / "intel_cpu.so"
        command = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-o", str(library), "-"]
        subprocess.run(command, input=INTEL_CPU, text=True, check=True)
        variables["LD_PRELOAD"] = str(library)
    return variables
