"""What an iteration's time means: samples and tokens a second, and how much of the peak is used.

Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B) is the work of the model, forward
and backward, over what the devices could do at their peak in that time; what is computed again does
not count. The work is what the operators state: a multiply-add counts two, and of causal attention
only what is attended to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flexlegion.console.text import duration
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import NARROW
from flexlegion.machine.topology import Topology
from flexlegion.strategy.pairs import trained


@dataclass(frozen=True)
class Work:
    """What an iteration goes through, whoever computes it.

    Parameters
    ----------
    samples
        Of a batch.
    tokens
        Of a batch, where samples are rows of them; else None.
    flops
        Floating-point operations of the model, forward and backward.
    """

    samples: int
    tokens: int | None
    flops: int

    @classmethod
    def of(cls, graph: Graph) -> Work:
        """Of a graph as it is trained, of one micro-batch; all of them count."""
        samples = max((tensor.shape[0] for tensor in graph.inputs), default=1)
        tokens = tokens_of_sample(graph)
        flops = sum(
            op.kind.flops(op.input_shapes) + op.kind.backward_flops(op.input_shapes)
            for op in trained(graph)
        )
        rounds = graph.micro_batches
        return cls(rounds * samples, tokens and rounds * samples * tokens, rounds * flops)


def tokens_of_sample(graph: Graph) -> int | None:
    """How many tokens a sample has, of the longest of its rows; None: samples are no tokens.

    They are if all inputs are whole numbers, and rows of some are looked up in a table.
    """
    looked_up = {op.inputs[0] for op in graph.operators if op.kind.family == "embedding"}
    steps = [t.shape[1] for t in graph.inputs if t in looked_up and len(t.shape) == 2]
    is_text = bool(steps) and all(tensor.dtype == "int32" for tensor in graph.inputs)
    return max(steps) if is_text else None


@dataclass(frozen=True)
class Throughput:
    """Of an iteration.

    Parameters
    ----------
    samples_per_s
        Samples, of all devices together.
    tokens_per_s
        The same of tokens, where samples are rows of them; else None.
    flops
        Floating-point operations of the model, forward and backward.
    flops_per_s_of_device
        The same a second and device.
    utilisation
        Share of the devices' peak in the precision of products: 0 to 1.
    """

    samples_per_s: float
    tokens_per_s: float | None
    flops: int
    flops_per_s_of_device: float
    utilisation: float

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "model_flops": self.flops,
            "flops_per_s_of_device": self.flops_per_s_of_device,
            "model_flops_utilisation": self.utilisation,
        }

    def rows(self) -> list[tuple[str, str]]:
        """For people."""
        rate = rates(self.samples_per_s, self.tokens_per_s)
        tera = self.flops_per_s_of_device / 1e12
        return [
            ("throughput", rate),
            ("utilisation", f"{tera:.4g} TFLOP/s a device, {self.utilisation:.1%} of the peak"),
        ]

    def time_for(self, tokens: float, devices: int) -> str:
        """A sentence on how long so many tokens take."""
        if self.tokens_per_s is None:
            return ""
        seconds = tokens / self.tokens_per_s
        return f"{duration(round(seconds * 1e9))}, {devices * seconds / 3600:,.0f} device-hours"


def throughput(graph: Graph, topology: Topology, time_ns: int, precision: str) -> Throughput:
    """Of an iteration of a graph that takes so long.

    Parameters
    ----------
    graph
        As it is trained, of one micro-batch.
    topology
        The machine.
    time_ns
        Of an iteration.
    precision
        Of products of what is not stored in fewer bits: a key of `Device.peak_flops`.
    """
    seconds = max(time_ns, 1) / 1e9
    work = Work.of(graph)
    stored = {op.output.dtype for op in graph.operators}
    used = next((its for its in NARROW if its in stored), precision)
    peak = sum(d.peak_flops.get(used, d.peak_flops["float32"]) for d in topology.devices)
    return Throughput(
        work.samples / seconds,
        None if work.tokens is None else work.tokens / seconds,
        work.flops,
        work.flops / seconds / len(topology.devices),
        work.flops / seconds / peak,
    )


def rates(samples_per_s: float, tokens_per_s: float | None) -> str:
    """``12.5 samples/s, 1,600 tokens/s``."""
    said = f"{_number(samples_per_s)} samples/s"
    return said if tokens_per_s is None else f"{said}, {_number(tokens_per_s)} tokens/s"


def _number(value: float) -> str:
    """``12,345``, ``123.4``."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
