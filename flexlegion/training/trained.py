"""What training knows of the model that it trains."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt


class Named(Protocol):
    """How a model is named."""

    @property
    def name(self) -> str:
        """As commands take it."""


class TrainedModel(Protocol):
    """A `Model`, as training and callbacks use it."""

    batch_size: int
    seed: int

    @property
    def reference(self) -> Named | None:
        """How it was named, if it was."""

    def get_weights(self, averages: bool = False) -> dict[str, npt.NDArray[Any]]:
        """See `Model`."""

    def set_weights(self, weights: dict[str, Any], averages: bool = False) -> None:
        """See `Model`."""

    def averaged(self) -> AbstractContextManager[None]:
        """See `Model`."""

    def save_weights(self, path: str | Path) -> None:
        """See `Model`."""

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """See `Model`."""

    def predict(self, x: Any) -> Any:
        """See `Model`."""

    def resume_training(self, state: Mapping[str, Any]) -> None:
        """See `Model`."""
