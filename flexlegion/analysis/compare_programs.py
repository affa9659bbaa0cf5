"""The usual ways to divide training beside each other, as programs on NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from flexlegion.analysis.divisions import search_programs
from flexlegion.analysis.program import SimulatedProgram
from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import AnyMachine, AnyModel
from flexlegion.base.arguments import typed
from flexlegion.console.blocks import Block, Table
from flexlegion.console.text import duration, memory
from flexlegion.objective.training import MOST_TRIED, TrainingOptions
from flexlegion.spmd.ways import Ways

DATA = "data"
FOUND = "found"
COLUMNS = ("way", "division", "m", "iteration", "over data", "MFU", "memory")
# Each division is of one kind.
KINDS: dict[str, Callable[[Ways], bool]] = {
    DATA: lambda ways: _whole(ways) and ways.shards == 0,
    "zero-1": lambda ways: _whole(ways) and ways.shards == 1,
    "zero-2": lambda ways: _whole(ways) and ways.shards == 2,
    "fsdp": lambda ways: _whole(ways) and ways.shards == 3,
    "tensor": lambda ways: ways.tensor > 1 and ways.pipeline == 1,
    "pipeline": lambda ways: ways.tensor == 1 and ways.pipeline > 1,
    "3d": lambda ways: ways.tensor > 1 and ways.pipeline > 1,
}


def _whole(ways: Ways) -> bool:
    """Whether every device has all layers, each of them whole."""
    return ways.tensor == ways.pipeline == 1


@dataclass(frozen=True, repr=False)
class ComparedPrograms(Result):
    """What `compare_programs` returns.

    Attributes
    ----------
    ways : dict
        By kind ("data", "zero-1", "zero-2", "fsdp", "tensor", "pipeline", "3d", "found"): its
        fastest division that fits; where none fits, the one that needs the least memory.
    simulated : int
        How many divisions there are.
    undivided : str
        Why the model cannot be trained in more micro-batches; empty if it can.
    """

    ways: dict[str, SimulatedProgram]
    simulated: int
    undivided: str = ""

    @property
    def best(self) -> SimulatedProgram:
        """The best of all."""
        return self.ways[FOUND]

    def facts(self) -> dict[str, Any]:
        about = self.best.setting.about() | {"runtime": "nccl", "system": self.best.runner}
        rows = [
            {"way": name, "speedup": self._over_data(its)} | its.figures()
            for name, its in self.ways.items()
        ]
        facts = about | {"simulated": self.simulated, "ways": rows}
        return facts | ({"undivided": self.undivided} if self.undivided else {})

    def blocks(self) -> Sequence[Block]:
        best = self.best
        heading = f"{best.setting}; programs of collectives by NCCL, run by {best.runner}"
        note = (
            f"of each way the fastest of its divisions that fits, among {self.simulated:,}; "
            "m: micro-batches"
        )
        if self.undivided:
            note += f"; more micro-batches were not tried: {self.undivided}"
        return [heading, Table(COLUMNS, [self._cells(its) for its in self.ways], (0, 1), note)]

    def _over_data(self, its: SimulatedProgram) -> float | None:
        data = self.ways.get(DATA)
        if data is None or not data.fits:
            return None
        return data.iteration_time_ns / its.iteration_time_ns

    def _cells(self, name: str) -> tuple[str, ...]:
        its = self.ways[name]
        speedup = self._over_data(its)
        return (
            name,
            its.name,
            str(its.micro_batches),
            duration(its.iteration_time_ns),
            "" if speedup is None else f"{speedup:.2f}x",
            f"{its.throughput.utilisation:.1%}",
            memory(its.needed_bytes) + ("" if its.fits else " (does not fit)"),
        )


@typed
def compare_programs(
    model: AnyModel,
    machine: AnyMachine,
    *,
    system: str = "compiled",
    most_micro_batches: int = MOST_TRIED,
    **training: Unpack[TrainingOptions],
) -> ComparedPrograms:
    """Compare data parallelism, ZeRO, FSDP, tensor parallelism, pipelines, and all together.

    Each is as PyTorch, JAX or Megatron-LM run it, in the best of its divisions: with or without
    recomputation, in any number of micro-batches.

    Parameters
    ----------
    model, machine, system, most_micro_batches
        As of `search_programs`.
    loss, optimizer, precision, storage, micro_batches, loss_weights
        As of `simulate`.

    Returns
    -------
    ComparedPrograms
        Printed it is a table.

    Raises
    ------
    UserError
        If something does not exist or does not fit.

    Examples
    --------
    >>> "fsdp" in compare_programs("gpt", "a100x2", most_micro_batches=1).ways
    True
    """
    searched = search_programs(
        model, machine, system=system, most_micro_batches=most_micro_batches, **training
    )
    ways: dict[str, SimulatedProgram] = {}
    for name, belongs in KINDS.items():
        # The best comes first.
        its = (one for one in searched.found if one.ways is not None and belongs(one.ways))
        if (first := next(its, None)) is not None:
            ways[name] = first
    ways[FOUND] = searched.best
    return ComparedPrograms(ways, len(searched.found), searched.undivided)
