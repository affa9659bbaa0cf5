"""How finely a plan is cut where a strategy leaves it open."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.errors import UserError

MAX_SHARD_BYTES = 10**15


@dataclass(frozen=True)
class Granularity:
    """Bounds of what a plan cuts into pieces, and of what it joins.

    Simulations and training have to be given the same, if it is not the default.

    Parameters
    ----------
    shard_bytes
        Weights are not cut into smaller shards, however many devices replicate them: below, a
        message's latency outweighs what parallel links and updates gain.
    fused_launches
        So many launches at most run as one; 1: each by itself. By default, what has proved best.

    Raises
    ------
    UserError
        If a bound is none.
    """

    shard_bytes: int = 64 * 1024
    fused_launches: int | None = None

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
