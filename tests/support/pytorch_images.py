"""Cases of layers that enlarge, pad, turn and pick, and of kernels that read apart."""

from __future__ import annotations

from pytorch_layers import Case, Layer, biased, conv2d, dense

IMAGE = (5, 6, 3)
FLATTEN: Layer = ("flatten", {})


def image_cases() -> dict[str, Case]:
    """All of them."""
    cases = {}
    for label, options in {
        "plain": {"kernel": 3, "dilation": 2},
        "padded": {"kernel": (3, 2), "dilation": (2, 3), "padding": (3, 1), "activation": "relu"},
        "same": {"kernel": 3, "dilation": 2, "padding": 2, "stride": 2},
    }.items():
        cases[f"conv2d_dilated_{label}"] = Case((8, 9, 3), (conv2d(4, **options),))
    for label, options in {
        "apart": {"kernel": 2, "stride": 2},
        "overlapping": {"kernel": 4, "stride": 2, "padding": 1, "activation": "gelu"},
        "extra": {"kernel": 3, "stride": 2, "padding": 1, "extra": 1},
        "not_square": {"kernel": (2, 3), "stride": (3, 1), "extra": (2, 0)},
        "dilated": {"kernel": 3, "stride": 2, "padding": (1, 2), "dilation": (1, 2)},
    }.items():
        layer = biased("conv2d_transpose", filters=4, **options)
        cases[f"conv2d_transpose_{label}"] = Case(IMAGE, (layer,))
    layers: tuple[Layer, ...] = (
        conv2d(6, 3, padding=1, activation="tanh"),
        ("conv2d_transpose", {"filters": 17, "kernel": 3, "stride": 2, "use_bias": False}),
        conv2d(2, 3),
    )
    cases["conv2d_transpose_within"] = Case(IMAGE, layers, steps=2, last_rows=4)
    for label, options in {
        "nearest": {},
        "nearest_3_1": {"factor": (3, 1)},
        "bilinear": {"kind": "bilinear"},
        "bilinear_3_2": {"kind": "bilinear", "factor": (3, 2)},
        "bilinear_corners": {"kind": "bilinear", "align_corners": True},
    }.items():
        layers = (conv2d(4, 3, activation="tanh"), ("upsample2d", options), conv2d(2, 3))
        cases[f"upsample2d_{label}"] = Case(IMAGE, layers)
    for label, layer in {
        "pad": ("pad", {"amounts": ((1, 2), (0, 3), (1, 0))}),
        "roll": ("roll", {"shift": -2, "axis": 1}),
        "roll_last": ("roll", {"shift": 1, "axis": 3}),
        "take": ("take", {"numbers": (3, 0, 3, -1, 2), "axis": 2}),
        "leaky_relu": ("leaky_relu", {"slope": 0.2}),
        "elu": ("elu", {"alpha": 0.7}),
        "prelu": ("prelu", {}),
        "prelu_one_slope": ("prelu", {"channels": 1, "slope": 0.1}),
        "l2_normalize": ("l2_normalize", {}),
        "l2_normalize_rows": ("l2_normalize", {"axis": 1}),
    }.items():
        cases[label] = Case(IMAGE, (("tanh", {}), layer, FLATTEN, dense(3)))
    for steps, d, hidden in [(1, 3, 5), (4, 6, 5), (5, 17, 18)]:
        layers = (biased("gru", hidden=hidden), ("tanh", {}), dense(2))
        cases[f"gru_{steps}_{d}_{hidden}"] = Case((steps, d), layers)
    return cases
