"""`export` for Megatron-LM and torchtitan: the nearest division, the file, and what is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.analysis.configuration import ExportedConfiguration
from flexlegion.base.errors import UserError
from flexlegion.cli.main import main
from flexlegion.objective.optimizers import AdamW
from flexlegion.spmd.ways import Ways
from flexlegion.zoo import build

SIZES: dict[str, Any] = {"layers": 8, "hidden": 64, "heads": 8, "steps": 64, "vocabulary": 1024}
SPARSE = "sparse_categorical_crossentropy"
LLAMA = {"kv_heads": 4, "ffn": 96}
EXPERTS = LLAMA | {"experts": 8}


def network(name: str = "llama", batch: int = 64, **sizes: Any) -> fl.Model:
    more = {"gpt": {}, "llama": LLAMA, "mixtral": EXPERTS}[name]
    return build(name, batch, **SIZES | more | sizes)


def exported(
    strategy: Any, to: str = "megatron", model: fl.Model | None = None, **training: Any
) -> ExportedConfiguration:
    training = {"optimizer": "adamw", "loss": SPARSE} | training
    done = fl.export(model or network(), "a100x8", strategy, to, **training)
    assert isinstance(done, ExportedConfiguration)
    return done


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        exported(*arguments, **options)
    return str(caught.value)


# --- the nearest division ---


@pytest.mark.parametrize(
    ("words", "model", "micro_batches"),
    [
        ("dp=8 zero=1", "gpt", 1),
        ("dp=8 zero=3 again=full", "llama", 2),
        ("dp=2 tp=4 sp=1 zero=1", "gpt", 1),
        ("dp=4 tp=2 zero=2 again=attention", "llama", 2),
        ("dp=4 cp=2 zero=1", "llama", 1),
        ("dp=2 tp=2 pp=2 sp=1 zero=1 again=blocks", "llama", 4),
        ("dp=2 pp=4 vpp=2 zero=1", "gpt", 8),
        ("dp=8 ep=4 zero=1", "mixtral", 1),
        ("dp=4 tp=2 ep=2 sp=1 zero=1", "mixtral", 1),
    ],
)
def test_a_division_is_nearest_to_itself(words: str, model: str, micro_batches: int) -> None:
    """What words say is a strategy, and of it as such the nearest division has the same words."""
    said = exported(words, model=network(model), micro_batches=micro_batches)
    found = exported(said.strategy, model=network(model), micro_batches=micro_batches)
    assert found.nearest.ways.words == said.nearest.ways.words == words
    named = {name for each in found.nearest.otherwise for name in each.operators}
    assert named <= {"embed"}  # whose table flexlegion never copies
    assert found.nearest.lost == ()
    assert found.program.iteration_time_ns == said.program.iteration_time_ns
    assert said.text.splitlines()[3:] == found.text.splitlines()[3:] or "embed" in named


@pytest.mark.parametrize(
    ("strategy", "micro_batches", "words"),
    [
        ("data", 1, "dp=8 zero=1"),
        ("fsdp", 1, "dp=8 zero=3"),
        ("data+zero2", 2, "dp=8 zero=2"),
        ("fsdp+again", 2, "dp=8 zero=3 again=full"),
        ("megatron", 1, "tp=8 sp=1"),
        ("pipeline", 4, "pp=8"),
    ],
)
def test_known_strategies(strategy: str, micro_batches: int, words: str) -> None:
    done = exported(strategy, model=network("gpt"), micro_batches=micro_batches)
    assert done.nearest.ways.words == words


def test_what_is_lost_is_all_that_differs() -> None:
    """Each operator that is divided or placed otherwise is named, and no other one."""
    done = exported("random:3", model=network("gpt"))
    program = done.nearest.program
    before = fl.simulate(network("gpt"), "a100x8", "random:3", loss=SPARSE, optimizer="adamw")
    named = [name for each in done.nearest.otherwise for name in each.operators]
    assert len(named) == len(set(named))
    for op in program.operators:
        division = program.divisions[op]
        degrees = tuple(division.parts(d) for d in range(len(op.dims)))
        if before.strategy[op.name].degrees != degrees:
            assert op.name in named
    printed = str(done)
    for each in done.nearest.otherwise[:12]:
        assert each.names.split(",")[0].split(" (")[0] in printed
    # In the file, all of it is said.
    for each in done.nearest.otherwise:
        assert each.instead in done.text.replace("\n#   ", " ")


def test_prices_are_those_of_the_simulators() -> None:
    done = exported("3d", micro_batches=8)
    options: dict[str, Any] = {"loss": SPARSE, "optimizer": "adamw", "micro_batches": 8}
    again = fl.simulate(network(), "a100x8", done.strategy, **options)
    assert again.iteration_time_ns == done.iteration_time_ns
    words = done.nearest.ways.words
    program = fl.simulate_program(network(), "a100x8", words, system="megatron", **options)
    assert program.iteration_time_ns == done.program.iteration_time_ns
    assert f"{done.iteration_time_ns / done.given_time_ns:.2f}x" in str(done)


# --- Megatron-LM's script ---


def launched(text: str, folder: Path, *arguments: str, **environment: str) -> list[str]:
    """What a script gives to torchrun."""
    stub = folder / "torchrun"
    stub.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stub.chmod(0o755)
    script = folder / "plan.sh"
    script.write_text(text)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script), *arguments],
        capture_output=True,
        check=True,
        text=True,
        env={"PATH": path, **environment},
    )
    return done.stdout.splitlines()


def options(words: list[str]) -> dict[str, str]:
    """Options with their values; of those without, empty."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word
            assert name not in found
            found[name] = ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def test_a_script_of_megatron(tmp_path: Path) -> None:
    optimizer = AdamW(3e-4, beta2=0.95, weight_decay=0.1, clip_norm=1.0)
    done = exported(
        "dp=2 tp=2 pp=2 sp=1 zero=1 again=full",
        micro_batches=4,
        storage="bf16",
        optimizer=optimizer,
    )
    words = launched(done.text, tmp_path)
    at = words.index("pretrain_gpt.py")
    launch = options(words[:at])
    assert (launch["--nproc-per-node"], launch["--nnodes"]) == ("8", "1")
    assert options(words[at + 1 :]) == {
        "--num-layers": "8",
        "--hidden-size": "64",
        "--num-attention-heads": "8",
        "--group-query-attention": "",
        "--num-query-groups": "4",
        "--ffn-hidden-size": "96",
        "--seq-length": "64",
        "--max-position-embeddings": "64",
        "--position-embedding-type": "rope",
        "--rotary-base": "10000",
        "--normalization": "RMSNorm",
        "--norm-epsilon": "1e-05",
        "--swiglu": "",
        "--disable-bias-linear": "",
        "--untie-embeddings-and-output-weights": "",
        "--hidden-dropout": "0",
        "--attention-dropout": "0",
        "--micro-batch-size": "8",
        "--global-batch-size": "64",
        "--train-iters": "1000",
        "--optimizer": "adam",
        "--adam-beta1": "0.9",
        "--adam-beta2": "0.95",
        "--adam-eps": "1e-08",
        "--lr": "0.0003",
        "--lr-decay-style": "constant",
        "--weight-decay": "0.1",
        "--clip-grad": "1",
        "--bf16": "",
        "--tensor-model-parallel-size": "2",
        "--sequence-parallel": "",
        "--pipeline-model-parallel-size": "2",
        "--use-distributed-optimizer": "",
        "--overlap-grad-reduce": "",
        "--overlap-param-gather": "",
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "1",
        "--mock-data": "",
        "--tokenizer-type": "NullTokenizer",
        "--vocab-size": "1024",
    }
    mine = launched(done.text, tmp_path, "--data-path", "a b", TRAIN_ITERS="7", NODE_RANK="3")
    assert mine[-2:] == ["--data-path", "a b"]
    assert "--mock-data" not in mine
    assert mine[mine.index("--train-iters") + 1] == "7"
    assert mine[mine.index("--node-rank") + 1] == "3"


