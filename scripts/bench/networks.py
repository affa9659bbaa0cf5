"""The networks and data that the benchmarks compare, stated once for both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SAMPLES = 2048


@dataclass(frozen=True)
class Workload:
    """A training task.

    Parameters
    ----------
    batch_size
        Samples an iteration.
    input_shape
        Of a sample; images are (height, width, channel).
    classes
        Number of classes.
    iterations
        Iterations a round.
    """

    batch_size: int
    input_shape: tuple[int, ...]
    classes: int
    iterations: int

    def data(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Samples and labels, always the same."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(SAMPLES, *self.input_shape)).astype(np.float32)
        return x, rng.integers(0, self.classes, SAMPLES).astype(np.int32)

    def batch_rows(self, rounds: int) -> list[npt.NDArray[np.int64]]:
        """Rows of each batch of a round: random, so that both sides gather."""
        rng = np.random.default_rng(rounds)
        return [rng.permutation(SAMPLES)[: self.batch_size] for _ in range(self.iterations)]


WORKLOADS = {
    "lenet": Workload(256, (32, 32, 1), 10, 50),
    "mlp4096": Workload(256, (4096,), 4096, 4),
}
LEARNING_RATE = 0.01
