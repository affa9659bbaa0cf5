"""What scenarios of training_worker.py share: how they are marked, and the network they train."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from training_cases import BATCH, CLASSES, FEATURES, UNITS

from flexlegion import Model, UserError

Result = dict[str, Any]
SCENARIOS: dict[str, Callable[[], Result]] = {}

LOSS = "sparse_categorical_crossentropy"


def scenario(function: Callable[[], Result]) -> Callable[[], Result]:
    """Mark a function to be run."""
    SCENARIOS[function.__name__] = function
    return function


def network(seed: int = 5, rate: float = 0.0) -> Model:
    """Two dense layers, and dropout between them if `rate` says so; not compiled."""
    model = Model(BATCH, seed)
    x = model.input((FEATURES,))
    x = model.dense(x, UNITS, activation="tanh", name="hidden")
    x = model.dropout(x, rate) if rate else x
    model.softmax(model.dense(x, CLASSES, name="output"))
    return model


def plain(weights: dict[str, Any]) -> dict[str, Any]:
    """Weights as JSON takes them; every float32 is exactly a float of Python's."""
    return {name: value.tolist() for name, value in weights.items()}


def message(call: Callable[[], Any]) -> str:
    """The message of the `UserError` that a call raises; or what happened instead."""
    try:
        call()
    except UserError as e:
        return str(e)
    except Exception:
        return traceback.format_exc()
    return "no error"
