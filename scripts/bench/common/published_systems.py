"""How systems run programs, and how rows say that training was divided."""

from __future__ import annotations

from typing import Any, Literal

from common.published_machines import CannotBeSaidError
from common.published_networks import Row
from common.published_settings import recomputation
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.kernels import Formulas, Kernels, Loss
from flexlegion.objective.precision import PEAKS
from flexlegion.spmd.system import MIB, System
from flexlegion.spmd.ways import Again, Ways

# By how a row's words begin; the longest that fits.
_AGAIN: dict[str, Again] = {
    "none": "none",
    "full": "full",
    "selective": "attention",  # Megatron's: of attention alone (Korthikanti et al. 2022)
    "selective (per op": "half",  # torchtitan's
    "selective (every": "blocks",
    "checkpoint": "full",
    "except last": "full",  # torchgpipe's: all micro-batches but the last one
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
# OneFlow computes losses in single precision, on a copy, unless it is told that they are wanted in
# half, as its GPT of 2021 tells it (OneFlow-Benchmark, oneflow_gpt/model.py, amp_white_identity)
# and its GPT-2 of 2020 does not (gpt-2/src/model.py, train.py).
_LOSS_BY_STEPS = ("OneFlow 0.3b2",)
# Systems that reduce gradients behind the backward pass: Megatron-LM until its overlap options.
_BEHIND = ("Megatron-LM", "Megatron-DeepSpeed")
# NVIDIA's BERT for PyTorch collects a gigabyte before it reduces, which is all of BERT-base
# (DeepLearningExamples, run_pretraining.py: message_size=250000000).
_BEHIND_OF_BERT = ("ngc-pytorch",)
# Whose batch normalization is a kernel of its own. OneFlow's scripts ask for the one that goes on
# with a sum and a ReLU (DLPerf, resnet50v1.5/scripts/rn50_train.sh), NVIDIA's MXNet has it.
_SEPARATE = ("ytorch", "yTorch", "ensor")
# Without XLA, as its scripts were run: GELU, normalization and dropout are formulas of operations
# (DeepLearningExamples, TensorFlow/LanguageModeling/BERT/modeling.py, and tf.contrib.layers).
_BY_STEPS = ("ngc-tensorflow1",)
# GPT-2 of transformers: its GELU is a formula (activations.py, NewGELUActivation), all else is not.
_GELU_BY_STEPS = ("PyTorch Lightning",)
# PReLU's slopes have a gradient for each element first, which is summed then: PyTorch's
# (weight_grad_collector) and OneFlow's kernels (broadcasted_alpha_diff).
_REPEATED = ("arcface_torch", "OneFlow 0.3.4")
# What the host takes to issue a kernel. BigScience's runs on 40 nodes and more hung unless each was
# waited for (tr11-176B-ml, chronicles-prequel.md: CUDA_LAUNCH_BLOCKING=1).
_ISSUE_NS = 8_000
_WAITING = ("Megatron-DeepSpeed",)
# Whose products add up gradients of micro-batches: NeMo's gradient_accumulation_fusion
# (conf/training/gpt3/5b.yaml), llm.c's matmul_backward.
_ADDED_BY_PRODUCTS = ("NeMo", "llm.c")
# Plain torch.optim, as it was until 2021: a kernel an operation and weight.
_UPDATES_BY_STEPS = (
    *("PyTorch, InsightFace arcface_torch", "pytorch"),
    "PyTorch Lightning ddp",  # whose Adam is torch.optim's (benchmark/gpt/model.py, get_optimizer)
)


def ways_of(row: Row) -> Ways:
    """How training was divided."""
    its: dict[str, Any] = row["parallel"]
    if None in (row["hardware"]["gpus"], row["global_batch"], *ways_known(row)):
        raise CannotBeSaidError("GPUs, batch, or how they were divided was not published")
    nodes = -(-row["hardware"]["gpus"] // (row["hardware"]["gpus_per_node"] or 8))
    again = again_of(row)
    if again == "attention" and attends_at_once(row):
        again = "blocks"  # there are no scores to compute again: IBM's takes some of the blocks
    split = its.get("fc") is not None and "split" in its["fc"]
    return Ways(
        data=its["dp"],
        tensor=its["tp"],
        pipeline=its["pp"],
        context=its.get("cp") or 1,
        expert=its.get("ep") or 1,
        runs=its.get("vpp") or 1,
        sequence=bool(its.get("sp")),
        shards=its.get("zero") or 0,
        again=again,
        tables="rows" if "tables" in its or "DLRM" in row["model"]["name"] else "copied",
        classes=split and its["dp"] > 1,
        replicas=nodes if "hsdp" in its else 1,
    )


def ways_known(row: Row) -> tuple[int | None, ...]:
    """Data, tensor and pipeline parallelism, as far as published."""
    its = row["parallel"]
    return its.get("dp"), its.get("tp"), its.get("pp")


def again_of(row: Row) -> Again:
    """What was computed again."""
    said = recomputation(row)
    known = [words for words in _AGAIN if said.startswith(words)]
    if not known:
        raise CannotBeSaidError(f"recomputation: {said}")
    return _AGAIN[max(known, key=len)]


def attends_at_once(row: Row) -> bool:
    """Whether attention is one kernel; rows of models without attention do not say."""
    return row["flash_attention"] is not False


def costs_of(row: Row, storage: str) -> AnalyticCosts:
    """What tasks take: by precision, and by whether attention is one kernel."""
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
            attention=(
                "fused" if attends_at_once(row) else "unfused" if joined == "fused" else "by steps"
            ),
            bias=joined,
            dropout=joined,
            channels="first" if first else "last",
            loss=_loss(row),
            dense=dense,
            normalized="separate" if any(its in row["system"] for its in _SEPARATE) else "fused",
            formulas=_formulas(row),
            # As GShard's reference code, which Alpa's follows (alpa/model/moe.py).
            one_hot=row["model"]["extra"].get("group_size", 0),
            repeated="separate" if any(its in row["system"] for its in _REPEATED) else "fused",
            sampled="sampled" in str(row["parallel"].get("fc")),
            issued_ns=_ISSUE_NS if row["system"].startswith(_WAITING) else 0,
        ),
    )


