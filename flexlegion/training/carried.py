"""What training has reached, carried from one program of a network into the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexlegion.training.checkpoints.files import Array
from flexlegion.training.checkpoints.shards import Kept, put, states_of, weights_of
from flexlegion.training.compiled import Compiled
from flexlegion.training.loss_scale import LossScale
from flexlegion.training.position import Position


@dataclass(frozen=True)
class Carried:
    """All that decides how training goes on, whatever program it goes on in.

    Every rank has the whole of it in host memory.

    Parameters
    ----------
    values
        Weights and the optimizer's states, by their keys in a checkpoint.
    position, resumed, loss_scale, trained
        As `Compiled` and its program have them.
    """

    values: Mapping[str, Array]
    position: Position
    resumed: Mapping[str, Any] | None
    loss_scale: LossScale | None
    trained: bool

    @classmethod
    def of(cls, compiled: Compiled) -> Carried:
        """What a program has reached; every rank has to ask."""
        program = compiled.program
        values = {
            one.key: program.read(one.tensor, one.field, one.state) for one in _kept(compiled)
        }
        its = compiled.position, compiled.resumed, program.loss_scale, program.trained
        return cls(values, *its)

    def into(self, compiled: Compiled) -> None:
        """Bring a program of the same network and optimizer there."""
        put(compiled.program, _kept(compiled), self.values.__getitem__)
        compiled.position, compiled.resumed = self.position, self.resumed
        compiled.program.loss_scale = self.loss_scale
        compiled.program.trained = self.trained


def _kept(compiled: Compiled) -> list[Kept]:
    program = compiled.program
    return [*weights_of(program), *states_of(program, compiled.training.optimizer)]
