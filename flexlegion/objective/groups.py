"""Parameter groups: weights that an optimizer updates by other numbers than the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from flexlegion.base.arguments import fits, typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.graph.tensor import Tensor

_SHOWN = 12  # names in a message


@typed_methods
@dataclass(frozen=True)
class ParameterGroup:
    """Weights with a learning rate or a weight decay of their own, as PyTorch's parameter groups.

    Parameters
    ----------
    names
        Patterns of weights' names (`Model.get_weights` has them), one or several, in which ``*``
        stands for any characters, ``?`` for one, and ``[ab]`` for one of some.
    lr
        Learning rate, which schedules multiply as they do the optimizer's; 0 leaves the weights as
        they are. None: the optimizer's.
    weight_decay
        None: the optimizer's.
    max_dims
        Only weights of so many dimensions at most: 1 for biases and the scales of norms.

    Raises
    ------
    UserError
        If a number is out of range, or the group has nothing of its own.

    Examples
    --------
    >>> ParameterGroup(max_dims=1, weight_decay=0.0)
    ParameterGroup(names=('*',), lr=None, weight_decay=0.0, max_dims=1)
    """

    names: str | Sequence[str] = "*"
    lr: float | None = None
    weight_decay: float | None = None
    max_dims: int | None = None

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        object.__setattr__(self, "names", names)
        if not names or not all(names):
            raise UserError("a parameter group needs patterns of names, as in '*.bias'")
        if self.lr is None and self.weight_decay is None:
            raise UserError(f"the {self} has neither lr nor weight_decay of its own; give one")
        if self.lr is not None and not 0 <= self.lr < math.inf:
            raise UserError(f"the {self} needs an lr of at least 0, not {self.lr}")
        if self.weight_decay is not None and not 0 <= self.weight_decay < math.inf:
            raise UserError(f"the {self} needs a weight_decay of at least 0")
        if self.max_dims is not None and self.max_dims < 0:
            raise UserError(f"the {self} needs max_dims of at least 0, not {self.max_dims}")

    def has(self, weight: Tensor) -> bool:
        """Whether a weight is one of those that it names."""
        fitting = any(fnmatchcase(weight.name, pattern) for pattern in self.names)
        return fitting and (self.max_dims is None or len(weight.shape) <= self.max_dims)

    def __str__(self) -> str:
        limit = "" if self.max_dims is None else f" of at most {self.max_dims} dimensions"
        return f"parameter group {','.join(self.names)}{limit}"

    @property
    def text(self) -> str:
        """As `parsed` reads it: ``*.bias:weight_decay=0``."""
        limit = () if self.max_dims is None else (f"dims<={self.max_dims}",)
        patterns = [] if self.names == ("*",) and limit else self.names
        own = {"lr": self.lr, "weight_decay": self.weight_decay}
        values = [f"{name}={value:g}" for name, value in own.items() if value is not None]
        return f"{','.join([*patterns, *limit])}:{','.join(values)}"

    @classmethod
    def of_document(cls, entry: Any, source: str) -> ParameterGroup:
        """One that a file has, as `dataclasses.asdict` gives it.

        Raises
        ------
        UserError
            If it is none.
        """
        types = {
            "names": Sequence[str],
            "lr": float | None,
            "weight_decay": float | None,
            "max_dims": int | None,
        }
        if not isinstance(entry, Mapping) or not all(
            key in types and fits(value, types[key]) for key, value in entry.items()
        ):
            raise UserError(f"{source}: {shown(entry)} is no parameter group")
        return cls(**entry)

    @classmethod
    def parsed(cls, text: str) -> ParameterGroup:
        """One by a text, ``*.bias,norm*:weight_decay=0,lr=0.01``; ``dims<=1`` among the patterns.

        Raises
        ------
        UserError
            If it is none.
        """
        names, colon, numbers = text.rpartition(":")
        options: dict[str, Any] = {}
        patterns = []
        for pattern in filter(None, names.split(",")):
            if pattern.startswith("dims<="):
                options["max_dims"] = _number(int, pattern.removeprefix("dims<="), text)
            else:
                patterns.append(pattern)
        for entry in numbers.split(","):
            key, equals, value = entry.partition("=")
            if key not in ("lr", "weight_decay") or not equals or key in options:
                raise _unreadable(text)
            options[key] = _number(float, value, text)
        if not colon or not names:
            raise _unreadable(text)
        return cls(patterns or "*", **options)


def _number(kind: type, text: str, whole: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise _unreadable(whole) from None


def _unreadable(text: str) -> UserError:
    return UserError(
        f"{shown(text)} is no parameter group; write patterns of names, a colon, and lr or "
        "weight_decay, as in '*.bias,norm*:weight_decay=0' or 'dims<=1:lr=0.01,weight_decay=0'"
    )


def groups_of(weights: Sequence[Tensor], groups: Sequence[ParameterGroup]) -> list[int]:
    """For each weight, the first group that names it; -1: none does.

    Raises
    ------
    UserError
        If a group has no weight.
    """
    found = [next((i for i, its in enumerate(groups) if its.has(w)), -1) for w in weights]
    for i, group in enumerate(groups):
        if i in found:
            continue
        taken = [weight.name for weight in weights if group.has(weight)]
        if taken:
            raise UserError(
                f"the {group} has no weight left: {_some(taken)} are in groups before it"
            )
        raise UserError(
            f"the {group} names no weight that is trained; there are "
            f"{_some([weight.name for weight in weights])}"
        )
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
