"""A division of training as a Python file of torchtitan's configurations.

Their fields are those of ``torchtitan/config/configs.py`` and ``torchtitan/trainer.py``, and the
models' sizes those of ``torchtitan/models/llama3``, in torchtitan 0.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.exporters.decoder import Block, Decoder
from flexlegion.exporters.job import Job, System, layers_of
from flexlegion.exporters.nearest import Nearest
from flexlegion.exporters.spelling import docstring, literal
from flexlegion.objective.optimizers import Adam, AdamW
from flexlegion.spmd.ways import Ways

_NAME = "plan"  # of the function that the file has for torchtitan, and of the file
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_MODES = {"full": "FullAC", "half": "SelectiveAC"}


def _llama(layers: int, hidden: int, heads: int, ffn: int, tied: bool = False) -> Decoder:
    block = Block(
        heads=heads,
        kv_heads=8,
        head_width=hidden // heads,
        base=500_000.0,
        bias=False,
        qkv_bias=False,
        attention_dropout=0.0,
        ffn=ffn,
        activation="silu",
        gated=True,
        experts=0,
        chosen=0,
        rms=True,
        epsilon=1e-5,
        dropout=0.0,
    )
    return Decoder(layers, hidden, 128_256, 0, 0, tied, block)


# Of any length of sequences.
_FLAVORS: Mapping[str, Decoder] = {
    "1B": _llama(16, 2048, 32, 8192, tied=True),
    "3B": _llama(28, 3072, 24, 8192, tied=True),
    "8B": _llama(32, 4096, 32, 14_336),
    "70B": _llama(80, 8192, 64, 28_672),
    "405B": _llama(126, 16_384, 128, 53_248),
}


class Torchtitan(System):
    """torchtitan."""

    name = "torchtitan"
    version = "torchtitan 0.3.0"
    runner = "pytorch"
    again = ("none", "full", "half")
    shards: ClassVar[Mapping[int, int]] = {1: 2, 2: 2, 3: 3}

    def check(self, job: Job) -> None:
        super().check(job)
        if not isinstance(job.training.optimizer, Adam):
            raise UserError(
                f"torchtitan has no optimizer {job.training.optimizer.type}; give optimizer "
                f"{Adam.type} or {AdamW.type}"
            )
        if job.training.storage not in _DTYPES:
            raise UserError(
                f"torchtitan stores activations as fp32 or bf16, not as {job.training.storage}"
            )
        block = job.decoder.block
        if not block.rms or not block.gated or block.base is None or job.decoder.positions:
            raise UserError(
                "torchtitan trains decoders of Llama's kind, with rotary positions, RMS "
                "normalisation and gated networks; this one has "
                + ", ".join(_unlike(block, job.decoder))
            )

    def refusal(self, job: Job, ways: Ways) -> str | None:
        model, tensor = job.decoder, ways.tensor
        for size, what in ((model.block.kv_heads, "kv_heads"), (model.vocabulary, "tokens")):
            if size % tensor:
                return f"tensor parallelism of {tensor} does not divide {size:,} {what}"
        if model.block.experts and tensor > 1:
            return "torchtitan does not divide the units of experts"
        if model.tied and ways.pipeline > 1:
            return "torchtitan has no pipelines of models whose output layer is the tokens' table"
        return super().refusal(job, ways)

    def lost(self, job: Job, ways: Ways) -> list[str]:
        found = []
        flavor, training = _flavor(job.decoder), job.training
        if flavor is None:
            found.append(
                f"{self.version} has no configuration of a model of these sizes: make one, and "
                "call divided(...) with it"
            )
        else:
            found.append("rotary positions are scaled as Llama 3.1's for longer texts")
        if ways.again == "half":
            found.append("which products are computed again is SelectiveAC's choice")
        if training.precision != "fp32" and training.storage == "fp32":
            found.append(
                f"products in {training.precision} are a setting of PyTorch, not of this file"
            )
        return found

    def text(self, job: Job, nearest: Nearest, title: Sequence[str]) -> str:
        flavor = _flavor(job.decoder)
        mode = _MODES.get(nearest.ways.again)
        lines = [
            docstring("\n".join([*title, "", *_how_to_run(job, flavor)])),
            "",
            "from dataclasses import replace",
            "",
            "from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig",
            "from torchtitan.config import ParallelismConfig",
        ]
        if mode is not None:
            lines.append(f"from torchtitan.distributed.activation_checkpoint import {mode}")
        if flavor is not None:
            lines += [
                "from torchtitan.models.llama3 import model_registry",
                "from torchtitan.models.llama3.config_registry import llama3_8b",
            ]
        lines += [
            "from torchtitan.trainer import Trainer",
            "",
            "",
            "def divided(config: Trainer.Config) -> Trainer.Config:",
            '    """A model\'s configuration, trained as the strategy says."""',
            "    config.parallelism = ParallelismConfig(",
            *(f"        {name}={value}," for name, value in _parallelism(job, nearest)),
            "    )",
            "    config.training = replace(",
            "        config.training,",
            *(f"        {name}={literal(value)}," for name, value in _training(job, nearest.ways)),
            "    )",
            "    group = ParamGroupConfig(",
            '        pattern=".*",',
            *_optimizer(job),
            "    )",
            "    config.optimizer = OptimizersContainer.Config(param_groups=[group])",
            f"    config.activation_checkpoint = {'None' if mode is None else f'{mode}.Config()'}",
            "    return config",
        ]
        if flavor is not None:
            lines += [
                "",
                "",
                f"def {_NAME}() -> Trainer.Config:",
                f'    """Llama 3 of {flavor} weights, trained as the strategy says."""',
                "    config = llama3_8b()",
                f"    config.model_spec = model_registry({literal(flavor)})",
                "    return divided(config)",
            ]
        return "\n".join(lines) + "\n"


