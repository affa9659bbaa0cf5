"""How systems run programs, and how rows say that training was divided."""

from __future__ import annotations

from typing import Any, Literal

from common.published_machines import CannotBeSaidError
from common.published_networks import Row
from flexlegion.cost.analytic import AnalyticCosts, Kernels
from flexlegion.objective.precision import PEAKS
from flexlegion.spmd.system import System
from flexlegion.spmd.ways import Again, Ways

_AGAIN: dict[str, Again] = {
    "none": "none",
    "unknown": "none",
    "full": "full",
    "selective": "attention",  # Megatron's: of attention alone (Korthikanti et al. 2022)
    "selective (per op)": "half",  # torchtitan's
    "selective (every 2nd layer)": "blocks",
}
# Systems that issue a graph or compiled code, where the host is not what one waits for.
_COMPILED = ("OneFlow", "oneflow", "mxnet", "MXNet", "ensor", "Alpa", "llm.c", "compile", "HugeCTR")
# Systems that add biases in the kernels of products, or together with what follows; dropout, too.
_FUSED = (
    *("Megatron", "NeMo", "torchtitan", "llm.c", "lit-gpt", "PyTorch FSDP", "MosaicML"),
    "OneFlow 75f11b8",  # of 2021, for the paper, with Megatron's fused kernels
)
# Systems whose loss is one kernel, written so or compiled.
_FUSED_LOSS = ("llm.c", "torchtitan compile", "lit-gpt", "OneFlow", "oneflow", "Alpa")
# Systems that reduce gradients behind the backward pass: Megatron-LM until its overlap options.
_BEHIND = ("Megatron-LM", "Megatron-DeepSpeed")


def ways_of(row: Row) -> Ways:
    """How training was divided."""
    its: dict[str, Any] = row["parallel"]
    if None in (row["hardware"]["gpus"], row["global_batch"], its["dp"], its["tp"], its["pp"]):
        raise CannotBeSaidError("GPUs, batch, or how they were divided was not published")
    nodes = -(-row["hardware"]["gpus"] // row["hardware"]["gpus_per_node"])
    if "auto" in row["system"] and row["model"]["family"] == "cnn":
        raise CannotBeSaidError('how "auto" divided it was not published')
    again = _AGAIN[row["recompute"]]
    if again == "attention" and row["flash_attention"]:
        again = "blocks"  # there are no scores to compute again: IBM's takes some of the blocks
    split = its.get("fc") is not None and "split" in its["fc"]
    return Ways(
        data=its["dp"],
        tensor=its["tp"],
        pipeline=its["pp"],
        context=its["cp"],
        expert=its["ep"],
        runs=its["vpp"] or 1,
        sequence=bool(its["sp"]),
        shards=its["zero"],
        again=again,
        tables="rows" if "tables" in its else "copied",
        classes=split and its["dp"] > 1,
        replicas=nodes if "hsdp" in its else 1,
    )


def costs_of(row: Row, storage: str) -> AnalyticCosts:
    """What tasks take: by precision, and by whether attention is one kernel."""
    fused = row["flash_attention"] or row["flash_attention"] is None
    precision = "tf32" if row["precision"] == "tf32" else "fp32"
    dense = "float8" if "fp8" in row["precision"] else ""
    if "logits fp32" in row["precision"]:
        dense = "float32"
    joined: Literal["fused", "separate"] = (
        "fused" if row["system"].startswith(_FUSED) else "separate"
    )
    first = "rch" in row["system"] or (storage == "fp32" and "mxnet" in row["system"])
    return AnalyticCosts(
        PEAKS[precision],
        Kernels(
            attention="fused" if fused else "unfused" if joined == "fused" else "by steps",
            bias=joined,
            dropout=joined,
            channels="first" if first else "last",
            loss="fused" if row["system"].startswith(_FUSED_LOSS) else "by steps",
            dense=dense,
        ),
    )


def system_of(row: Row) -> System:
    """What of a system counts."""
    name, precision = row["system"], row["precision"]
    half = "fp16" in precision or "params, reduce" in precision
    return System(
        overlaps=not name.startswith(_BEHIND),
        gradients="half" if half else "float32",
        weights="half" if "16" in precision else "float32",
        issue_ns=0 if any(word in name for word in _COMPILED) else 8_000,
        step_ns=300_000,  # the batch is handed over, the optimizer is called, a loss is asked for
        attention="fused" if row["flash_attention"] else "unfused",
        local_statistics=True,
        scatters=name.startswith(("Megatron", "NeMo")),
    )
