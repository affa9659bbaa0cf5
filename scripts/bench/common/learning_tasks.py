"""What the comparison of learning trains, stated once for both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.cli.training import data_and_sizes
from flexlegion.data import Dataset
from flexlegion.data.tasks import Request
from flexlegion.graph.initializers import initial_weights
from flexlegion.model.model import Model
from flexlegion.objective.optimizers import SGD, Adam, Optimizer
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO, build

SPLIT_SEED = 0  # one test set for all seeds, which decide weights, dropout and the order of samples

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LearningTask:
    """A network that learns the sample that comes along.

    Parameters
    ----------
    network
        Of the zoo; its sizes are those for the sample.
    epochs
        Passes over the samples.
    goal
        The quality that the mean over seeds has to reach.
    optimizer
        Of both sides.
    batch_size
        Samples an iteration.
    strategy
        Of flexlegion.
    """

    network: str
    epochs: int
    goal: float
    optimizer: Optimizer = Adam(0.001)
    batch_size: int = 32
    strategy: str = "data"

    @property
    def patience(self) -> int:
        """The most epochs on the way to the goal."""
        return 3 * self.epochs

    @property
    def metric(self) -> str:
        """On the test set: "accuracy", which is to be high, or "perplexity", low."""
        return "accuracy" if ZOO[self.network].task in ("images", "text") else "perplexity"

    def reached(self, value: float) -> bool:
        """Whether a value of the metric is as good as the goal."""
        return value >= self.goal if self.metric == "accuracy" else value <= self.goal

    def data(self) -> tuple[Dataset, Dataset, dict[str, Any]]:
        """What to train on and to test with, and the network's sizes."""
        entry = ZOO[self.network]
        splits, sizes = data_and_sizes(entry, {}, Request("sample"))
        train, test = splits.divided(None, SPLIT_SEED)
        assert isinstance(train, Dataset)
        assert isinstance(test, Dataset)
        return train, test, sizes

    def model(self, sizes: dict[str, Any], seed: int) -> Model:
        """The network, not yet compiled."""
        return build(self.network, self.batch_size, seed=seed, **sizes)

    def weights(self, sizes: dict[str, Any], seed: int) -> dict[str, Array]:
        """The first weights, which both sides have."""
        model = self.model(sizes, seed)
        graph = add_loss(model.graph, model.graph.operators[-1].output, ZOO[self.network].loss)
        return dict(initial_weights(graph, seed))


def order(samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The samples of an epoch as `Model.fit` orders them."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def untrained(metric: str, train: Dataset, test: Dataset) -> float:
    """The metric of what knows only how frequent labels are: the best that needs no input."""
    seen = np.asarray(train.y)[np.asarray(train.y) >= 0].ravel()
    asked = np.asarray(test.y)[np.asarray(test.y) >= 0].ravel()
    counts = np.bincount(seen, minlength=train.n_classes)
    if metric == "accuracy":
        return float(np.mean(asked == counts.argmax()))
    shares = (counts + 1) / (counts.sum() + len(counts))  # none is impossible
    return math.exp(-float(np.mean(np.log(shares[asked]))))


TASKS = {
    task.network: task
    for task in (
        LearningTask("alexnet", 8, 0.9, SGD(0.01, momentum=0.9)),
        LearningTask("inception_v3", 4, 0.85),
        LearningTask("resnet101", 30, 0.9),
        LearningTask("rnntc", 10, 0.3),
        LearningTask("rnnlm", 4, 200, Adam(0.01)),
        LearningTask("nmt", 10, 150, Adam(0.003)),
        LearningTask("transformer", 4, 200),
    )
}