@pytest.mark.parametrize(
    ("words", "model", "micro_batches", "wanted"),
    [
        (
            "dp=8 zero=3",
            "gpt",
            1,
            {
                "--use-megatron-fsdp": "",
                "--data-parallel-sharding-strategy": "optim_grads_params",
                "--ckpt-format": "fsdp_dtensor",
                "--position-embedding-type": "learned_absolute",
            },
        ),
        ("dp=8 zero=2", "gpt", 2, {"--data-parallel-sharding-strategy": "optim_grads"}),
        ("pp=4 vpp=2", "gpt", 8, {"--num-virtual-stages-per-pipeline-rank": "2"}),
        ("cp=4", "llama", 1, {"--context-parallel-size": "4"}),
        (
            "ep=4 zero=1",
            "mixtral",
            1,
            {
                "--expert-model-parallel-size": "4",
                "--num-experts": "8",
                "--moe-router-topk": "2",
                "--moe-router-load-balancing-type": "none",
                "--moe-grouped-gemm": "",
            },
        ),
        ("again=attention", "gpt", 1, {"--recompute-modules": "core_attn"}),
        (
            "pp=2 again=blocks",
            "gpt",
            4,
            {"--recompute-method": "block", "--recompute-num-layers": "2"},
        ),
    ],
)
def test_options_of_megatron(
    words: str, model: str, micro_batches: int, wanted: dict[str, str], tmp_path: Path
) -> None:
    done = exported(words, model=network(model), micro_batches=micro_batches)
    found = launched(done.text, tmp_path)
    its = options(found[found.index("pretrain_gpt.py") + 1 :])
    assert {name: its.get(name) for name in wanted} == wanted


