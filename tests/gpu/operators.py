"""Operators, losses and optimizers on a GPU beside PyTorch in double precision on the CPU.

    python tests/gpu/operators.py --precision bf16 --tolerance 2e-2

The cases are those of tests/support/pytorch_cases.py. A process under legate computes them on the
GPU, another (this one) the references: two CUDA users in one process would disturb each other.

In other precisions than fp32, only what comes before the first update counts (after it, the two
train other weights), and the reference computes each operator from what the GPU had before it.
With ``--storage bf16`` or ``fp16``, bounds are those of tests/support/narrow_cases.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
RUNTIME_TESTS = ROOT / "tests" / "runtime"
sys.path.insert(0, str(ROOT / "tests" / "support"))

Arrays = Mapping[str, npt.NDArray[Any]]

KINDS = ("value", "gradient", "weight", "state0", "state1", "metrics")
# A tensor's norm counts as at least this share of the largest of its kind and step: of some, exact
# arithmetic leaves nothing.
SMALLEST = 1e-3
# Numbers of labels whose prediction is right are whole; rounding decides between near equals.
COUNTED = ("accuracy", "top_5_accuracy")


def errors(actual: Arrays, expected: Arrays, first: bool = False) -> dict[str, float]:
    """Relative errors by norm, of all tensors that PyTorch has, or (`first`) of the first step."""
    found = {}
    largest: dict[tuple[str, str], float] = {}
    for key, value in expected.items():
        when, kind, _ = key.split("/", 2)
        largest[when, kind] = max(largest.get((when, kind), 0.0), float(np.linalg.norm(value)))
    for key, value in expected.items():
        when, kind, name = key.split("/", 2)
        if kind not in KINDS or name in COUNTED:
            continue
        if first and (when != "0" or kind not in ("value", "gradient", "metrics")):
            continue
        if key not in actual or actual[key].shape != value.shape:
            found[key] = float("inf")
            continue
        scale = max(float(np.linalg.norm(value)), SMALLEST * largest[when, kind], 1e-30)
        error = float(np.linalg.norm(actual[key].astype(np.float64) - value)) / scale
        found[key] = error if np.isfinite(error) else float("inf")
    return found


def compare(file: Path, precision: str, tolerance: float) -> tuple[list[str], float]:
    """What differs too much of what the worker wrote; and the largest error of all."""
    from pytorch_cases import CASES
    from pytorch_reference import Reference, load

    saved, first = load(file), precision != "fp32"
    failed, worst = [], 0.0
    for name, case in CASES.items():
        if "error" in saved[name]:
            failed.append(f"{name}: {str(saved[name]['error']).strip().splitlines()[-1]}")
            continue
        expected = Reference(case, saved[name], alone=first).run()
        found = errors(saved[name], expected, first)
        key = max(found, key=lambda key: found[key])
        worst = max(worst, found[key])
        if not found[key] <= tolerance:
            failed.append(f"{name}: {key} is off by {found[key]:.1e}")
    return failed, worst


def compare_stored(file: Path, on_gpu: bool) -> tuple[list[str], float]:
    """The same, of what stored activations in two bytes; by their own bounds."""
    from narrow_cases import JUMPS, JUMPS_ON_GPUS, worst_error
    from pytorch_cases import CASES
    from pytorch_reference import load

    saved = load(file)
    failed, worst = [], 0.0
    for name in CASES:
        if "error" in saved[name]:
            failed.append(f"{name}: {str(saved[name]['error']).strip().splitlines()[-1]}")
            continue
        share, key = worst_error(name, saved[name], JUMPS_ON_GPUS if on_gpu else JUMPS)
        worst = max(worst, share)
        if not share <= 1:
            failed.append(f"{name}: {key} is off by {share:.1f} times what it may be")
    return failed, worst


def main() -> int:
    """Compare all cases; 1 if one differs too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--storage", default="fp32", help="of activations; default: fp32")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative, by norm")
    parser.add_argument("--fbmem", type=int, default=12000, help="MiB of the GPU's memory")
    parser.add_argument("--gpus", type=int, default=1, help="0: on a CPU processor; default: 1")
    args = parser.parse_args()
    from pytorch_cases import CASES

    machine = ["--cpus", "1", "--gpus", str(args.gpus), "--sysmem", "4000"]
    if args.gpus:
        machine += ["--zcmem", "512", "--fbmem", str(args.fbmem)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "saved.npz"
        worker = RUNTIME_TESTS / "pytorch_worker.py"
        options = [args.precision, "single", "", args.storage]
        command = ["legate", *machine, str(worker), str(file), *options]
        status = subprocess.run(command, check=False).returncode
        if status != 0 or not file.exists():
            print(f"the worker ended with status {status}")
            return 1
        if args.storage == "fp32":
            failed, worst = compare(file, args.precision, args.tolerance)
            what = f"in {args.precision}, at most {worst:.1e} off"
        else:
            failed, worst = compare_stored(file, args.gpus > 0)
            what = f"stored as {args.storage}, at most {worst:.2f} of what they may be off"
    print(f"{len(CASES)} cases {what}", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
