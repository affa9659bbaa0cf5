"""What transformers are made of: attention with its projections, and a pair of dense layers."""

from __future__ import annotations

from collections.abc import Mapping

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.graph.initializers import Normal
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model

NORMAL = Normal(stddev=0.02)

Presets = Mapping[str, Mapping[str, int]]  # by name: published sizes


def presets_of(sizes: str, table: Mapping[str, tuple[int, ...]]) -> Presets:
    """Presets from a table, whose columns are sizes of these names."""
    names = sizes.split()
    return {preset: dict(zip(names, row, strict=True)) for preset, row in table.items()}


def chosen_sizes(presets: Presets, preset: str, **given: int | None) -> dict[str, int]:
    """A preset's sizes, but those that are given.

    Raises
    ------
    UserError
        If there is no such preset.
    """
    known = presets.get(str(preset).lower())
    if known is None:
        raise unknown("preset", preset, presets)
    return dict(known) | {name: size for name, size in given.items() if size is not None}


def check_heads(network: str, hidden: int, heads: int) -> None:
    """Raise `UserError` unless the heads share the width evenly."""
    if hidden % heads != 0:
        raise UserError(
            f"{network}: hidden has to be a multiple of heads, but {heads} does not divide {hidden}"
        )


def attend(
    model: Model, x: Tensor, heads: int, causal: bool, name: str, dropout: float = 0.0
) -> Tensor:
    """Self-attention of several heads: (n, steps, hidden) -> (n, steps, hidden).

    Queries, keys and values have a dense layer each, so that a split of their units is one of the
    heads; another dense layer joins the heads.
    """
    steps, hidden = x.shape[1:]
    q, k, v = (
        model.reshape(
            _dense(model, x, hidden, f"{name}.{part}"),
            (steps, heads, hidden // heads),
            name=f"{name}.{part}.heads",
        )
        for part in ("query", "key", "value")
    )
    y = model.attention(q, k, v, causal=causal, dropout=dropout, name=f"{name}.attention")
    return _dense(
        model, model.reshape(y, (steps, hidden), name=f"{name}.joined"), hidden, f"{name}.output"
    )


def dropped(model: Model, x: Tensor, rate: float, name: str) -> Tensor:
    """The same with dropout, where there is any."""
    return model.dropout(x, rate, name=name) if rate else x


def feed_forward(model: Model, x: Tensor, activation: str, name: str) -> Tensor:
    """Two dense layers, the first four times as wide as the second, an activation between them."""
    hidden = x.shape[-1]
    y = _dense(model, x, 4 * hidden, f"{name}.expand", activation)
    return _dense(model, y, hidden, f"{name}.contract")


def _dense(model: Model, x: Tensor, units: int, name: str, activation: str | None = None) -> Tensor:
    return model.dense(x, units, activation, kernel_initializer=NORMAL, name=name)
