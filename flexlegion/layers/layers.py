"""The layer API: one method a layer; each adds an operator to the graph and returns its output."""

from __future__ import annotations

from flexlegion.layers.elementwise import ElementwiseLayers
from flexlegion.layers.experts import ExpertLayers
from flexlegion.layers.normalization import NormalizationLayers
from flexlegion.layers.products import ProductLayers
from flexlegion.layers.reductions import ReductionLayers
from flexlegion.layers.sequences import SequenceLayers
from flexlegion.layers.shapes import ShapeLayers
from flexlegion.layers.windows import WindowLayers


class Layers(
    ProductLayers,
    WindowLayers,
    SequenceLayers,
    ExpertLayers,
    NormalizationLayers,
    ReductionLayers,
    ShapeLayers,
    ElementwiseLayers,
):
    """The layers of a graph under construction.

    Parameters
    ----------
    batch_size
        Extent of the sample dimension of every input.
    """