def test_stages_of_unlike_length(tmp_path: Path) -> None:
    """Seven blocks on two stages are three and four."""
    done = exported("pp=2", model=network("gpt", layers=7), micro_batches=2)
    assert options(launched(done.text, tmp_path))["--pipeline-model-parallel-layout"] in (
        "Etttt|tttL",
        "Ettt|ttttL",
    )


def test_fsdp_and_tensor_parallelism_want_opposite_connections() -> None:
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in exported("tp=2 zero=1").text
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" not in exported("tp=2 zero=3").text
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" not in exported("zero=1").text


def test_what_megatron_has_otherwise() -> None:
    done = exported("tp=2 zero=1", model=network("gpt", vocabulary=1000), optimizer="adamw")
    assert "the vocabulary of 1,000 tokens is padded to 1,024" in done.lost
    assert "biases and normalisations do not decay" in done.lost
    assert "otherwise: the vocabulary" in str(done)
    assert "- the vocabulary of 1,000 tokens is padded to 1,024" in done.text
    tf32 = exported("zero=1", precision="tf32").lost
    assert any(each.startswith("products in tf32") for each in tf32)


# --- torchtitan's configuration ---


def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of torchtitan's names, whose classes keep what they are called with."""
    keeps = SimpleNamespace
    classes = {
        "torchtitan": {},
        "torchtitan.components": {},
        "torchtitan.components.optimizer": {
            "OptimizersContainer": keeps(Config=keeps),
            "ParamGroupConfig": keeps,
        },
        "torchtitan.config": {"ParallelismConfig": keeps},
        "torchtitan.distributed": {},
        "torchtitan.distributed.activation_checkpoint": {
            "FullAC": keeps(Config=lambda: "full"),
            "SelectiveAC": keeps(Config=lambda: "selective"),
        },
        "torchtitan.models": {},
        "torchtitan.models.llama3": {"model_registry": lambda name: name},
        "torchtitan.models.llama3.config_registry": {"llama3_8b": lambda: keeps(training=None)},
        "torchtitan.trainer": {"Trainer": keeps(Config=keeps)},
    }
    for name, its in classes.items():
        module = ModuleType(name)
        vars(module).update(its)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("dataclasses.replace", lambda _, **values: SimpleNamespace(**values))


