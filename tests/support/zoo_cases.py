"""The zoo's networks at sizes that train in seconds, for the tests and their workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion import SGD, Model
from flexlegion.data.dataset import IGNORED
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.optimizers import Optimizer
from flexlegion.transforms.losses import add_losses
from flexlegion.zoo import ZOO, build

Array = npt.NDArray[Any]

# In exact arithmetic some gradients are zero: that of a bias before a normalisation or a softmax,
# for example. What rounding leaves of them is compared with this share of the largest gradient.
SMALLEST = 1e-3


@dataclass(frozen=True)
class ZooCase:
    """A network of the zoo, and how it is trained; as `networks.Network` for the workers.

    Parameters
    ----------
    name
        The network's.
    sizes
        Other than its defaults.
    batch_size
        Samples an iteration.
    tolerance
        Bound on the relative error of single precision, by norms.
    open_units
        Mean of the shifts after batch normalisation, 0 for none. A unit whose sign rounding
        decides makes a step in the gradients of all layers before it, and in deep networks of few
        channels these steps are most of the gradient; shifted, few units are that close to zero.
    iterations
        Training steps to compare.
    ignored
        Share of the labels that do not count.
    idle_weights
        Whether shifts before a normalisation have no effect and begin with zeros, so that training
        moves them, and means of what they shift, by rounding alone: strategies are compared from
        shifted weights then.
    """

    name: str
    sizes: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 6
    tolerance: float = 1e-4
    open_units: float = 0.0
    optimizer: Optimizer = SGD(0.02, momentum=0.9)
    iterations: int = 3
    ignored: float = 0.0
    idle_weights: bool = False

    @property
    def loss(self) -> str:
        """What it is trained with."""
        return ZOO[self.name].loss

    def model(self) -> Model:
        """The network, not yet compiled."""
        return build(self.name, self.batch_size, seed=3, **self.sizes)

    def graph(self) -> Graph:
        """Its graph with the loss."""
        model = self.model()
        return add_losses(model.graph, model.outputs, self.loss)

    def data(self, rows: int) -> tuple[list[Array], Array]:
        """Samples of each input, and labels."""
        rng = np.random.default_rng(17)
        graph = self.graph()
        arrays = []
        for tensor in graph.inputs:
            shape = (rows, *tensor.shape[1:])
            if values := _values(graph, tensor):
                arrays.append(rng.integers(min(values), size=shape).astype(tensor.dtype))
            else:
                arrays.append(rng.normal(size=shape).astype(np.float32))
        arrays[-1][rng.random(arrays[-1].shape) < self.ignored] = IGNORED
        return arrays[:-1], arrays[-1]

    def shifted(self, weights: dict[str, Array]) -> dict[str, Array]:
        """Initial weights of which no vector is all zeros or all ones, where errors would hide."""
        rng = np.random.default_rng(23)
        shifted = dict(weights)
        for name, weight in weights.items():
            if ".running_" in name or not (weight.ndim == 1 or name.endswith(".bias")):
                continue
            noise = 0.1 * rng.normal(size=weight.shape)
            if name.endswith(".bn.beta"):
                noise += self.open_units * rng.uniform(0, 2, size=weight.shape)
            shifted[name] = (weight + noise).astype(np.float32)
        return shifted


def _values(graph: Graph, tensor: Tensor) -> list[int]:
    """How many values an input may have, for each operator that reads it."""
    return [
        values
        for op in graph.operators
        for read, values in zip(op.inputs, op.kind.input_values(op.input_shapes), strict=True)
        if read is tensor and isinstance(values, int)
    ]


_RECURRENT = {"steps": 5, "hidden": 12, "embedding": 7, "vocabulary": 30}
_TRANSFORMER = {"steps": 8, "layers": 2, "hidden": 16, "heads": 4, "vocabulary": 30}
_RESIDUAL = {"input_shape": (40, 34, 3), "classes": 7, "blocks": (1, 2), "width": 4}
_GROUPED = {**_TRANSFORMER, "kv_heads": 2, "ffn": 10}
_EXPERTS = {**_GROUPED, "experts": 5, "layers": 1}
_CLICKS = {
    "numbers": 5,
    "fields": 6,
    "rows": 40,
    "tables": 3,
    "embedding": 4,
    "layers": 2,
    "hidden": 12,
}

# Of recurrent networks: an operator a step, and one for two steps, the last for one.
CASES: dict[str, ZooCase] = {
    "lenet": ZooCase("lenet"),
    "alexnet": ZooCase("alexnet", {"input_shape": (63, 70, 3), "classes": 7}, 4),
    "inception_v3": ZooCase(
        "inception_v3",
        {"input_shape": (75, 75, 3), "classes": 7, "depth_multiplier": 0.05},
        8,
        tolerance=1e-3,
        open_units=1.5,
        # After updates, PyTorch's own single precision is far from its double.
        iterations=1,
    ),
    "resnet101": ZooCase(
        "resnet101",
        {"input_shape": (48, 48, 3), "classes": 7, "blocks": (1, 2, 2, 1), "width": 8},
        open_units=0.5,
    ),
    "resnet152": ZooCase("resnet152", _RESIDUAL, open_units=0.5),
    "resnet50": ZooCase("resnet50", {**_RESIDUAL, "width_factor": 2}, open_units=0.5),
    "vgg16": ZooCase("vgg16", {"input_shape": (32, 40, 3), "classes": 7, "width": 4, "hidden": 20}),
    "vit": ZooCase(
        "vit",
        {
            "input_shape": (12, 8, 3),
            "classes": 7,
            "patch": 4,
            "layers": 2,
            "hidden": 16,
            "heads": 4,
        },
    ),
    "insightface": ZooCase(
        "insightface",
        {
            "input_shape": (40, 34, 3),
            "classes": 11,
            "blocks": (1, 1),
            "width": 4,
            "embedding": 10,
        },
        open_units=0.5,
    ),
    "insightface_ir": ZooCase(
        "insightface",
        {
            "input_shape": (40, 34, 3),
            "classes": 11,
            "backbone": "ir50",
            "blocks": (1, 2),
            "width": 4,
            "embedding": 10,
        },
        open_units=0.5,
        idle_weights=True,
    ),
    "rnntc": ZooCase("rnntc", {**_RECURRENT, "layers": 3}),
    "rnntc_pieces": ZooCase("rnntc", {**_RECURRENT, "layers": 2, "steps_per_op": 2}),
    "rnnlm": ZooCase("rnnlm", {**_RECURRENT, "embedding": None}),
    "rnnlm_pieces": ZooCase("rnnlm", {**_RECURRENT, "steps_per_op": 2}),
    "nmt": ZooCase("nmt", _RECURRENT),
    "nmt_pieces": ZooCase("nmt", {**_RECURRENT, "steps_per_op": 2}),
    "transformer": ZooCase("transformer", _TRANSFORMER),
    "gpt": ZooCase("gpt", _TRANSFORMER),
    "bert": ZooCase("bert", _TRANSFORMER, ignored=0.8),
    "llama": ZooCase("llama", _GROUPED),
    "mixtral": ZooCase("mixtral", _EXPERTS),
    "moe": ZooCase("moe", _EXPERTS),
    "moe_capacity": ZooCase("moe", {**_EXPERTS, "capacity": 0.75, "experts_per_op": 2}),
    "moe_gshard": ZooCase(
        "moe", {**_EXPERTS, "layers": 2, "every": 2, "gated": False, "capacity": 1.25}
    ),
    "wide_deep": ZooCase("wide_deep", _CLICKS),
    "wide_deep_crosses": ZooCase("wide_deep", {**_CLICKS, "wide_fields": 2, "wide_rows": 30}),
    "dlrm": ZooCase(
        "dlrm",
        {
            "numbers": 5,
            "fields": 3,
            "tables": (30, 4, 20),
            "bottom": (12, 4),
            "top": (12, 10),
        },
    ),
}
