"""Texts are written whole or not at all; strategy files say how a search found them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexlegion import ParallelConfig, Strategy, UserError, search, simulate
from flexlegion.base.files import write_text
from flexlegion.known_strategies import resolve
from flexlegion.plan.plan import Plan
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity

CONFIGS = {"fc": ParallelConfig((2, 1), ("cpu:0", "cpu:1"))}
FOUND = {
    "model": {"name": "alexnet", "batch_size": 256},
    "machine": "p100x4",
    "iteration_time_ns": 12_345_678_901,
    "seed": 7,
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def half() -> Iterator[str]:
    """A text whose making fails."""
    yield "half of"
    raise RuntimeError("no more")


# Any text


def test_write(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    write_text(path, "one\nä\n", "text")
    assert path.read_bytes() == "one\nä\n".encode()
    write_text(str(path), (f"{i}\n" for i in range(3)), "text")
    assert path.read_text() == "0\n1\n2\n"
    write_text(path, [], "text")
    assert path.read_text() == ""
    assert names(tmp_path) == ["t.txt"]


def test_a_text_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    with pytest.raises(RuntimeError, match="no more"):
        write_text(path, half(), "text")
    assert names(tmp_path) == []
    path.write_text("old")
    with pytest.raises(RuntimeError, match="no more"):
        write_text(path, half(), "text")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["t.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "s.json"
    Strategy({}).save(path)
    old = path.read_bytes()
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(UserError) as e:
        Strategy(CONFIGS).save(path)
    assert str(e.value) == (
        f"{path}: the strategy cannot be written there (No space left on device); give the name of "
        "a file in a folder that exists"
    )
    assert path.read_bytes() == old
    assert names(tmp_path) == ["s.json"]


def test_readers_see_the_old_text_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("old")

    def looking() -> Iterator[str]:
        for _ in range(3):
            yield "new " * 100_000
            assert path.read_text() == "old"

    with path.open() as reader:
        write_text(path, looking(), "text")
        assert reader.read() == "old"
    assert len(path.read_text()) == 1_200_000


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_of_a_new_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "t.txt", "x", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "t.txt").stat().st_mode) == mode


def test_permissions_of_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("old")
    path.chmod(0o640)
    write_text(path, "new", "text")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is protected from root")
def test_a_protected_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(UserError, match=r"the text cannot be written there \(Permission denied\)"):
        write_text(path, "new", "text")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["t.txt"]


def test_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, path = tmp_path / "link", tmp_path / "folder" / "t.txt"
    link.symlink_to("folder/t.txt")
    for text in ("new", "newer"):  # the link leads nowhere at first
        write_text(link, text, "text")
        assert link.is_symlink()
        assert path.read_text() == text
    assert names(tmp_path / "folder") == ["t.txt"]


def test_what_is_no_regular_file_is_written_directly(tmp_path: Path) -> None:
    write_text("/dev/null", "x", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    code = "from flexlegion import Strategy; Strategy({}).save('/dev/stdout')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    Strategy({}).save(tmp_path / "s.json")
    assert done.stdout == (tmp_path / "s.json").read_bytes()


def test_names_as_long_as_they_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_text(path, "x", "text")
    assert path.read_text() == "x"


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text("t.txt", "x", "text")
    assert names(tmp_path) == ["t.txt"]


# How a strategy was found


def test_found_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    Strategy(CONFIGS, found=FOUND).save(path)
    assert path.read_text() == (
        "{\n"
        '  "schema_version": 2,\n'
        '  "found": {\n'
        '    "model": {\n'
        '      "name": "alexnet",\n'
        '      "batch_size": 256\n'
        "    },\n"
        '    "machine": "p100x4",\n'
        '    "iteration_time_ns": 12345678901,\n'
        '    "seed": 7\n'
        "  },\n"
        '  "operators": {\n'
        '    "fc": {"degrees": [2, 1], "devices": ["cpu:0", "cpu:1"]}\n'
        "  }\n"
        "}\n"
    )
    loaded = Strategy.load(path)
    assert dict(loaded) == CONFIGS
    assert loaded.found == FOUND


def test_without_found(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    Strategy(CONFIGS).save(path)
    assert set(json.loads(path.read_text())) == {"schema_version", "operators"}
    assert Strategy.load(path).found == {}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Of half a character alone, as in "\ud800", JSON makes no text.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(), value, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25)  # files are written to the disk
@given(found=st.dictionaries(st.text(), VALUES, max_size=4))
def test_found_round_trip(tmp_path_factory: pytest.TempPathFactory, found: dict) -> None:
    path = tmp_path_factory.mktemp("s") / "s.json"
    Strategy(CONFIGS, found=found).save(path)
    loaded = Strategy.load(path)
    assert loaded.found == found
    again = path.with_suffix(".again")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1}, b"x"])
def test_found_that_is_no_json(tmp_path: Path, value: object) -> None:
    path = tmp_path / "s.json"
    with pytest.raises(UserError, match=r"s\.json: what was found cannot be written as JSON \("):
        Strategy(CONFIGS, found={"value": value}).save(path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("found", [1, "x", None, [], True])
def test_found_of_another_type(tmp_path: Path, found: object) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"schema_version": 2, "found": found, "operators": {}}))
    with pytest.raises(UserError) as e:
        Strategy.load(path)
    assert str(e.value) == (
        f"{path}: 'found' has to be an object, but is {json.dumps(found)}; it may be left out"
    )


def test_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"schema_version": 2, "operators": {}, "fuond": {}}))
    with pytest.raises(UserError) as e:
        Strategy.load(path)
    assert str(e.value) == (
        f'{path}: unknown key "fuond"; the keys are schema_version, found, granularity, operators'
    )


def test_granularity(tmp_path: Path) -> None:
    """A file says it where it is not the default; plans and simulations are cut by it."""
    path = tmp_path / "s.json"
    data = simulate("mlp", "p100x4", "data")
    graph, devices = data.setting.problem.graph, data.setting.problem.devices
    for granularity in (None, DEFAULT_GRANULARITY):
        Strategy(data.strategy, granularity=granularity).save(path)
        assert "granularity" not in json.loads(path.read_text())
    finely = Granularity(shard_bytes=1, fused_launches=1)
    Strategy(data.strategy, granularity=finely).checked(graph, devices).save(path)
    document = json.loads(path.read_text())
    assert document["granularity"] == {"shard_bytes": 1, "fused_launches": 1}
    loaded = resolve(path, graph, devices)
    assert loaded.granularity == finely
    outputs = data.setting.problem.outputs
    plans = [Plan(strategy, outputs) for strategy in (data.strategy, loaded)]
    # The output layer's weights are small.
    fewest = [min(len(x.devices) for x in p.launches if x.pass_ == "update") for p in plans]
    assert fewest == [1, 4]
    fine = simulate("mlp", "p100x4", path)
    assert fine.setting.problem.granularity == fine.strategy.granularity == finely
    assert fine.iteration_time_ns != data.iteration_time_ns
    found = search("mlp", "p100x4", start=[path], proposals=3, chains=1, progress=False)
    assert found.strategy.granularity == finely
    with pytest.raises(
        UserError, match=r"s\.json: its granularity is Granularity\(shard_bytes=1, "
    ):
        data.setting.problem.checked(Strategy.load(path))
    data.strategy.save(tmp_path / "other.json")
    with pytest.raises(UserError, match=r"other\.json has another granularity than \S+s\.json"):
        search("mlp", "p100x4", start=[path, tmp_path / "other.json"], proposals=3)


@pytest.mark.parametrize(
    ("granularity", "message"),
    [
        (None, "has to be an object of shard_bytes, fused_launches (integers) and keep_tensors "),
        ({"shard_bytes": 1.5}, '(true or false), but is {"shard_bytes": 1.5}; it may be left out'),
        ({"keep_tensors": 1}, '(true or false), but is {"keep_tensors": 1}; it may be left out'),
        ({"shards": 1}, "has to be an object of shard_bytes, fused_launches (integers) and "),
        ({"shard_bytes": -1}, "shards of at least -1 bytes are not possible; choose 0 to "),
        ({"fused_launches": 0}, "0 launches cannot run as one; 1 keeps them apart"),
    ],
)
def test_wrong_granularity(tmp_path: Path, granularity: object, message: str) -> None:
    path = tmp_path / "s.json"
    document = {"schema_version": 2, "granularity": granularity, "operators": {}}
    path.write_text(json.dumps(document))
    with pytest.raises(UserError) as e:
        Strategy.load(path)
    assert str(e.value).startswith(f"{path}: ")
    assert message in str(e.value)


def test_the_version_of_a_file_counts_before_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"schema_version": 3, "operators": {}, "pipeline": {}}))
    with pytest.raises(UserError, match="schema_version is 3, but this program reads 2"):
        Strategy.load(path)