def _loss(row: Row) -> Loss:
    """How a softmax and its loss read logits."""
    name = row["system"]
    if name.startswith(("Megatron", "NeMo")):
        return "in place"
    steps = name.startswith(_LOSS_BY_STEPS) or not name.startswith(_FUSED_LOSS)
    return "by steps" if steps else "fused"


def _formulas(row: Row) -> Formulas:
    """Which formulas go by steps."""
    if row["system"].startswith(_GELU_BY_STEPS):
        return "gelu by steps"
    return "by steps" if row["system"].startswith(_BY_STEPS) else "fused"


def system_of(row: Row) -> System:
    """What of a system counts."""
    name, precision = row["system"], row["precision"]
    half = "fp16" in precision or "params, reduce" in precision
    behind = _BEHIND + (_BEHIND_OF_BERT if row["model"]["family"] == "bert" else ())
    # Alpa has XLA put collectives on the stream that computes, reduces all gradients together, and
    # gathers weights by 32 MiB (alpa/global_env.py).
    alpa = name.startswith("Alpa")
    return System(
        overlaps=not name.startswith(behind) and not alpa,
        streams=1 if alpa else 2,
        gather_bytes=32 * MIB if alpa else System.gather_bytes,
        update="by steps" if name in _UPDATES_BY_STEPS else "fused",
        gradients="half" if half else "float32",
        weights="half" if "16" in precision else "float32",
        issue_ns=0 if any(word in name for word in _COMPILED) else _ISSUE_NS,
        step_ns=300_000,  # the batch is handed over, the optimizer is called, a loss is asked for
        schedule="gpipe" if row["schedule"] == "gpipe" else "1f1b",
        attention="fused" if attends_at_once(row) else "unfused",
        local_statistics=True,
        scatters=name.startswith(("Megatron", "NeMo")),
        accumulates="product" if name.startswith(_ADDED_BY_PRODUCTS) else "kernel",
        # Megatron's pipeline waits for its requests (megatron/p2p_communication.py), DeepSpeed's
        # sends on the stream that computes (runtime/pipe/p2p.py).
        waits_for_sends=name.startswith(("Megatron", "NeMo")),
    )
