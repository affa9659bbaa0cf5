"""Optimizers: hyper-parameters only; the update is a kernel (``native/ops/optimizers.cc``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.base.suggestions import unknown
from flexlegion.objective.groups import ParameterGroup

EMA = "ema"  # the state that is a moving average of the weight


@typed_methods
@dataclass(frozen=True)
class Optimizer:
    """What all optimizers share.

    Parameters
    ----------
    lr
        Learning rate.
    clip_norm
        The largest norm that the gradients of all weights together may have; if theirs is larger,
        they are scaled down to it. None: any.
    groups
        Weights with a learning rate or a weight decay of their own; the first that names a weight
        has it.
    ema
        Of a moving average of each weight, which follows it in each iteration: what the average is
        multiplied with before ``1 - ema`` times the weight is added. At first it is the weight.
        None: there are no averages.
    """

    type: ClassVar[str]

    lr: float = 0.01
    clip_norm: float | None = field(default=None, kw_only=True)
    groups: Sequence[ParameterGroup] = field(default=(), kw_only=True)
    ema: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UserError(f"the learning rate has to be positive and finite, but is {self.lr}")
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name, 0.0)
            if not 0 <= value < 1:
                raise UserError(f"{name} has to be at least 0 and below 1, but is {value}")
        weight_decay = getattr(self, "weight_decay", 0.0)
        if not 0 <= weight_decay < math.inf:
            raise UserError(f"weight_decay has to be at least 0, but is {weight_decay}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise UserError(f"clip_norm has to be positive and finite, but is {self.clip_norm}")
        epsilon = getattr(self, "epsilon", 1.0)
        if not 0 < epsilon < math.inf:
            raise UserError(f"epsilon has to be positive and finite, but is {epsilon}")
        object.__setattr__(self, "groups", tuple(self.groups))  # which can be compared and hashed
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(f"ema has to be above 0 and below 1, but is {self.ema}")

    @property
    def state_names(self) -> tuple[str, ...]:
        """What is kept for each weight element: in the kernel's order, then the average."""
        return self._kernel_states + ((EMA,) if self.ema is not None else ())

    @property
    def _kernel_states(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def states(self) -> int:
        """Number of values kept for each weight element."""
        return len(self.state_names)

    @property
    def lazy(self) -> bool:
        """Whether an update changes, of an embedding's table, only the rows that were looked up.

        The kernel says the same (``UpdateKernel::lazy``); what an update is charged follows. An
        average changes in all rows, and a group's weight decay may.
        """
        return False

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped by their norm."""
        return self.clip_norm is not None

    def facts(self) -> dict[str, Any]:
        """All its numbers, for files and JSON; groups and averages where there are some."""
        unset = {"groups": (), "ema": None}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in unset or value != unset[name]
        }

    def of_group(self, group: ParameterGroup) -> Optimizer:
        """The optimizer as it updates the weights of a group; its learning rate may be 0."""
        decay = {} if group.weight_decay is None else {"weight_decay": group.weight_decay}
        return replace(self, groups=(), **decay)

    def attributes(self) -> dict[str, str]:
        """Hyper-parameters as the kernel receives them."""
        # The learning rate changes from step to step; the others are no kernel's.
        others = ("lr", "clip_norm", "groups", "ema")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return {
            name: str(int(value)) if isinstance(value, bool) else repr(value)
            for name, value in values.items()
        }


@typed_methods
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    Parameters
    ----------
    momentum
        Factor of the velocity; 0 keeps none.
    nesterov
        Whether to look ahead along the velocity.
    weight_decay
        Factor of the L2 penalty's gradient.
    """

    type: ClassVar[str] = "sgd"

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise UserError("Nesterov's method needs a momentum")

    @property
    def _kernel_states(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    @property
    def lazy(self) -> bool:
        # By zeros, it changes nothing.
        decays = self.weight_decay or any(group.weight_decay for group in self.groups)
        return self.momentum == 0 and not decays and self.ema is None


@typed_methods
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is an L2 penalty.

    Parameters
    ----------
    beta1, beta2
        Decay of the first and the second moment.
    epsilon
        Added to the root of the second moment.
    weight_decay
        Factor of the L2 penalty's gradient.
    """

    type: ClassVar[str] = "adam"

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def _kernel_states(self) -> tuple[str, ...]:
        return "m", "v"


@typed_methods
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    type: ClassVar[str] = "adamw"

    weight_decay: float = 0.01


@typed_methods
@dataclass(frozen=True)
class LazyAdam(Adam):
    """Adam that changes of an embedding's table only the rows that a batch looks up.

    Other rows keep their values and moments, and do not decay; so what an update takes grows with
    the batch, and not with the table. A row is looked up if a token of the batch names it, even if
    its gradient is zero; but an embedding's padding token looks up none. The step by which moments
    are corrected is the iteration's. All other weights are changed as Adam does it, and so is a
    table that a product reads, too.
    """

    type: ClassVar[str] = "lazy-adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema is not None:
            raise UserError(
                "averages of weights (ema) change in all rows of a table in each iteration, and "
                "lazy-adam changes few; choose adam, or leave ema out"
            )

    @property
    def lazy(self) -> bool:
        return True


# What is trained, searched and simulated with where nobody says an optimizer.
DEFAULT_OPTIMIZER = SGD.type
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.type: kind for kind in (SGD, Adam, AdamW, LazyAdam)}


def optimizer_with(name: str, hyperparameters: Mapping[str, Any], source: str) -> Optimizer:
    """The optimizer that a file says, with hyper-parameters as `dataclasses.asdict` gives them.

    Raises
    ------
    UserError
        If there is no such optimizer, or one of them is none of its own or out of range.
    """
    chosen = optimizer_of(name)
    known = {field.name for field in fields(chosen)}
    values = dict(hyperparameters)
    if isinstance(groups := values.pop("groups", ()), list | tuple):
        values["groups"] = tuple(ParameterGroup.of_document(one, source) for one in groups)
    for key, value in hyperparameters.items():
        number = isinstance(value, int | float | None)
        if key not in known or (not number if key != "groups" else "groups" not in values):
            raise UserError(
                f"{source}: {shown(key)} with the value {shown(value)} is no hyper-parameter of "
                f"{name}"
            )
    return replace(chosen, **values)


def optimizer_of(spec: str | Optimizer, lr: float | None = None) -> Optimizer:
    """The optimizer that a name stands for, with learning rate `lr` or its default.

    Raises
    ------
    UserError
        If there is no such optimizer.
    """
    if isinstance(spec, Optimizer):
        return spec
    if spec not in OPTIMIZERS:
        raise unknown("optimizer", spec, OPTIMIZERS)
    return OPTIMIZERS[spec]() if lr is None else OPTIMIZERS[spec](lr=lr)
