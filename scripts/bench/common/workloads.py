"""What the benchmarks train, stated once for both sides."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.data.synthetic import made_up
from flexlegion.graph.graph import Graph
from flexlegion.model.model import Model
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO, build

LEARNING_RATE = 0.01

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Workload:
    """A training task: a network of the zoo, on random data.

    Parameters
    ----------
    network
        Its name.
    batch_size
        Samples an iteration.
    iterations
        Iterations a round.
    sizes
        Other than the network's defaults.
    samples
        Rows of the data.
    """

    network: str
    batch_size: int
    iterations: int
    sizes: dict[str, Any] = field(default_factory=dict)
    samples: int = 2048

    def model(self) -> Model:
        """The network, not yet compiled."""
        return build(self.network, self.batch_size, **self.sizes)

    def graph(self) -> Graph:
        """The network with its loss."""
        model = self.model()
        return add_loss(model.graph, model.graph.operators[-1].output, ZOO[self.network].loss)

    def data(self) -> tuple[list[Array], Array]:
        """Samples for each input, and labels; always the same."""
        inputs, labels = made_up(self.graph(), self.samples)
        assert labels is not None
        (those,) = labels.values()
        return list(inputs.values()), those

    def batch_rows(self, rounds: int) -> list[npt.NDArray[np.int64]]:
        """Rows of each batch of a round: random, so that both sides gather."""
        rng = np.random.default_rng(rounds)
        return [rng.permutation(self.samples)[: self.batch_size] for _ in range(self.iterations)]

    def flops(self) -> int:
        """Floating-point operations of a training iteration.

        What has to be computed: values that a kernel computes again in its backward pass count
        once, and nothing needs the gradient of the data.
        """
        total = 0
        graph = self.graph()
        read = {tensor for op in graph.operators for tensor in op.inputs}
        for op in graph.operators:
            if op.output not in read and not op.kind.is_loss:
                continue  # a classifier's softmax, which is part of the loss
            forward = op.kind.flops(op.input_shapes)
            products = op.kind.family in ("convolution", "matmul")
            first = all(tensor.kind == "input" for tensor in op.inputs)
            most = forward if first or not products else 2 * forward
            total += forward + min(op.kind.backward_flops(op.input_shapes), most)
        return total

    def to_json(self) -> str:
        """For a worker's command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The opposite of `to_json`."""
        work = cls(**json.loads(text))
        sizes = {k: tuple(v) if isinstance(v, list) else v for k, v in work.sizes.items()}
        return dataclasses.replace(work, sizes=sizes)
