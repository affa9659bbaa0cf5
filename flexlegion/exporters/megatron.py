"""A division of training as a shell script that starts Megatron-LM's ``pretrain_gpt.py``.

Options are those of ``megatron/training/arguments.py``, and of the configurations from which that
file makes options, in Megatron-LM core_v0.19.0 (commit 5be9626).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.exporters.decoder import Activation
from flexlegion.exporters.job import Job, System, decay_of, is_coupled, layers_of
from flexlegion.exporters.nearest import Nearest
from flexlegion.exporters.spelling import comment
from flexlegion.objective.optimizers import SGD, Adam
from flexlegion.spmd.ways import Ways

_PADDED = 128  # of which a vocabulary's part on a device is a multiple, unless told otherwise
# Without any of these options a network's function is a GELU: fused with its bias by tanh, else
# exact.
_ACTIVATIONS: dict[tuple[Activation, bool], tuple[str, ...]] = {
    ("gelu_tanh", False): (),
    ("gelu", False): ("--no-bias-gelu-fusion",),
    ("squared_relu", False): ("--squared-relu",),
    ("silu", True): ("--swiglu",),
    ("quick_gelu", True): ("--quick-geglu",),
}
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}

Options = list[tuple[str, object] | tuple[str]]


class Megatron(System):
    """Megatron-LM."""

    name = "megatron"
    version = "Megatron-LM core_v0.19.0"
    runner = "megatron"
    again = ("none", "attention", "full", "blocks")
    shards: ClassVar[Mapping[int, int]] = {1: 1, 2: 2, 3: 3}

    def check(self, job: Job) -> None:
        super().check(job)
        block, optimizer = job.decoder.block, job.training.optimizer
        if (block.activation, block.gated) not in _ACTIVATIONS:
            gated = "gated networks" if block.gated else "networks"
            raise UserError(f"megatron has no {gated} of {block.activation} in its blocks")
        if block.activation == "gelu_tanh" and not block.bias:
            raise UserError("megatron has no gelu_tanh behind a dense layer without a bias")
        if isinstance(optimizer, SGD) and optimizer.nesterov:
            raise UserError("megatron has no Nesterov momentum; leave nesterov out")
        if job.decoder.positions and block.base is not None:
            raise UserError("megatron has trained or rotary positions, not both")

    def refusal(self, job: Job, ways: Ways) -> str | None:
        block, tensor = job.decoder.block, ways.tensor
        if block.kv_heads % tensor and tensor % block.kv_heads:
            return f"tensor parallelism of {tensor} does not divide {block.kv_heads} kv_heads"
        if block.experts and tensor > 1 and not ways.sequence:
            return "experts and tensor parallelism need sequence parallelism"
        return super().refusal(job, ways)

    def lost(self, job: Job, ways: Ways) -> list[str]:
        found = []
        padded = _padded(job, ways)
        if padded != job.decoder.vocabulary:
            found.append(
                f"the vocabulary of {job.decoder.vocabulary:,} tokens is padded to {padded:,}"
            )
        training = job.training
        if training.precision != "fp32" and training.storage == "fp32":
            found.append(
                f"products in {training.precision} of activations in fp32: computed in fp32, "
                "unless storage is bf16 or fp16"
            )
        if is_coupled(job):
            found.append("weights decay as of adamw, not by a penalty")
        if decay_of(job):
            found.append("biases and normalisations do not decay")
        if ways.again == "blocks":
            found.append("of every stage, the first half of the blocks is computed again")
        return found

    def text(self, job: Job, nearest: Nearest, title: Sequence[str]) -> str:
        ways = nearest.ways
        groups = {
            "MODEL": list(_model(job)),
            "TRAINING": list(_training(job, ways)),
            "PARALLELISM": list(_parallelism(nearest)),
        }
        lines = [
            "#!/usr/bin/env bash",
            *(f"# {comment(line)}".rstrip() for line in title),
            "#",
            f"# Options are those of {self.version}. Run this in its folder, on every node with",
            "# NODE_RANK and MASTER_ADDR. What is given to this script are options about data and",
            "# logs, as --data-path; without any, tokens are made up.",
            "set -euo pipefail",
            "",
            *_environment(ways),
            "LAUNCH=(",
            f"  --nproc-per-node {job.nodes[0]}",
            f"  --nnodes {len(job.nodes)}",
            '  --node-rank "${NODE_RANK:-0}"',
            '  --master-addr "${MASTER_ADDR:-localhost}"',
            '  --master-port "${MASTER_PORT:-29500}"',
            ")",
        ]
        for name, options in groups.items():
            lines += [f"{name}=(", *(f"  {_spelt(option)}" for option in options), ")"]
        vocabulary = job.decoder.vocabulary
        lines += [
            f"DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size {vocabulary})",
            "if (($#)); then",
            '  DATA=("$@")',
            "fi",
            "",
            'torchrun "${LAUNCH[@]}" pretrain_gpt.py '
            + " ".join(f'"${{{name}[@]}}"' for name in (*groups, "DATA")),
        ]
        return "\n".join(lines) + "\n"


def _environment(ways: Ways) -> list[str]:
    """What tensor and context parallelism need of CUDA on GPUs before Blackwell, but not FSDP."""
    alone = ways.tensor * ways.context > 1 and ways.shards < 2
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1", ""] if alone else []


def _spelt(option: tuple[object, ...]) -> str:
    """An option of numbers and words alone, as a shell reads it."""
    return " ".join(f"{its:g}" if isinstance(its, float) else str(its) for its in option)


def _padded(job: Job, ways: Ways) -> int:
    multiple = _PADDED * ways.tensor
    return ceil(job.decoder.vocabulary / multiple) * multiple


def _model(job: Job) -> Iterator[tuple[object, ...]]:
    model, block = job.decoder, job.decoder.block
    yield "--num-layers", model.layers
    yield "--hidden-size", model.hidden
    yield "--num-attention-heads", block.heads
    if block.head_width * block.heads != model.hidden:
        yield "--kv-channels", block.head_width
    if block.kv_heads != block.heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", block.kv_heads
    yield "--ffn-hidden-size", block.ffn
    yield "--seq-length", model.steps
    yield "--max-position-embeddings", max(model.positions, model.steps)
    if block.base is not None:
        yield "--position-embedding-type", "rope"
        yield "--rotary-base", round(block.base)
    else:
        yield "--position-embedding-type", "learned_absolute" if model.positions else "none"
    if block.rms:
        yield "--normalization", "RMSNorm"
    yield "--norm-epsilon", block.epsilon
    for word in _ACTIVATIONS[block.activation, block.gated]:
        yield (word,)
    if not block.bias:
        yield ("--disable-bias-linear",)
        if block.qkv_bias:
            yield ("--add-qkv-bias",)
    if not model.tied:
        yield ("--untie-embeddings-and-output-weights",)
    yield "--hidden-dropout", block.dropout
    yield "--attention-dropout", block.attention_dropout
    if block.experts:
        yield "--num-experts", block.experts
        yield "--moe-router-topk", block.chosen
        yield "--moe-router-load-balancing-type", "none"
        yield ("--moe-grouped-gemm",)


def _training(job: Job, ways: Ways) -> Iterator[tuple[object, ...]]:
    training, optimizer = job.training, job.training.optimizer
    yield "--micro-batch-size", job.micro_batch(ways)
    yield "--global-batch-size", job.batch
    yield "--train-iters", '"${TRAIN_ITERS:-1000}"'
    if isinstance(optimizer, Adam):
        yield "--optimizer", "adam"
        yield "--adam-beta1", optimizer.beta1
        yield "--adam-beta2", optimizer.beta2
        yield "--adam-eps", optimizer.epsilon
    elif isinstance(optimizer, SGD):
        yield "--optimizer", "sgd"
        yield "--sgd-momentum", optimizer.momentum
    yield "--lr", optimizer.lr
    yield "--lr-decay-style", "constant"
    yield "--weight-decay", decay_of(job)
    yield "--clip-grad", optimizer.clip_norm or 0.0
    if training.storage != "fp32":
        yield (f"--{training.storage}",)


def _parallelism(nearest: Nearest) -> Iterator[tuple[object, ...]]:
    ways = nearest.ways
    yield "--tensor-model-parallel-size", ways.tensor
    if ways.sequence:
        yield ("--sequence-parallel",)
    yield "--pipeline-model-parallel-size", ways.pipeline
    layers = layers_of(nearest)
    if len(set(layers)) > 1:
        runs = "|".join("t" * count for count in layers)
        yield "--pipeline-model-parallel-layout", f"'E{runs}L'"
    elif ways.runs > 1:
        yield "--num-virtual-stages-per-pipeline-rank", ways.runs
    if ways.context > 1:
        yield "--context-parallel-size", ways.context
    if ways.expert > 1:
        yield "--expert-model-parallel-size", ways.expert
    if ways.shards == 1:
        yield ("--use-distributed-optimizer",)
    elif ways.shards > 1:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", _SHARDED[ways.shards]
        yield "--ckpt-format", "fsdp_dtensor"
    if ways.shards:
        yield ("--overlap-grad-reduce",)
        yield ("--overlap-param-gather",)
    if ways.again == "attention":
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", "core_attn"
    elif ways.again == "full":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform"
        yield "--recompute-num-layers", 1
    elif ways.again == "blocks":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "block"
        yield "--recompute-num-layers", ceil(max(layers) / 2)
