"""Initial weights: functions of seed, name and shape alone, never of the strategy."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described
from flexlegion.base.suggestions import unknown
from flexlegion.graph.tensor import DataType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from flexlegion.graph.graph import Graph

    Array = npt.NDArray[Any]


@typed_methods
@dataclass(frozen=True)
class Initializer(ABC):
    """Draws a weight's first values.

    Parameters
    ----------
    seed
        Seed of this weight's own; without it the model's seed and the weight's name decide.
    """

    seed: int | None = field(default=None, kw_only=True)

    def __call__(
        self, shape: tuple[int, ...], name: str, model_seed: int, dtype: DataType = "float32"
    ) -> Array:
        """Values of `shape` for the weight `name`."""
        import numpy as np

        key = [self.seed] if self.seed is not None else [model_seed, zlib.crc32(name.encode())]
        return self.draw(shape, np.random.default_rng(key)).astype(dtype)

    @abstractmethod
    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.floating]:
        """Values of `shape` from `rng`."""


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Fan-in and fan-out of a weight (out, ..., in): inputs and outputs of one position."""
    window = math.prod(shape[1:-1])
    return (shape[-1] * window, shape[0] * window) if len(shape) > 1 else (shape[0], shape[0])


@typed_methods
@dataclass(frozen=True)
class Zeros(Initializer):
    """All zeros."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.floating]:
        import numpy as np

        return np.zeros(shape)


@typed_methods
@dataclass(frozen=True)
class Constant(Initializer):
    """All `value`."""

    value: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise UserError(f"the value of Constant has to be finite, but is {self.value}")

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.floating]:
        import numpy as np

        return np.full(shape, self.value)


@dataclass(frozen=True, eq=False)
class Later:
    """An array that is made whenever somebody reads it, so that a model does not hold it.

    NumPy reads it like any other array: ``np.asarray(later)``.

    Parameters
    ----------
    shape
        Of the array.
    make
        Returns it.
    unknown
        Why nobody knows its elements, so that `make` raises `UserError`; empty where it does not.
    """

    shape: tuple[int, ...]
    make: Callable[[], Array]
    unknown: str = ""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        import numpy as np

        return np.array(self.make(), dtype, copy=copy)

    @classmethod
    def never(cls, shape: tuple[int, ...], why: str) -> Later:
        """An array that nobody can make."""

        def make() -> Array:
            raise UserError(why)

        return cls(shape, make, why)

    def then(self, shape: tuple[int, ...], change: Callable[[Array], Array]) -> Later:
        """What `change` makes of the array, which is of another shape."""
        return Later(shape, lambda: change(self.make()), self.unknown)


@typed_methods
@dataclass(frozen=True, eq=False)
class Given(Initializer):
    """The values of an array: of a pretrained network's weight, say.

    Parameters
    ----------
    array
        Of the weight's shape; or a `Later` that makes one.
    """

    array: Any

    @property
    def is_known(self) -> bool:
        """Whether there are values: a module's on the device "meta" has none."""
        return not (isinstance(self.array, Later) and self.array.unknown)

    def for_one_sample(self) -> Given:
        """The same values, with a first dimension of extent 1."""
        import numpy as np

        if isinstance(self.array, Later):
            return Given(self.array.then((1, *self.array.shape), lambda array: array[None]))
        return Given(np.asarray(self.array)[None])

    def check(self, shape: tuple[int, ...], name: str) -> None:
        """Raise `UserError` if the array has another shape."""
        import numpy as np

        # What nobody has made yet is an array of numbers, whoever makes it.
        made = not isinstance(self.array, Later)
        if made and np.asarray(self.array).dtype.kind not in "fiub":
            raise UserError(f"weight '{name}' takes numbers, but got {described(self.array)}")
        if np.shape(self.array) != shape:
            raise UserError(
                f"weight '{name}' has shape {list(shape)}, but the values given for it have shape "
                f"{list(np.shape(self.array))}"
            )

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        """The array."""
        import numpy as np

        return np.asarray(self.array)


@typed_methods
@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with mean 0 and deviation `stddev`."""

    stddev: float = 0.05

    def __post_init__(self) -> None:
        if not (self.stddev >= 0 and math.isfinite(self.stddev)):
            raise UserError(
                f"the deviation of Normal has to be finite and at least 0, but is {self.stddev}"
            )

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.floating]:
        return rng.normal(0.0, self.stddev, shape)


@typed_methods
@dataclass(frozen=True)
class GlorotUniform(Initializer):
    """Uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.floating]:
        bound = math.sqrt(6.0 / sum(_fans(shape)))
        return rng.uniform(-bound, bound, shape)


@typed_methods
@dataclass(frozen=True)
class HeNormal(Initializer):
    """Normal with deviation sqrt(2 / fan_in), for ReLU networks (He et al., 2015)."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.floating]:
        return rng.normal(0.0, math.sqrt(2.0 / _fans(shape)[0]), shape)


# What layers take: a name, or an array of the weight's own shape, will do, too.
AnyInitializer = Union[str, Initializer, "npt.NDArray[Any]"]

_BY_NAME: dict[str, type[Initializer]] = {
    "glorot_uniform": GlorotUniform,
    "he_normal": HeNormal,
    "normal": Normal,
    "zeros": Zeros,
    "ones": Constant,
}


def initializer(spec: AnyInitializer) -> Initializer:
    """The initializer that a name or an array stands for; an `Initializer` is one itself.

    Raises
    ------
    UserError
        If there is no such name.
    """
    import numpy as np

    if isinstance(spec, Initializer):
        return spec
    if isinstance(spec, np.ndarray):
        return Given(spec)
    if not isinstance(spec, str) or spec not in _BY_NAME:
        raise unknown("initializer", spec, _BY_NAME)
    return _BY_NAME[spec]()


def check_known(graph: Graph) -> None:
    """Raise `UserError` if a weight has no first values, before anything is made for training."""
    for tensor in graph.weights:
        first = tensor.initializer
        if isinstance(first, Given) and not first.is_known:
            raise UserError(first.array.unknown)


def initial_weights(graph: Graph, seed: int) -> dict[str, Array]:
    """The first values of every weight: a function of seed and name."""
    return {
        tensor.name: tensor.initializer(tensor.shape, tensor.name, seed, tensor.host_dtype)
        for tensor in graph.weights
        if tensor.initializer is not None
    }
