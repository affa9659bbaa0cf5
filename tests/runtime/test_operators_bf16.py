"""Every operator with activations stored as bfloat16, beside PyTorch in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launch import BFLOAT16, run_legate
from pytorch_cases import CASES
from pytorch_reference import Arrays, Reference, load

pytestmark = [
    pytest.mark.legion,
    pytest.mark.skipif(not BFLOAT16, reason="no AVX512-BF16"),
]

# A rounding is 4e-3 of a value at most, and 2e-3 of the norm of many.
TOLERANCE = 2e-2
# Functions that amplify what rounding changed in their inputs: steps, and sines of large angles.
AMPLIFYING = {"function_floor": 3e-2, "formula_angles": 8e-2}
# Few samples, of which some units' gradients jump: rounding turned a ReLU on or off, took another
# element for a window's largest, or moved a value over a function's border.
JUMPING = 0.1
JUMPS = {
    "conv2d_8_filters_width_13",
    "conv2d_8_filters_width_25",
    "conv2d_9_filters_width_12",
    "pool2d_max_channels_16",
    "lenet",
    "batch_norm_channels_19",
    "layer_norm_rank_2",
    "normalization_branches",
    "short_batch_cnn",
    "optimizer_adam_betas",
    "optimizer_adam_decay",
    "optimizer_adamw",
    "optimizer_adamw_decay",
    "optimizer_sgd_clipped",
    "function_hardtanh",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrays]:
    """What the worker saved, by case."""
    file = tmp_path_factory.mktemp("storage") / "saved.npz"
    worker = Path(__file__).with_name("pytorch_worker.py")
    run_legate(worker, file, "fp32", "single", "", "bf16")
    return load(file)


def error(ours: Arrays, reference: Arrays, keys: list[str]) -> float:
    """Of these together, by the norm."""
    a, b = (np.concatenate([np.ravel(arrays[k]) for k in keys]) for arrays in (ours, reference))
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12))


@pytest.mark.parametrize("name", CASES)
def test_first_step(name: str, saved: dict[str, Arrays]) -> None:
    """Each operator's output, and the gradients of all weights, or of the input, together."""
    ours = saved[name]
    assert "error" not in ours, str(ours["error"])
    reference = Reference(CASES[name], ours).run()
    # How many classes are likelier than a label's own is a number that jumps.
    values = [k for k in reference if k.startswith("0/value/") and not k.endswith(".rank")]
    for key in values:
        assert error(ours, reference, [key]) <= AMPLIFYING.get(name, TOLERANCE), key
    gradients = [key for key in reference if key.startswith("0/gradient/")]
    weights = {key.split("/")[2] for key in ours if key.startswith("initial/weight/")}
    those = [key for key in gradients if key.split("/")[2] in weights] or gradients
    bound = JUMPING if name in JUMPS else AMPLIFYING.get(name, TOLERANCE)
    if those:
        assert error(ours, reference, those) <= bound
