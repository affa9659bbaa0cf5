"""How a system runs programs: what it overlaps, in what types it sends, what a kernel costs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flexlegion.cost.kernels import FUSED, Attention, Kernels
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import Tensor

MIB = 1 << 20
SentAs = Literal["stored", "float32", "half"]


@dataclass(frozen=True)
class System:
    """What counts of a framework.

    Parameters
    ----------
    overlaps
        Whether gradients of weights are reduced during the backward pass, or behind it.
    streams
        2: collectives run beside computation; 1: in turn with it, on the same stream.
    bucket_bytes
        How much of them makes a collective, at least; 25 MiB as in PyTorch's
        DistributedDataParallel.
    gather_bytes
        The same of weights that are kept in shards. PyTorch's FSDP gathers a block of layers.
    gradients, weights
        In which type they are sent: "stored", as the model computes with them, "float32", or
        "half", in two bytes.
    update
        Whether an optimizer's update is "fused", one kernel for many weights, or each operation of
        its formula is a kernel for each weight, "by steps".
    issue_ns
        What the host takes to issue an operator: so long it takes at least.
    step_ns
        What the host takes for an iteration, while no device computes.
    schedule
        Of micro-batches in a pipeline: "1f1b", or all forward first, "gpipe".
    attention
        Whether attention is one kernel, as `AnalyticCosts` has it; if not, its scores are kept.
    local_statistics
        Whether each device normalizes its own samples of a batch alone: batch normalization that
        computes something else than on one device.
    scatters
        Whether what several devices of a stage have whole is sent to the next stage in parts, one
        by each, and gathered there (Narayanan et al. 2021, section 4.1).
    accumulates
        How gradients of several micro-batches are added up: by a "kernel" of its own for each
        weight, or by the "product" that computes them.
    waits_for_sends
        Whether a stage of a pipeline computes nothing while it sends to another one. Where stages
        have several runs of layers each, they do in any case.
    reserved
        Bytes of each device that are taken by CUDA's context, the libraries, and what lies between
        pieces of memory.
    """

    overlaps: bool = True
    streams: Literal[1, 2] = 2
    bucket_bytes: int = 25 * MIB
    gather_bytes: int = 100 * MIB
    gradients: SentAs = "float32"
    weights: SentAs = "stored"
    update: Literal["fused", "by steps"] = "fused"
    issue_ns: int = 0
    step_ns: int = 0
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    attention: Attention = "fused"
    local_statistics: bool = False
    scatters: bool = False
    accumulates: Literal["kernel", "product"] = "kernel"
    waits_for_sends: bool = False
    reserved: int = 1 << 30

    def gradient_bytes(self, weight: Tensor) -> int:
        """Of an element of a weight's gradient, as it is sent."""
        return _bytes(weight, self.gradients)

    def gathered_bytes(self, weight: Tensor) -> int:
        """Of an element of a weight, as it is gathered."""
        return _bytes(weight, self.weights)

    def kept_inside(self, op: Operator, scores: int) -> int:
        """Bytes that an operator with so many scores of attention keeps for its backward pass."""
        if self.attention == "fused" or not scores:
            return 0
        return scores * op.output.element_bytes

    def is_view(self, op: Operator) -> bool:
        """Whether an operator moves nothing: other shapes of the same elements in their order."""
        return op.kind.type in ("reshape", "flatten")


def _bytes(weight: Tensor, type_: SentAs) -> int:
    """Of an element in that type."""
    return {"stored": weight.element_bytes, "float32": 4, "half": 2}[type_]


PYTORCH = System()


@dataclass(frozen=True)
class Runner:
    """A system with its kernels.

    Parameters
    ----------
    system, kernels
        What they do.
    """

    system: System
    kernels: Kernels


# What programs are run by, as of 2024: all have attention in one kernel.
RUNNERS: Mapping[str, Runner] = {
    "compiled": Runner(System(), FUSED),  # torch.compile, or JAX
    "pytorch": Runner(System(issue_ns=8_000), Kernels(loss="by steps", normalized="separate")),
    "megatron": Runner(
        # Its pipelines wait for what they send and receive unless stages have several runs
        # (megatron/core/pipeline_parallel), and its products add up gradients.
        System(weights="half", scatters=True, accumulates="product", waits_for_sends=True),
        Kernels(dropout="fused", loss="in place"),
    ),
}
