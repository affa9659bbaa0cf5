"""Starts scripts on Legion, through the legate command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from flexlegion.cli.ranks import Ranks, launcher_options

ROOT = Path(__file__).resolve().parents[2]
# The virtual environment's; its Python is a link, and what it points to is elsewhere.
BIN = Path(sys.executable).parent
SOFT_GPU = ROOT / "build" / "cuda" / "tests" / "soft_gpu"  # where scripts/test.sh builds it
# Whether CPU processors can store activations so.
BFLOAT16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
TAIL = 4000  # characters of a failed command's output to show
GRACE = 20  # seconds that a command has to end when it is asked to


def machine_options(cpus: int, gpus: int, sysmem: int) -> list[str]:
    """Legate's, for so many processors."""
    options = ["--cpus", str(cpus), "--gpus", str(gpus), "--sysmem", str(sysmem)]
    return [*options, "--fbmem", "300", "--zcmem", "128"] if gpus else options


def legate_command(script: str | Path, *args: object, cpus: int = 1, gpus: int = 0) -> list[str]:
    """The command that runs `script` with `args` on that many processors."""
    machine = machine_options(cpus, gpus, 4000)
    return [str(BIN / "legate"), *machine, str(script), *map(str, args)]


def legate_environment(gpus: int = 0) -> dict[str, str]:
    """This process's environment, with the commands and packages that legate has to find.

    GPUs, if there are any, are those in software.
    """
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
    folders = [ROOT, Path(__file__).parent, ROOT / "scripts" / "bench"]  # as in pyproject.toml
    packages = filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(packages)}
    if gpus:
        libraries = filter(None, [str(SOFT_GPU), os.environ.get("LD_LIBRARY_PATH")])
        environment |= {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "SOFT_GPUS": str(gpus)}
    return environment


def run_checked(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float,
    status: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it has to exit with `status`."""
    # Files, for pipes would be waited for as long as any process of the command's holds them.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        problem = ""
        try:
            if process.wait(timeout) != status:
                problem = f"exited with status {process.returncode}, not {status}"
        except subprocess.TimeoutExpired:
            problem = f"did not end within {timeout} s"
        finally:
            if process.returncode is None:
                _end(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    assert not problem, (
        f"{' '.join(command)}\n{problem}\n"
        f"--- stdout\n{texts[0][-TAIL:]}\n--- stderr\n{texts[1][-TAIL:]}"
    )
    return subprocess.CompletedProcess(list(command), process.returncode, *texts)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End legate and what it started: it hands the signal on, and mpirun to its ranks.

    Its child has a session of its own, so killing legate alone would leave the child running.
    """
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        for child in children:
            os.killpg(int(child), signal.SIGKILL)
        process.kill()
        process.wait()


# On a small machine several ranks are told, in our words, that cores are few.
_FEW_CORES = re.compile(
    r"(warning: \d+ ranks? on \d+ cores?, where \d+ would be needed \(one for each processor, and "
    r"one a rank for the threads of Legion and the network\): threads take turns\n)?"
)


def is_quiet(stderr: str) -> bool:
    """Whether nothing is said of what a machine without a GPU, or a fast network, lacks."""
    return _FEW_CORES.fullmatch(stderr) is not None


def run_legate(
    script: str | Path,
    *args: object,
    cpus: int = 1,
    gpus: int = 0,
    timeout: float = 300,
    status: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a script on Legion, on one rank.

    Parameters
    ----------
    script, args
        The script and its arguments.
    cpus
        Number of processors.
    gpus
        Number of GPUs in software (tests/soft_gpu).
    timeout
        Seconds after which it has failed.
    status
        What it has to exit with.
    """
    return run_checked(
        legate_command(script, *args, cpus=cpus, gpus=gpus),
        environment=legate_environment(gpus),
        timeout=timeout,
        status=status,
    )


def run_ranks(
    script: str | Path,
    *args: object,
    ranks: int = 2,
    cpus: int = 1,
    gpus: int = 0,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a script on Legion, on several ranks of this machine, as the command starts them.

    `cpus` and `gpus` are the numbers a rank; the other parameters are those of `run_legate`.
    """
    command, environment = ranks_command(script, *args, ranks=ranks, cpus=cpus, gpus=gpus)
    return run_checked(command, environment=environment, timeout=timeout)


def ranks_command(
    script: str | Path,
    *args: object,
    ranks: int,
    cpus: int = 1,
    gpus: int = 0,
    hosts: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The command that runs a script on several ranks, and its environment.

    They are on this machine, or one on each host of a file.
    """
    chosen = Ranks(1, ranks) if hosts is None else Ranks(ranks, 1, hosts)
    environment = legate_environment(gpus) | chosen.environment()
    if gpus:  # the network does not know them, so it reads their memory by itself
        environment |= {"SOFT_GPU_OPEN": "1"}
    command = [str(BIN / "legate"), *launcher_options(chosen, environment)]
    return [*command, *machine_options(cpus, gpus, 2000), str(script), *map(str, args)], environment
