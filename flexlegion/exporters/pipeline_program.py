"""A pipeline as a program for PyTorch: each stage has a program for DTensor on its own mesh."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

from flexlegion.exporters.pipelines import Pipeline
from flexlegion.exporters.program import Program
from flexlegion.exporters.regions import Region, regions
from flexlegion.exporters.spelling import literal, sequence
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.spmd.layout import Layout, entries, part_of


class PipelineProgram(Program):
    """What a program is made of whose operators are on stages."""

    def _runtime(self) -> tuple[ModuleType, ...]:
        from flexlegion.exporters import dtensor_pipeline

        return (*super()._runtime(), dtensor_pipeline)

    @property
    def _its(self) -> Pipeline:
        assert self.pipeline is not None
        return self.pipeline

    def _model(self) -> list[str]:
        runs = self._its.runs
        return [
            self._weights(),
            self._sources(),
            self._forms_text(),
            self._stages(),
            self._passed(),
            *(self._run(number) for number in range(len(runs))),
            f"RUNS = {sequence(f'run_{number}' for number in range(len(runs)))}",
            self._loss(),
            self._forward_backward(),
        ]

    def _stages(self) -> str:
        read = [
            sequence(
                literal(x.name) for x in self.graph.inputs if any(x in op.inputs for op in run)
            )
            for run in self._its.runs
        ]
        return "\n".join(
            [
                "# The processes of each stage; run r is on stage r modulo their number.",
                f"STAGES = {self._its.stages!r}",
                f"SCHEDULE = {literal(self._its.schedule)}",
                "# The inputs and labels that each run reads.",
                f"READ: Sequence[Sequence[str]] = {sequence(read)}",
            ]
        )

    def _passed(self) -> str:
        """What goes from each run to the next one, as that one reads it."""
        lines = [
            "# What goes from each run to the next one.",
            "PASSED: Sequence[Sequence[Passed]] = (",
        ]
        for number, tensors in enumerate(self._its.passed()):
            lines.append("    (")
            for tensor in tensors:
                placed = self._read_as(tensor, number)
                shape = part_of(tensor.shape, placed, self.target.axes)
                spelt = self._spelt(placed, len(shape))
                what = f"{literal(tensor.name)}, {shape}, {literal(tensor.dtype)}, {spelt}"
                lines.append(f"        Passed({what}),")
            lines.append("    ),")
        return "\n".join([*lines, ")"])

    def _read_as(self, tensor: Tensor, number: int) -> Layout:
        """How the first operator behind a run has a tensor that it reads."""
        for run in self._its.runs[number + 1 :]:
            for op in run:
                for role, its, access in op.operands:
                    if its is tensor and role == "input":
                        return tuple(entries(self.divisions[op.name], access, role))
        raise AssertionError(tensor.name)

    @functools.cached_property
    def _rows_of_runs(self) -> list[list[Region]]:
        return [regions(run, self.again) for run in self._its.runs]

    def _run(self, number: int) -> str:
        its: Sequence[Operator] = self._its.runs[number]
        stage = number % len(self._its.stages)
        lines = [
            f"def run_{number}(w: Weights, t: dict[str, Any]) -> None:",
            f'    """On stage {stage}: {len(its)} operators."""',
            *self._lines(self._rows_of_runs[number]),
        ]
        return "\n".join(lines)

    def _kept(self) -> list[Region]:
        return [region for rows in self._rows_of_runs for region in rows]

    def _loss(self) -> str:
        """The share of a micro-batch in the mean."""
        return "\n".join(
            [
                "def loss(w: Weights, t: dict[str, Any], whole: Any) -> Any:",
                '    """The share of a micro-batch in the loss of the batch with these labels."""',
                "    parts = MICRO_BATCHES",
                f"    return {self._mean()}",
            ]
        )

    @property
    def _has_several(self) -> bool:
        return True

    def _all_labels(self, name: str) -> str:
        return f"whole[{literal(name)}]"

    def _forward_backward(self) -> str:
        return super()._forward_backward().replace("in_micro_batches(", "in_pipeline(")
