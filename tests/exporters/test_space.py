"""What targets cannot express, what is done instead, and searches among what they can."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from exported import BUILDERS, network_named, setting_of

import flexlegion as fl
from flexlegion.analysis.export import ExportedProgram, export, program_of
from flexlegion.analysis.setting import Given, Setting, network_of
from flexlegion.base.errors import UserError
from flexlegion.exporters.space import target_of
from flexlegion.exporters.targets import TARGETS
from flexlegion.known_strategies import named
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.zoo import build


def replaced_by(network: str, to: str, operator: str, config: ParallelConfig) -> tuple[str, str]:
    """Reason and replacement, if one operator is split so and all others by samples."""
    setting = setting_of(network_named(network), 4)
    strategy = named("data", setting.problem)
    done = program_of(Given.inside(setting, strategy.changed({operator: config})), to)
    found = [(each.reason, each.instead) for each in done.replaced if operator in each.operators]
    return found[0] if found else ("", "")


def gpus(*numbers: int) -> tuple[str, ...]:
    return tuple(f"gpu:{number}" for number in numbers)


def test_data_parallelism_is_as_it_is() -> None:
    for to in TARGETS:
        done = export("lenet", "p100x4", "data", to)
        assert done.replaced == ()
        assert done.iteration_time_ns == done.given_time_ns


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"storage": "bf16"}, "stores activations in single precision, not in bf16"),
        (
            {"optimizer": "lazy-adam"},
            "has gradients of whole tables, which do not tell the rows that",
        ),
        ({"precision": "bf16"}, "cannot have products of single precision computed in bf16"),
    ],
)
def test_searches_for_what_no_program_does_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(fl.UserError, match=f"a program for jax {text}"):
        fl.search("mlp", "a100x2", proposals=10, space="jax", **options)


@pytest.mark.parametrize("to", TARGETS)
def test_devices_that_make_no_grid(to: str) -> None:
    config = ParallelConfig((4, 1, 1), gpus(0, 1, 3, 2))
    assert replaced_by("mlp", to, "up", config) == ("its devices make no grid", "4 by sample")
    strided = ParallelConfig((2, 1, 1), gpus(1, 3))
    assert replaced_by("mlp", to, "up", strided) == ("", "")


@pytest.mark.parametrize("to", TARGETS)
def test_convolutions_with_halos(to: str) -> None:
    by_height = ParallelConfig((1, 4, 1, 1, 1), gpus(0, 1, 2, 3))
    reason, instead = replaced_by("convnet", to, "conv2d_1", by_height)
    assert (reason, instead) == ("parts of height read halos", "4 by sample")
    assert replaced_by("convnet", to, "conv2d_2", by_height) == ("", "")  # a kernel of one


def test_jax_divides_what_reads_more_than_its_part() -> None:
    setting = setting_of(network_named("gpt"), 4)
    name = next(
        op.name for op in setting.network.graph.operators if op.kind.type == "multi_head_attention"
    )
    by_length = ParallelConfig((1, 4, 1, 1), gpus(0, 1, 2, 3))
    assert replaced_by("gpt", "jax", name, by_length) == ("", "")
    reason, instead = replaced_by("gpt", "dtensor", name, by_length)
    assert (reason, instead) == ("parts of length read what stands before them", "4 by sample")


def test_uneven_cuts_are_named() -> None:
    setting = setting_of(network_named("mlp"), 3)
    done = program_of(Given.inside(setting, "data"), "dtensor")
    reasons = {each.reason for each in done.replaced}
    assert reasons == {"8 of sample are not cut evenly into 3 parts"}
    assert "8 of sample are not cut evenly into 3 parts" in done.text


@pytest.mark.parametrize("network", BUILDERS)
@pytest.mark.parametrize("to", TARGETS)
def test_searches_within_a_target(network: str, to: str) -> None:
    found = fl.search(
        network_named(network), "p100x4", proposals=200, costs="analytic", space=to, chains=1
    )
    setting = setting_of(network_named(network), 4)
    done = program_of(Given.inside(setting, found.strategy), to)
    assert done.replaced == ()
    assert found.strategy.found["space"] == to
    for operator in setting.problem.graph.operators:
        config = found.strategy[operator.name]
        assert list(config.devices) == [f"gpu:{i}" for i in range(config.tasks)]


def test_unknown_targets() -> None:
    with pytest.raises(UserError, match=r"tensorflow.*choose|tensorflow.*dtensor, jax"):
        target_of("tensorflow", 2)


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("strategy", ["data+again", "data+zero2", "fsdp"])
def test_what_saves_memory_is_not_replaced(to: str, strategy: str) -> None:
    options: dict[str, Any] = {"optimizer": "adam", "micro_batches": 2}
    done = export("gpt", "p100x2", strategy, to, **options)
    assert done.replaced == ()
    assert done.memory.needed < export("gpt", "p100x2", "data", to, **options).memory.needed


def test_classes_that_are_not_cut_evenly() -> None:
    """They are no vocabulary where nothing looks them up."""
    model = fl.Model(8)
    model.dense(model.input((16,)), 10, name="out")
    exported = export(
        model, "p100x4", by_classes(model), "dtensor", loss="sparse_categorical_crossentropy"
    )
    said = "the output of 10 is not cut evenly into 4 parts; give the model 12 classes"
    assert exported.padding is not None
    assert exported.padding.startswith(said)


def by_classes(model: fl.Model) -> fl.Strategy:
    """Data parallelism, but for the loss's statistics of the logits."""
    problem = Setting.of(
        network_of(model, loss="sparse_categorical_crossentropy"), "p100x4"
    ).problem
    strategy = dict(named("data", problem))
    (statistics,) = (op for op in problem.graph.operators if op.kind.type == "logit_statistics")
    degrees = tuple(4 if dim.name == "class" else 1 for dim in statistics.dims)
    strategy[statistics.name] = fl.ParallelConfig(degrees, problem.devices.names)
    return fl.Strategy(strategy)


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_a_vocabulary_that_is_not_cut_evenly(to: str) -> None:
    """It is divided otherwise, and the export says of how many tokens it would not be."""
    sizes = {"layers": 1, "hidden": 32, "heads": 4, "steps": 16}
    options: dict[str, Any] = {"loss": "sparse_categorical_crossentropy"}

    def exported(vocabulary: int) -> ExportedProgram:
        model = build("gpt", 8, vocabulary=vocabulary, **sizes)
        return export(model, "p100x4", "megatron", to, **options)

    uneven = exported(97)
    reasons = {its.reason for its in uneven.replaced}
    assert "97 of row are not cut evenly into 4 parts" in reasons
    said = "the vocabulary of 97 is not cut evenly into 4 parts; give the model 100 tokens"
    assert said in str(uneven).replace("\n", " ")
    assert uneven.facts()["padding"] == uneven.padding
    padded = exported(100)
    assert padded.padding is None
    assert not any("evenly" in its.reason for its in padded.replaced)
    assert padded.strategy["logits"].degrees == (1, 1, 4, 1)


@pytest.mark.parametrize(("to", "package"), [("dtensor", "torch"), ("jax", "jax")])
def test_what_writes_programs_has_to_be_there(
    to: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == package else found(name, *of)
    )
    with pytest.raises(UserError, match=f"package {package}, which is not installed: pip install"):
        export("lenet", "p100x4", "data", to)
