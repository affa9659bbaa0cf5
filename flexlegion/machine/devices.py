"""Names of devices: ``cpu:0``, ``gpu:3``, counted over all nodes of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexlegion.base.errors import UserError

# More than any machine has; a number with too many digits should not fill the memory.
MAX_DEVICES = 100_000


class Devices:
    """The devices that a strategy may name, in the order of their numbers in the plan.

    Parameters
    ----------
    names
        For example ``["cpu:0", "cpu:1", "gpu:0"]``.
    nodes
        The number of each one's node; if it is not known, they count as one node.
    """

    def __init__(self, names: Sequence[str], nodes: Sequence[int] | None = None) -> None:
        self.names = list(names)
        self.nodes = [0] * len(self.names) if nodes is None else list(nodes)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def of(cls, cpus: int = 0, gpus: int = 0) -> Devices:
        """That many processors of each kind.

        Raises
        ------
        UserError
            If there is none at all, or there are too many.
        """
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise UserError(
                f"a machine of {cpus} CPU processors and {gpus} GPUs has no device; it needs at "
                "least one"
            )
        if cpus + gpus > MAX_DEVICES:
            raise UserError(
                f"a machine of {cpus} CPU processors and {gpus} GPUs is too large; use at most "
                f"{MAX_DEVICES} devices"
            )
        return cls([f"cpu:{i}" for i in range(cpus)] + [f"gpu:{i}" for i in range(gpus)])

    @property
    def has_gpus(self) -> bool:
        """Whether there is one."""
        return bool(self._gpus)

    @property
    def _gpus(self) -> list[str]:
        return [name for name in self.names if name.startswith("gpu:")]

    @property
    def preferred(self) -> list[str]:
        """The devices that built-in strategies use: the GPUs if there are any, else the CPUs."""
        return self._gpus or self.names

    @property
    def preferred_by_node(self) -> list[list[str]]:
        """The preferred devices of every node that has any, in the order of the nodes' numbers."""
        nodes: dict[int, list[str]] = {}
        for name in self.preferred:
            nodes.setdefault(self.nodes[self._numbers[name]], []).append(name)
        return [nodes[node] for node in sorted(nodes)]

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def have(self, names: Iterable[str]) -> bool:
        """Whether all of them are here."""
        return all(map(self._numbers.__contains__, names))

    def number(self, name: str) -> int:
        """The device's number in the plan."""
        return self._numbers[name]

    def __str__(self) -> str:
        """For messages: ranges of each kind."""
        parts = []
        for kind in ("cpu", "gpu"):
            mine = [name for name in self.names if name.startswith(kind)]
            if len(mine) > 2:
                parts.append(f"{mine[0]} to {mine[-1]}")
            else:
                parts += mine
        return ", ".join(parts)