def _unlike(block: Block, model: Decoder) -> Iterator[str]:
    if model.positions or block.base is None:
        yield "trained positions" if model.positions else "no positions"
    if not block.rms:
        yield "layer normalisation"
    if not block.gated:
        yield f"networks of two layers with {block.activation}"


def _flavor(model: Decoder) -> str | None:
    """Which of torchtitan's models it is, but for the length of sequences."""
    its = replace(model, steps=0)
    return next((name for name, known in _FLAVORS.items() if known == its), None)


def _how_to_run(job: Job, flavor: str | None) -> list[str]:
    nodes = len(job.nodes)
    where = f" --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500" if nodes > 1 else ""
    run = f"torchrun --nproc-per-node {job.nodes[0]}{where} -m torchtitan.train"
    if flavor is None:
        return ["For torchtitan 0.3.0, in a file of your configurations: call divided with one."]
    return [
        f"For torchtitan 0.3.0, as {_NAME}.py in a folder of PYTHONPATH:",
        "",
        f"{run} --module {_NAME} --config {_NAME}",
    ]


def _parallelism(job: Job, nearest: Nearest) -> Iterator[tuple[str, str]]:
    """Fields, and expressions for their values."""
    ways = nearest.ways
    replicated = ways.shards == 0
    values: dict[str, object] = {
        "data_parallel_replicate_degree": ways.data if replicated else 1,
        "data_parallel_shard_degree": 1 if replicated else ways.data,
        "fsdp_reshard_after_forward": "always" if ways.shards == 3 else "never",
        "tensor_parallel_degree": ways.tensor,
        "enable_sequence_parallel": ways.sequence,
        "context_parallel_degree": ways.context,
        "expert_parallel_degree": ways.expert,
        "pipeline_parallel_degree": ways.pipeline,
    }
    if ways.pipeline > 1:
        values["pipeline_parallel_schedule"] = "Interleaved1F1B" if ways.runs > 1 else "1F1B"
        values["pipeline_parallel_microbatch_size"] = job.micro_batch(ways)
    yield from ((name, literal(value)) for name, value in values.items())
    if ways.pipeline > 1:
        parts = "".join(f"            {part},\n" for part in _parts(layers_of(nearest)))
        yield "module_fqns_per_model_part", f"[\n{parts}        ]"


def _parts(layers: Sequence[int]) -> list[str]:
    """The modules of each run."""
    parts: list[list[str]] = []
    first = 0
    for count in layers:
        parts.append([f'*(f"layers.{{n}}" for n in range({first}, {first + count}))'])
        first += count
    parts[0].insert(0, '"tok_embeddings"')
    parts[-1] += ['"norm"', '"lm_head"']
    return [f"[{', '.join(part)}]" for part in parts]


def _training(job: Job, ways: Ways) -> Iterator[tuple[str, object]]:
    rounds = job.training.micro_batches if ways.pipeline > 1 else 1
    yield "local_batch_size", job.micro_batch(ways) * rounds
    yield "global_batch_size", job.batch
    yield "seq_len", job.decoder.steps
    clip = job.training.optimizer.clip_norm
    yield "max_norm", float("inf") if clip is None else clip
    yield "mixed_precision_param", _DTYPES[job.training.storage]
    if ways.pipeline > 1 or ways.expert > 1:
        yield "disable_cuda_graphs", True  # which there are none of with either


def _optimizer(job: Job) -> list[str]:
    optimizer = job.training.optimizer
    assert isinstance(optimizer, Adam)  # as `check` wants it
    arguments = {
        "lr": optimizer.lr,
        "betas": (optimizer.beta1, optimizer.beta2),
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
    }
    name = "AdamW" if isinstance(optimizer, AdamW) else "Adam"
    spelt = ", ".join(f"{literal(key)}: {literal(value)}" for key, value in arguments.items())
    return [f"        optimizer_name={literal(name)},", f"        optimizer_kwargs={{{spelt}}},"]