def made(text: str, monkeypatch: pytest.MonkeyPatch, function: str = "divided") -> Any:
    stubbed(monkeypatch)
    namespace: dict[str, Any] = {}
    exec(compile(text, "plan.py", "exec"), namespace)
    if function == "plan":
        return namespace["plan"]()
    assert "plan" not in namespace
    return namespace["divided"](SimpleNamespace(training=None))


def test_a_configuration_of_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = AdamW(3e-4, beta2=0.95, weight_decay=0.1, clip_norm=1.0)
    done = exported(
        "dp=2 tp=2 pp=2 sp=1 zero=2 again=full",
        "torchtitan",
        micro_batches=4,
        storage="bf16",
        optimizer=optimizer,
    )
    config = made(done.text, monkeypatch)
    assert vars(config.parallelism) == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 2,
        "enable_sequence_parallel": True,
        "context_parallel_degree": 1,
        "expert_parallel_degree": 1,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_microbatch_size": 8,
        "module_fqns_per_model_part": [
            ["tok_embeddings", *(f"layers.{n}" for n in range(4))],
            [*(f"layers.{n}" for n in range(4, 8)), "norm", "lm_head"],
        ],
    }
    assert vars(config.training) == {
        "local_batch_size": 32,
        "global_batch_size": 64,
        "seq_len": 64,
        "max_norm": 1.0,
        "mixed_precision_param": "bfloat16",
        "disable_cuda_graphs": True,
    }
    assert config.activation_checkpoint == "full"
    (group,) = config.optimizer.param_groups
    assert vars(group) == {
        "pattern": ".*",
        "optimizer_name": "AdamW",
        "optimizer_kwargs": {
            "lr": 3e-4,
            "betas": (0.9, 0.95),
            "eps": 1e-8,
            "weight_decay": 0.1,
        },
    }
    assert "torchtitan 0.3.0 has no configuration of a model of these sizes" in str(done)


