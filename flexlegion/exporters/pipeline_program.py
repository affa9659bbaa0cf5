"""A pipeline as a program for PyTorch or for JAX: the operators of each stage, on its own mesh."""

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
        if self._is_jax:
            from flexlegion.exporters import jax_pipeline
            from flexlegion.spmd import schedule

            return (*super()._runtime(), jax_pipeline, schedule)
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
        schedule = self._its.kind if self._is_jax else self._its.schedule
        return "\n".join(
            [
                "# The devices of each stage; run r is on stage r modulo their number.",
                f"STAGES = {self._its.stages!r}",
                f"SCHEDULE = {literal(schedule)}",
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
                lines.append(f"        {self._spelt_passed(tensor, number)},")
            lines.append("    ),")
        return "\n".join([*lines, ")"])

    def _spelt_passed(self, tensor: Tensor, number: int) -> str:
        """What goes from run to run, as the target has to know it."""
        placed = self._read_as(tensor, number)
        rank = len(tensor.shape)
        name, lies = literal(tensor.name), self._spelt(placed, rank)
        if self._is_jax:
            return f"Passed({name}, {lies}, {tensor.dtype.startswith('float')})"
        part = part_of(tensor.shape, placed, self.target.axes)
        return f"Passed({name}, {part}, {literal(tensor.dtype)}, {lies})"

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
        key = ", key: Any" if self._is_jax else ""
        lines = [
            f"def run_{number}(w: Weights, t: dict[str, Any]{key}) -> None:",
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

    def _readers(self, weight: Tensor) -> str:
        """Which runs read a weight; for PyTorch, the stages that have it."""
        if self._is_jax:
            runs = self._its.runs_of(weight)
            return "" if runs == (0,) else f"runs={runs!r}"
        stages = self._its.stages_of(weight)
        return "" if stages == (0,) else f"stages={stages!r}"

    def _is_gathered_again(self, weight: Tensor) -> bool:
        """In JAX, all are: or each micro-batch that is under way would keep what is moved of it."""
        return self._is_jax or super()._is_gathered_again(weight)

    def _forward_backward(self) -> str:
        return super()._forward_backward().replace("in_micro_batches(", "in_pipeline(")
