"""`fit(accumulate=)`: the same training, from one program to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import legate_command, legate_environment, run_checked, run_legate, run_ranks

WORKER = Path(__file__).parent / "accumulate_worker.py"

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_training(ranks: int, tmp_path: Path) -> None:
    """Weights, the optimizer's states, the order of samples and dropout's draws go on.

    What is refused leaves the model as it was.
    """
    out = tmp_path / "result"
    if ranks == 1:
        run_legate(WORKER, out, "same", cpus=2, timeout=600)
    else:
        run_ranks(WORKER, out, "same", ranks=ranks, cpus=1, timeout=600)
    found = json.loads(Path(f"{out}.0").read_text())
    assert found["parts"] < 1e-5
    assert found["back"] < 1e-5
    assert found["predicted"] < 1e-6
    for name, said in {
        "odd": "batch of 32 samples",
        "none": "the number of micro-batches is 1 to 4,096, but is 0",
        "mixed": "batch_norm",
    }.items():
        assert said in found[name]["said"]
        assert found[name]["off"] == 0


def test_what_does_not_fit_loses_nothing(tmp_path: Path) -> None:
    """The program in one go needs more memory than there is; the one in parts goes on."""
    out = tmp_path / "result"
    command = legate_command(WORKER, out, "too-large")
    command[command.index("--sysmem") + 1] = "120"
    run_checked(command, environment=legate_environment(), timeout=300)
    found = json.loads(out.read_text())
    assert "the plan needs" in found["said"]
    assert "in a memory of 120 MiB" in found["said"]
    assert (found["off"], found["parts"], found["learns"]) == (0, 16, True)
