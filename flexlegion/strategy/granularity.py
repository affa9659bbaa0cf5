"""How finely a plan is cut, and what shares memory, where a strategy leaves it open."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.machine.devices import Devices

MAX_SHARD_BYTES = 10**15
_TYPES = {"keep_tensors": bool}  # of what is no integer in strategy files


@typed_methods
@dataclass(frozen=True)
class Granularity:
    """Bounds of what a plan cuts into pieces, and of what it joins.

    A strategy that states one is simulated, searched from and trained with it.

    Parameters
    ----------
    shard_bytes
        Weights are not cut into smaller shards, however many devices replicate them: below, a
        message's latency outweighs what parallel links and updates gain.
    fused_launches
        So many launches at most run as one; 1: each by itself. By default, what has proved best.
    keep_tensors
        Whether each tensor has memory of its own, so that activations and their gradients can be
        read when an iteration is over. By default, those that are needed for a short while take
        turns in it.

    Raises
    ------
    UserError
        If a bound is none.
    """

    shard_bytes: int = 64 * 1024
    fused_launches: int | None = None
    keep_tensors: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.shard_bytes <= MAX_SHARD_BYTES:
            raise UserError(
                f"shards of at least {self.shard_bytes:,} bytes are not possible; choose 0 to "
                f"{MAX_SHARD_BYTES:,}"
            )
        if self.fused_launches is not None and not 1 <= self.fused_launches <= 1 << 20:
            raise UserError(
                f"{self.fused_launches:,} launches cannot run as one; 1 keeps them apart"
            )


DEFAULT_GRANULARITY = Granularity()

# On a machine with GPUs. There a longer run is no more than a longer list of what a GPU does next,
# and the host, which only issues it, stages the next batch meanwhile.
LONGEST_RUN_ON_GPUS = 128


def longest_run(granularity: Granularity, devices: Devices) -> int:
    """So many launches at most run as one; 0: the native library's default."""
    if granularity.fused_launches is not None:
        return granularity.fused_launches
    return LONGEST_RUN_ON_GPUS if devices.has_gpus else 0


def to_json(granularity: Granularity) -> dict[str, int]:
    """What a strategy file says of it: `keep_tensors` only where they are kept."""
    said = {name: bound for name, bound in asdict(granularity).items() if bound is not None}
    return {name: bound for name, bound in said.items() if bound is not False}


def from_json(value: Any, where: str) -> Granularity:
    """What a strategy file says.

    Parameters
    ----------
    value
        Parsed JSON.
    where
        Beginning of the message, e.g. the file's name.

    Raises
    ------
    UserError
        If it is no granularity.
    """
    known = [bound.name for bound in fields(Granularity)]
    if (
        not isinstance(value, dict)
        or not set(value) <= set(known)
        or not all(type(its) is _TYPES.get(name, int) for name, its in value.items())
    ):
        raise UserError(
            f"{where}: 'granularity' has to be an object of {', '.join(known[:-1])} (integers) and "
            f"{known[-1]} (true or false), but is {shown(value)}; it may be left out"
        )
    try:
        return Granularity(**value)
    except UserError as e:
        raise UserError(f"{where}: {e}") from None
