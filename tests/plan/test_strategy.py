"""Strategies: the built-in ones, and files, of which every fault gets a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import Model, ParallelConfig, Strategy, UserError
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import SHARDING, SUMS
from flexlegion.zoo import ZOO, build

DEVICES = Devices.of(cpus=3)


@pytest.fixture
def graph() -> Graph:
    model = Model(6)
    x = model.conv2d(model.input((8, 8, 1)), 4, 3, name="conv")
    x = model.flatten(x, name="flat")
    model.dense(x, 10, name="fc")
    return model.graph


DEGREES = st.integers(-(2**40), 2**40)


def config(
    degrees: dict[str, int] | list[int], devices: list[str], choices: dict[str, Any]
) -> ParallelConfig:
    named = tuple(degrees) if isinstance(degrees, dict) else None
    values = degrees.values() if isinstance(degrees, dict) else degrees
    return ParallelConfig(tuple(values), tuple(devices), dims=named, **choices)


CONFIGS = st.builds(
    config,
    st.lists(DEGREES, max_size=5) | st.dictionaries(st.text(max_size=8), DEGREES, max_size=5),
    st.lists(st.text(max_size=8), max_size=8),
    st.fixed_dictionaries(
        {},
        optional={
            "sums": st.sampled_from(SUMS),
            "hierarchical": st.booleans(),
            "buffers": st.integers(1, 9),
            "again": st.booleans(),
            "sharding": st.sampled_from(SHARDING),
        },
    ),
)


@given(configs=st.dictionaries(st.text(max_size=12), CONFIGS, max_size=6))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, configs: dict) -> None:
    path = tmp_path_factory.mktemp("s") / "strategy.json"
    Strategy(configs).save(path)
    loaded = Strategy.load(path)
    assert dict(loaded) == configs
    assert list(loaded) == list(configs)
    assert loaded.source == str(path)
    again = path.with_suffix(".again")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_file_has_a_line_an_operator(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    resolve("data", graph, DEVICES).save(path)
    lines = path.read_text().splitlines()
    assert sum('"degrees"' in line for line in lines) == 3
    assert json.loads(path.read_text())["schema_version"] == 2


def test_degrees_are_written_by_name(graph: Graph, tmp_path: Path) -> None:
    """Where the graph is known, and a dimension is split."""
    path = tmp_path / "s.json"
    whole = resolve("single", graph, DEVICES)
    chosen = whole.changed({"fc": ParallelConfig((1, 1, 2, 1), ("cpu:1",) * 2, "shards")})
    chosen.save(path)
    operators = json.loads(path.read_text())["operators"]
    assert operators["conv"] == {"degrees": {}, "devices": ["cpu:0"]}
    assert operators["fc"] == {"degrees": {"in": 2}, "sums": "shards", "devices": ["cpu:1"] * 2}
    assert dict(resolve(path, graph, DEVICES)) == dict(chosen)


def test_degrees_by_name(graph: Graph, tmp_path: Path) -> None:
    """Dimensions that are not named are whole, in any order of names."""
    entry = {"degrees": {"width": 2, "sample": 3}, "devices": ["cpu:0"] * 6}
    path = tmp_path / "s.json"
    rest = {"flat": {"degrees": {}, "devices": ["cpu:2"]}, "fc": {"degrees": [1, 2], "devices": []}}
    rest["fc"]["devices"] = ["cpu:0", "cpu:1"]
    path.write_text(json.dumps({"schema_version": 2, "operators": {"conv": entry} | rest}))
    assert [config.degrees for config in resolve(path, graph, DEVICES).values()] == [
        (3, 1, 2, 1, 1),
        (1, 1, 1),
        (1, 2, 1, 1),
    ]


def test_dimensions_have_different_names() -> None:
    """Of every operator of the zoo, or a file could not tell them apart."""
    for name in ZOO:
        for operator in build(name).graph.operators:
            names = [dim.name for dim in operator.dims]
            assert len(set(names)) == len(names), f"{name} {operator.name}: {names}"


def test_saved_strategy_resolves(graph: Graph, tmp_path: Path) -> None:
    chosen = resolve("random:5", graph, DEVICES)
    chosen.save(tmp_path / "s.json")
    assert dict(resolve(tmp_path / "s.json", graph, DEVICES)) == dict(chosen)
    assert dict(resolve(str(tmp_path / "s.json"), graph, DEVICES)) == dict(chosen)
    assert dict(resolve(chosen, graph, DEVICES)) == dict(chosen)


def test_mapping(graph: Graph) -> None:
    strategy = resolve("model", graph, DEVICES)
    assert list(strategy) == ["conv", "flat", "fc"]
    assert len(strategy) == 3
    assert strategy.devices() == {"cpu:0", "cpu:1", "cpu:2"}
    assert "other" not in strategy


def test_single(graph: Graph) -> None:
    strategy = resolve("single", graph, DEVICES)
    assert strategy["conv"] == ParallelConfig((1, 1, 1, 1, 1), ("cpu:0",))
    assert strategy["fc"] == ParallelConfig((1, 1, 1, 1), ("cpu:0",))


def test_data_parallel(graph: Graph) -> None:
    strategy = resolve("data", graph, DEVICES)
    assert strategy["conv"] == ParallelConfig((3, 1, 1, 1, 1), ("cpu:0", "cpu:1", "cpu:2"))
    assert strategy["flat"] == ParallelConfig((3, 1, 1), ("cpu:0", "cpu:1", "cpu:2"))


def test_model_parallel(graph: Graph) -> None:
    strategy = resolve("model", graph, Devices.of(cpus=2))
    assert [config.devices for config in strategy.values()] == [("cpu:0",), ("cpu:1",), ("cpu:0",)]
    assert all(config.tasks == 1 for config in strategy.values())


def test_gpus_are_preferred(graph: Graph) -> None:
    machine = Devices.of(cpus=4, gpus=2)
    for name in ("single", "data", "model", "random:1"):
        assert all(device.startswith("gpu:") for device in resolve(name, graph, machine).devices())


def test_random_is_a_function_of_the_seed(graph: Graph) -> None:
    same = [dict(resolve("random:11", graph, DEVICES)) for _ in range(2)]
    assert same[0] == same[1]
    assert dict(resolve("random:12", graph, DEVICES)) != same[0]
    assert resolve("random:11", graph, DEVICES).source == "strategy 'random:11'"


def test_random_uses_all_dimensions_and_devices(graph: Graph) -> None:
    strategies = [resolve(f"random:{seed}", graph, DEVICES) for seed in range(60)]
    for operator in graph.operators:
        configs = [strategy[operator.name] for strategy in strategies]
        for d in range(len(operator.output.shape)):
            assert any(config.degrees[d] > 1 for config in configs)
        assert any(len(set(c.devices)) < len(c.devices) for c in configs)
        assert any(list(c.devices) != sorted(c.devices) for c in configs)
        assert any(c.tasks == 2 * len(DEVICES) for c in configs)
        assert {name for c in configs for name in c.devices} == set(DEVICES.names)


@pytest.mark.parametrize(
    "name", ["random:", "random:x", "random:-1", "random:1.5", "random:" + "9" * 5000]
)
def test_random_needs_a_seed(graph: Graph, name: str) -> None:
    with pytest.raises(UserError, match="the seed has to be a number of at most 18 digits, as in"):
        resolve(name, graph, DEVICES)


def test_batch_smaller_than_the_machine() -> None:
    """Each device has a sample; the last ones have none."""
    model = Model(2)
    model.dense(model.input((4,)), 3, name="fc")
    config = resolve("data", model.graph, DEVICES)["fc"]
    assert config.degrees[0] == 2
    assert config.devices == tuple(DEVICES.names[:2])


# Files


def load_text(tmp_path: Path, text: str | bytes) -> str:
    """The message for a file of that content."""
    path = tmp_path / "s.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError) as e:
        Strategy.load(path)
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)
    return str(e.value).removeprefix(f"{path}: ")


def with_entry(entry: object, version: int = 2) -> str:
    return json.dumps({"schema_version": version, "operators": {"fc": entry}})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json: no such strategy file; give the path"):
        Strategy.load(tmp_path / "none.json")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read as a strategy file"):
        Strategy.load(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"schema_version": 2, "operators": {"fc": {"deg', "degrees: 1", "[1, 2", "{} {}"],
)
def test_not_json(tmp_path: Path, text: str) -> None:
    assert load_text(tmp_path, text).startswith("not JSON, or cut short (line 1, column ")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "1" * 10_000])
def test_absurd_json(tmp_path: Path, text: str) -> None:
    load_text(tmp_path, text)


def test_binary(tmp_path: Path) -> None:
    assert "cannot be read as a strategy file" in load_text(tmp_path, b"\x89PNG\r\n\xff\xfe\x00")


@pytest.mark.parametrize(
    "text", ["[]", "1", "null", '"data"', "{}", '{"schema_version": 2}', '{"operators": []}']
)
def test_another_shape(tmp_path: Path, text: str) -> None:
    assert load_text(tmp_path, text).startswith("not a strategy file; it has to be an object with")


@pytest.mark.parametrize("version", [0, 1, 3, "2", None, True, 2.0])
def test_schema_version(tmp_path: Path, version: object) -> None:
    text = json.dumps({"schema_version": version, "operators": {}})
    assert load_text(tmp_path, text) == (
        f"schema_version is {json.dumps(version)}, but this program reads 2"
    )


ENTRIES = [{}, [], 1, None, {"degrees": [1]}, {"degrees": [1], "devices": [], "device": []}]


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry(tmp_path: Path, entry: object) -> None:
    assert load_text(tmp_path, with_entry(entry)) == (
        "operator 'fc' needs the keys 'degrees' and 'devices', and may have 'sums', "
        "'hierarchical', 'buffers', 'again' and 'sharding'"
    )


NO_DEGREES = [1, "1", None, ["1"], [1.0], [True], [None], [[1]]]


@pytest.mark.parametrize("degrees", [*NO_DEGREES, {"sample": "2"}, {"sample": [2]}])
def test_degrees_of_another_type(tmp_path: Path, degrees: object) -> None:
    text = with_entry({"degrees": degrees, "devices": ["cpu:0"]})
    assert load_text(tmp_path, text) == (
        "operator 'fc': 'degrees' has to be an object of integers by the dimensions' names, as in "
        '{"sample": 2}, or a list of one for each dimension'
    )


@pytest.mark.parametrize("sums", ["shard", "", None, 1, ["shards"]])
def test_sums_of_another_kind(tmp_path: Path, sums: object) -> None:
    text = with_entry({"degrees": {}, "devices": ["cpu:0"], "sums": sums})
    assert load_text(tmp_path, text) == (
        f"""operator 'fc': 'sums' has to be "readers" or "shards", but is {json.dumps(sums)}"""
    )


@pytest.mark.parametrize("hierarchical", ["true", None, 1, []])
def test_hierarchical_of_another_type(tmp_path: Path, hierarchical: object) -> None:
    text = with_entry({"degrees": {}, "devices": ["cpu:0"], "hierarchical": hierarchical})
    assert load_text(tmp_path, text) == (
        f"operator 'fc': 'hierarchical' has to be true or false, but is {json.dumps(hierarchical)}"
    )


@pytest.mark.parametrize("devices", [0, "cpu:0", None, {}, [0], [["cpu:0"]], [None]])
def test_devices_of_another_type(tmp_path: Path, devices: object) -> None:
    text = with_entry({"degrees": [1], "devices": devices})
    assert load_text(tmp_path, text) == "operator 'fc': 'devices' has to be a list of names"


def test_the_same_operator_twice(tmp_path: Path) -> None:
    entry = '"fc": {"degrees": [1, 1], "devices": ["cpu:0"]}'
    text = f'{{"schema_version": 2, "operators": {{{entry}, {entry}}}}}'
    assert load_text(tmp_path, text) == "the name 'fc' occurs twice in one object; keep one entry"


def test_save_where_nothing_can_be(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "s.json", tmp_path):
        with pytest.raises(UserError, match="cannot be written"):
            Strategy({}).save(path)


# Against a graph


def entries(graph: Graph) -> dict[str, ParallelConfig]:
    return dict(resolve("single", graph, DEVICES))


def check_fails(configs: dict[str, ParallelConfig], graph: Graph) -> str:
    with pytest.raises(UserError) as e:
        Strategy(configs, "s.json").checked(graph, DEVICES)
    return str(e.value)


def test_unknown_operator(graph: Graph) -> None:
    configs = entries(graph)
    configs["convv"] = configs.pop("conv")
    assert check_fails(configs, graph) == (
        "s.json: the model has no operator 'convv'; did you mean 'conv'?"
    )
    configs["zzz"] = configs.pop("convv")
    assert check_fails(configs, graph) == (
        "s.json: the model has no operator 'zzz'; it has conv, flat, fc"
    )


def test_missing_operators(graph: Graph) -> None:
    configs = entries(graph)
    del configs["flat"]
    assert check_fails(configs, graph) == (
        "s.json: no configuration for operator flat; a strategy has one entry for each operator "
        "of the model"
    )
    assert "operators conv, flat, fc;" in check_fails({}, graph)


def test_bad_entry(graph: Graph) -> None:
    configs = entries(graph) | {"fc": ParallelConfig((1, 11), ("cpu:0",) * 11)}
    assert check_fails(configs, graph) == (
        "s.json: operator 'fc' splits dimension 'channel' into 11 parts, but it has an extent of "
        "10; use at most 10"
    )


def test_unknown_dimension(graph: Graph) -> None:
    configs = entries(graph) | {"fc": ParallelConfig((2,), ("cpu:0",) * 2, dims=("chanel",))}
    assert check_fails(configs, graph) == (
        "s.json: operator 'fc' has no dimension 'chanel' (did you mean 'channel'?); it has sample, "
        "channel, in, part"
    )


def test_degree_beyond_the_extent(graph: Graph) -> None:
    configs = entries(graph) | {"fc": ParallelConfig((145,), ("cpu:0",) * 145, dims=("in",))}
    assert check_fails(configs, graph) == (
        "s.json: operator 'fc' splits dimension 'in' into 145 parts, but it has an extent of 144; "
        "use at most 144"
    )
