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
        rate = f"{_number(self.samples_per_s)} samples/s"
        if self.tokens_per_s is not None:
            rate += f", {_number(self.tokens_per_s)} tokens/s"
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
    batch = max((tensor.shape[0] for tensor in graph.inputs), default=1) * graph.micro_batches
    looked_up = {op.inputs[0] for op in graph.operators if op.kind.family == "embedding"}
    steps = [t.shape[1] for t in graph.inputs if t in looked_up and len(t.shape) == 2]
    is_text = bool(steps) and all(tensor.dtype == "int32" for tensor in graph.inputs)
    flops = _flops(graph) * graph.micro_batches
    stored = {op.output.dtype for op in graph.operators}
    used = next((its for its in NARROW if its in stored), precision)
    peak = sum(d.peak_flops.get(used, d.peak_flops["float32"]) for d in topology.devices)
    return Throughput(
        batch / seconds,
        batch * max(steps) / seconds if is_text else None,
        flops,
        flops / seconds / len(topology.devices),
        flops / seconds / peak,
    )


def _flops(graph: Graph) -> int:
    """Of one micro-batch, forward and backward."""
    return sum(
        op.kind.flops(op.input_shapes) + op.kind.backward_flops(op.input_shapes)
        for op in trained(graph)
    )


def _number(value: float) -> str:
    """``12,345``, ``123.4``."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
