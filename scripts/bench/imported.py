"""The models of pytorch/models.py, imported and with a loss, as commands take them.

flexlegion search --model scripts/bench/imported.py:bert --machine p100x16 --budget 30s
"""

from __future__ import annotations

from collections.abc import Callable

from imports_case import losses
from pytorch.models import MODELS

import flexlegion as fl


def __getattr__(name: str) -> Callable[..., fl.Model]:
    if name not in MODELS:
        raise AttributeError(f"there is no model {name}")

    def build(batch_size: int = 64) -> fl.Model:
        module, example = MODELS[name]()
        model = fl.from_torch(module, example, batch_size=batch_size)
        assert model.origin is not None
        chosen = losses(list(model.origin.outputs), [output.shape for output in model.outputs])
        model.loss = chosen if len(chosen) > 1 else chosen[0]
        return model

    build.__name__ = name
    return build