def test_micro_batches_without_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are steps of gradient accumulation, each of its own local batch."""
    done = exported("data", "torchtitan", micro_batches=2, optimizer="adam")
    assert "ZeRO-2 in place of ZeRO-1" in done.lost
    config = made(done.text, monkeypatch)
    assert config.training.local_batch_size == 4
    assert config.training.max_norm == float("inf")
    assert config.activation_checkpoint is None
    assert config.optimizer.param_groups[0].optimizer_name == "Adam"


def test_a_model_that_torchtitan_has(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama", 16, preset="3-8b", steps=512)
    done = exported("zero=3 again=half", "torchtitan", model=model, storage="bf16")
    config = made(done.text, monkeypatch, "plan")
    assert config.model_spec == "8B"
    assert config.activation_checkpoint == "selective"
    assert config.parallelism.fsdp_reshard_after_forward == "always"
    assert "--module plan --config plan" in done.text


# --- what cannot be said ---


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenet", "decoders of transformers alone, but operator 'c1' (conv2d) of this model"),
        ("dlrm", "operator 'vectors' (concat) of this model is no part of one"),
        ("bert", "this model looks tokens up in 2 tables, not in one"),
    ],
)
@pytest.mark.parametrize("to", ["megatron", "torchtitan"])
def test_other_models_are_refused_by_name(name: str, message: str, to: str) -> None:
    with pytest.raises(UserError) as caught:
        fl.export(build(name, 8), "a100x8", "data", to)
    assert str(caught.value).startswith(to)
    assert message in str(caught.value)


def test_blocks_that_differ() -> None:
    model = build("moe", 64, **SIZES | EXPERTS, every=2)
    assert "block 2 has experts 8, the first one 0" in refusal("data", model=model)


def test_degrees_that_do_not_multiply_up() -> None:
    """Data parallelism over three of eight devices: 64 samples are not divided by three."""
    model = network("gpt")
    data = fl.simulate(model, "a100x8", "data", loss=SPARSE).strategy
    three = fl.Strategy(
        {
            name: fl.ParallelConfig(
                tuple(3 if degree > 1 else 1 for degree in config.degrees),
                config.devices[: 3 if config.tasks > 1 else 1],
            )
            for name, config in data.items()
        }
    )
    said = refusal(three, model=model)
    assert "multiply up to the strategy's 3 devices" in said
    assert "64 samples are no multiple of 3" in said
    assert "tensor parallelism of 3 does not divide 8 kv_heads" in said


@pytest.mark.parametrize(
    ("strategy", "to", "training", "message"),
    [
        ("data", "megatron", {"optimizer": "lazy-adam"}, "megatron has no lazy-adam"),
        ("data", "torchtitan", {"optimizer": "sgd"}, "torchtitan has no optimizer sgd"),
        ("data", "torchtitan", {"storage": "fp16"}, "as fp32 or bf16, not as fp16"),
        ("data", "megatron", {"optimizer": AdamW(ema=0.9)}, "does not say an optimizer's ema"),
        ("tp=2 zero=1", "torchtitan", {}, "it has ZeRO's stages 0, 2, 3, not 1"),
        ("again=half", "megatron", {}, "compute again none, attention, full, blocks, not half"),
        ("tp=8", "torchtitan", {}, "tensor parallelism of 8 does not divide 4 kv_heads"),
        ("pp=8 vpp=2", "megatron", {"micro_batches": 8}, "8 blocks are too few for 16 stages"),
        ("pp=4 vpp=2", "megatron", {"micro_batches": 2}, "do not go round 4 stages"),
        ("tp=3", "megatron", {}, "takes a multiple of 3 devices"),
        ("data", "nemo", {}, "target 'nemo'; choose one of dtensor, jax, megatron, torchtitan"),
    ],
)
def test_refused(strategy: str, to: str, training: dict[str, Any], message: str) -> None:
    assert message in refusal(strategy, to, **training)


def test_gpt_is_not_torchtitans_kind() -> None:
    said = refusal("data", "torchtitan", network("gpt"))
    assert said.endswith(
        "has trained positions, layer normalisation, networks of two layers with gelu_tanh"
    )


# --- the command ---


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.sh"
    asked = ["--model", "gpt", "--size", "layers=4", "--machine", "a100x8", "--batch-size", 16]
    its = [*asked, "--optimizer", "adam", "--to", "megatron", "--out", out]
    assert run("export", "tp=2 zero=1", *its, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["division"] == Ways(4, 2, shards=1).words
    assert (facts["target"], facts["share_as_given"], facts["fits"]) == ("megatron", 1.0, True)
    assert out.read_text().startswith("#!/usr/bin/env bash\n# Strategy dp=4 tp=2 zero=1 for Mega")
    assert run("export", "megatron", *its) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "")
    assert printed.startswith("megatron runs DP 2 x TP 4, sequence-parallel, ZeRO-1")
    assert max(map(len, printed.splitlines())) <= 80
    assert max(map(len, out.read_text().splitlines()[:20])) <= 100


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.sh"
    cnn = ["--model", "lenet", "--machine", "a100x8", "--to", "megatron", "--out", out]
    assert run("export", "data", *cnn) == 2
    assert "operator 'c1' (conv2d) of this model is no part of one" in capsys.readouterr().err
    gpt = ["--model", "gpt", "--size", "layers=2", "--machine", "a100x8", "--to", "megatron"]
    weights = ["--weights", tmp_path / "first.npz"]
    assert run("export", "data", *gpt, "--batch-size", 8, "--out", out, *weights) == 2
    assert "--weights is about programs" in capsys.readouterr().err
    assert not out.exists()
