"""What comes of an operator whose activations are stored in two bytes, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from pytorch_cases import CASES
from pytorch_reference import Arrays, Reference

# A rounding to bfloat16 is 4e-3 of a value at most, and 2e-3 of the norm of many.
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
# GPUs round otherwise: of each of these, one of 288 pooling windows takes another element there.
JUMPS_ON_GPUS = JUMPS | {"optimizer_sgd_decay", "optimizer_sgd_momentum_decay"}


def error(ours: Arrays, reference: Arrays, keys: list[str]) -> float:
    """Of these together, by the norm."""
    a, b = (np.concatenate([np.ravel(arrays[k]) for k in keys]) for arrays in (ours, reference))
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12))


def worst_error(name: str, ours: Arrays, jumps: Collection[str] = JUMPS) -> tuple[float, str]:
    """Of each output of the first step, and of all weights' gradients, or the input's, together.

    As a share of what it may be; and of what it is. What is not finite is infinitely far.
    """
    assert "error" not in ours, str(ours["error"])
    reference = Reference(CASES[name], ours).run()
    # How many classes are likelier than a label's own is a number that jumps.
    values = [k for k in reference if k.startswith("0/value/") and not k.endswith(".rank")]
    bound = AMPLIFYING.get(name, TOLERANCE)
    found = [(error(ours, reference, [key]) / bound, key) for key in values]
    gradients = [key for key in reference if key.startswith("0/gradient/")]
    weights = {key.split("/")[2] for key in ours if key.startswith("initial/weight/")}
    those = [key for key in gradients if key.split("/")[2] in weights] or gradients
    if those:
        bound = JUMPING if name in jumps else bound
        found.append((error(ours, reference, those) / bound, "gradients"))
    return max((share if share == share else float("inf"), key) for share, key in found)
