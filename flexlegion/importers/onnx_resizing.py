"""What ONNX's Resize is in the importers' internal form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flexlegion.importers.onnx_conversions import Unreadable, converts
from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.onnx_reader import Reader, result
from flexlegion.importers.program import Array, Node, Type

_ROUNDED = 1e-5  # by which places may be off that are computed in single precision
PLACES = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "asymmetric",
    "align_corners",
)
# Which position is the nearest one.
_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def _place(mode: str, i: Array, scale: float, before: int) -> Array:
    """Where positions `i` of the result are among the input's, of which there are `before`."""
    after = len(i)
    centre = (i + 0.5) / scale - 0.5
    if mode == "half_pixel":
        return centre
    if mode == "half_pixel_symmetric":
        return centre + before / 2 * (1 - after / (before * scale))
    if mode == "asymmetric":
        return i / scale
    if after == 1:
        return np.zeros(1)
    return centre if mode == "pytorch_half_pixel" else i * (before - 1) / (after - 1)


@converts(
    "Resize",
    inputs=4,
    attributes="antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside "
    "extrapolation_value keep_aspect_ratio_policy mode nearest_mode",
)
def resize(reader: Reader, node: OnnxNode) -> Node:
    """By whole factors, or by picking the nearest position whatever the rounding.

    Attributes of cubic interpolation and of regions (roi) belong to modes that are refused.
    """
    mode = node.get("mode", "nearest")
    place = node.get("coordinate_transformation_mode", "half_pixel")
    if node.get("antialias", 0) or node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unreadable("it smoothes what it makes smaller, or keeps the ratio of its sides")
    if place not in PLACES:
        raise Unreadable(f"it resizes by '{mode}' with '{place}'")
    x, shape = reader.operand(node.inputs[0]), reader.type(node.outputs[0]).shape
    scales = _scales(reader, node)
    if mode == "nearest":
        return _nearest(reader, node, x, scales)
    alike = [float(a) == b * s for a, b, s in zip(shape, x.shape, scales, strict=True)]
    if mode != "linear" or place == "asymmetric":
        raise Unreadable(f"it resizes by '{mode}' with '{place}'")
    if len(shape) != 4 or shape[1] != x.shape[1] or not all(alike[1:]):
        raise Unreadable("it interpolates in other dimensions than two, or not by whole factors")
    args = {"input": x, "align_corners": place == "align_corners"}
    return result(reader, node, "upsample_bilinear2d", args)


def _scales(reader: Reader, node: OnnxNode) -> list[float]:
    """By how much each dimension becomes larger, as single precision has it."""
    before, after = reader.shape(node.inputs[0]), reader.type(node.outputs[0]).shape
    scales = [np.float32(a / b) for a, b in zip(after, before, strict=True)]
    if node.has(2) and (given := reader.array(node.inputs[2])).size:
        axes = node.get("axes", range(len(before)))
        scales = [np.float32(1)] * len(before)
        for axis, scale in zip(axes, given, strict=True):
            scales[axis] = np.float32(scale)
    if scales[0] != 1:
        raise Unreadable("it resizes along the samples")
    return [float(scale) for scale in scales]


def _nearest(reader: Reader, node: OnnxNode, x: Node, scales: list[float]) -> Node:
    place = node.get("coordinate_transformation_mode", "half_pixel")
    rounding = node.get("nearest_mode", "round_prefer_floor")
    if rounding not in _ROUNDINGS:
        raise Unreadable(f"it takes the nearest by '{rounding}'")
    shape = reader.type(node.outputs[0]).shape
    picked: dict[int, Array] = {}
    for d in range(1, len(shape)):
        before, after = x.shape[d], shape[d]
        at = _place(place, np.arange(after), scales[d], before)
        numbers, *others = (
            np.clip(_ROUNDINGS[rounding](at + error), 0, before - 1).astype(np.int64)
            for error in (0, -_ROUNDED, _ROUNDED)
        )
        exact = place == "align_corners" or scales[d] * 64 % 1 == 0
        if not exact and not all(np.array_equal(numbers, its) for its in others):
            raise Unreadable("a place of its is halfway between two positions, up to rounding")
        if not np.array_equal(numbers, np.arange(before)):
            picked[d] = numbers
    repeats = [
        np.array_equal(numbers, np.arange(shape[d]) // max(shape[d] // x.shape[d], 1))
        for d, numbers in picked.items()
    ]
    if len(shape) == 4 and picked and 1 not in picked and all(repeats):
        return result(reader, node, "upsample_nearest2d", {"input": x, "align_corners": False})
    for d, numbers in picked.items():
        lists: list[Node | None] = [None] * d
        type_ = Type((*x.shape[:d], len(numbers), *x.shape[d + 1 :]), x.type.dtype)
        args = {"self": x, "indices": [*lists, reader.constant(numbers)]}
        x = reader.add("index", args, node, type_)
    return x
