"""Checkpoints on GPUs in software: taken there, resumed on CPU processors, and the other way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import ROOT, SOFT_GPU, run_legate

pytestmark = [
    pytest.mark.legion,
    pytest.mark.skipif(
        not (SOFT_GPU / "libflexlegion_cuda.so").exists(),
        reason="the GPU in software is not built: it needs the headers of CUDA, cuBLAS and cuDNN",
    ),
]

WORKER = ROOT / "tests" / "runtime" / "checkpoint_worker.py"
PROCESSORS = {"CPU": (2, 0), "GPU": (1, 2)}  # CPU processors, GPUs


def test_from_one_kind_of_processor_to_the_other(tmp_path: Path) -> None:
    def trained(kind: str, **options: Any) -> dict[str, Any]:
        out = tmp_path / "trained.npz"
        cpus, gpus = PROCESSORS[kind]
        run_legate(WORKER, json.dumps({"out": str(out), **options}), cpus=cpus, gpus=gpus)
        with np.load(out) as arrays:
            return dict(arrays)

    whole = trained("CPU")
    for first, second in (("CPU", "GPU"), ("GPU", "CPU")):
        kept = str(tmp_path / first)
        trained(first, checkpoint=kept, stop=45)
        resumed = trained(second, checkpoint=kept, resume=True)
        losses = resumed["losses"]
        assert np.abs(losses - whole["losses"][-len(losses) :]).max() < 1e-4
        for name in set(whole) - {"steps", "losses"}:
            assert np.abs(resumed[name] - whole[name]).max() < 1e-4 * np.abs(whole[name]).max()
