"""Wrong machine files: one sentence that names the file, what is wrong, and what would be right."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import UserError
from flexlegion.cli.main import main
from flexlegion.machine.files import PLATFORMS
from flexlegion.profiling.machines import load_machine

Capture = pytest.CaptureFixture[str]
Change = Callable[[dict[str, Any]], Any]

P100 = json.loads((PLATFORMS / "p100.json").read_text())


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def show(capsys: Capture, spec: str) -> str:
    """What ``flexlegion machine show`` says is wrong."""
    assert main(["machine", "show", spec]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    text = err.removeprefix("error: ").rstrip("\n")
    assert len(text) < 600
    return text


def of_file(capsys: Capture, content: str | bytes | dict[str, Any]) -> str:
    """What it says is wrong with a file of that content."""
    if isinstance(content, dict):
        content = json.dumps(content)
    Path("m.json").write_bytes(content.encode() if isinstance(content, str) else content)
    text = show(capsys, "m.json")
    assert text.startswith("m.json: ")
    return text.removeprefix("m.json: ")


def test_the_file_itself_is_right(capsys: Capture) -> None:
    Path("m.json").write_text(json.dumps(P100))
    assert main(["machine", "show", "m.json"]) == 0
    assert capsys.readouterr().out.startswith("m: 64 devices, 16 nodes\n")


# The file


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("m.json", "m.json: no such machine file; give a path, or one of a100xN, b200xN, gb200xN,"),
        ("p100x04", "p100x04: no such machine file"),
        ("p100x" + "9" * 30, "no such machine file"),
        ("p99x4", "p99x4: no such machine file; give a path, or one of a100xN"),
        ("P100x4", "P100x4: no such machine file"),
        ("", "no such machine file; give a path, or one of a100xN"),
        ("p100", "p100: the number of GPUs is missing; use p100x1 to p100x64"),
        ("p100x0", "p100x0: cannot use 0 GPUs of this machine; use 1 to 4, or a multiple of 4 up"),
        ("p100x5", "p100x5: cannot use 5 GPUs of this machine; use 1 to 4, or a multiple of 4 up"),
        ("k80x68", "cannot use 68 GPUs of this machine; use 1 to 4, or a multiple of 4 up to 64"),
        ("h200x9", "cannot use 9 GPUs of this machine; use 1 to 8, or a multiple of 8 up to 16384"),
        ("x" * 5000, ": cannot be read as a machine file (File name too long); give a JSON file"),
    ],
)
def test_spec(capsys: Capture, spec: str, text: str) -> None:
    if len(spec) > 1000:
        with pytest.raises(UserError) as e:
            load_machine(spec)
        assert text in str(e.value)
    else:
        assert text in show(capsys, spec)


def test_cut_short(capsys: Capture) -> None:
    whole = json.dumps(P100)
    for end in range(0, len(whole), 97):
        assert of_file(capsys, whole[:end]).startswith("not JSON, or cut short (line 1, column ")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, '{"nodes": 1' + "0" * 9999])
def test_absurd_json(capsys: Capture, text: str) -> None:
    of_file(capsys, text)


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\xff\xfe\x00", b"\xff"])
def test_binary(capsys: Capture, content: bytes) -> None:
    assert of_file(capsys, content).startswith("cannot be read as a machine file (it is not text)")


def test_endless_file(capsys: Capture) -> None:
    assert "/dev/zero: cannot be read as a machine file (it is a device, not a file)" in show(
        capsys, "/dev/zero"
    )


@pytest.mark.parametrize("value", [[], 1, None, "p100", True])
def test_another_shape(capsys: Capture, value: object) -> None:
    assert of_file(capsys, json.dumps(value)).startswith(
        "has to be an object with the keys 'schema_version', 'description', 'nodes', "
    )


def test_a_name_twice(capsys: Capture) -> None:
    assert of_file(capsys, '{"nodes": 1, "nodes": 2}').startswith("the name 'nodes' occurs twice")


# Its content: (path to the entry, its new value, what the message says)

DELETE = object()
NVLINK, GPU = ("link_types", "nvlink"), ("device_types", "P100")
CHANGES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("nodes",), DELETE, "the key 'nodes' is missing; it needs schema_version, description"),
    (("node", "devices"), DELETE, "node: the key 'devices' is missing; it needs devices"),
    (("colour",), 1, 'unknown key "colour"; the keys are schema_version, description, nodes,'),
    (("node", "link"), [], 'node: unknown key "link"; the keys are devices, switches, links,'),
    (("network", "nodes"), [], 'network: unknown key "nodes"; the keys are switches, links'),
    ((*NVLINK, "bandwith"), 1, 'link type nvlink: unknown key "bandwith"; the keys are bandwidth'),
    ((*GPU, "cores"), 1, 'device type P100: unknown key "cores"; the keys are kind, memory_bytes'),
    (("schema_version",), 2, "schema_version is 2, but this program reads 1"),
    (("schema_version",), True, "schema_version is true, but this program reads 1"),
    (("description",), 3, "'description' has to be a line of text of at most 1000 characters, but"),
    (("description",), "a\nb", "'description' has to be a line of text"),
    (("description",), "\x1b[31m", "'description' has to be a line of text"),
    (("nodes",), 0, "'nodes' has to be a whole number from 1 to 16384, but is 0"),
    (("nodes",), 1.5, "'nodes' has to be a whole number from 1 to 16384, but is 1.5"),
    (("nodes",), True, "'nodes' has to be a whole number from 1 to 16384, but is true"),
    (("nodes",), "4", "'nodes' has to be a whole number from 1 to 16384, but is \"4\""),
    (("nodes",), 10**9, "'nodes' has to be a whole number from 1 to 16384, but is 1000000000"),
    ((*NVLINK, "bandwidth"), 0, "link type nvlink: 'bandwidth' has to be a whole number of bytes"),
    ((*NVLINK, "bandwidth"), -1, "'bandwidth' has to be a whole number of bytes a second from 1"),
    ((*NVLINK, "bandwidth"), float("nan"), "from 1 to 1e+18, but is NaN"),
    ((*NVLINK, "bandwidth"), float("inf"), "from 1 to 1e+18, but is Infinity"),
    ((*NVLINK, "bandwidth"), 1e30, "from 1 to 1e+18, but is 1e+30"),
    ((*NVLINK, "bandwidth"), 0.25, "from 1 to 1e+18, but is 0.25"),
    ((*NVLINK, "bandwidth"), "fast", 'from 1 to 1e+18, but is "fast"'),
    (
        (*NVLINK, "latency_ns"),
        -1,
        "link type nvlink: 'latency_ns' has to be a whole number of nano",
    ),
    ((*NVLINK, "latency_ns"), 0.5, "of nanoseconds from 0 to 1000000000000, but is 0.5"),
    ((*NVLINK, "shared"), 1, "link type nvlink: 'shared' has to be true or false, but is 1"),
    (NVLINK, 5, "link type nvlink: has to be an object with the keys 'bandwidth', 'latency_ns', b"),
    (("link_types",), [], "'link_types' has to be an object with at least one entry, but is []"),
    (("link_types",), {}, 'node: link gpu:0 - gpu:1: unknown link type "nvlink"; the choices are'),
    (("link_types", "a b"), {}, "a name has to be a letter, then up to 39 letters, digits or _ . "),
    (
        ("device_types",),
        {},
        "'device_types' has to be an object with at least one entry, but is {}",
    ),
    ((*GPU, "kind"), "tpu", "device type P100: 'kind' has to be gpu or cpu, but is \"tpu\""),
    ((*GPU, "kind"), [], "device type P100: 'kind' has to be gpu or cpu, but is []"),
    ((*GPU, "memory_bytes"), 0, "'memory_bytes' has to be a whole number of bytes from 1 to"),
    ((*GPU, "memory_bytes"), 10**30, "'memory_bytes' has to be a whole number of bytes from 1 to"),
    ((*GPU, "memory_bandwidth"), None, "'memory_bandwidth' has to be a whole number of bytes a s"),
    ((*GPU, "peak_flops"), 1e12, "P100: peak_flops: has to be an object with the keys 'float32', "),
    ((*GPU, "peak_flops"), {}, "P100: peak_flops: the key 'float32' is missing; it needs float32"),
    (
        (*GPU, "peak_flops", "fp16"),
        1,
        'unknown key "fp16"; the keys are float32, float64, tfloat32',
    ),
    ((*GPU, "peak_flops", "float32"), 0, "peak_flops: 'float32' has to be a whole number from 1"),
    (("node",), [], "'node' is empty; a machine has at least one kind of nodes"),
    (("node", "devices"), [], "node: 'devices' is empty; a node has at least one device"),
    (("node", "devices"), 4, "node: 'devices' has to be a list, but is 4"),
    (("node", "devices", 0), 4, "entry 0 of 'devices': has to be an object with the keys 'type', "),
    (("node", "devices", 0, "type"), "V100", "'type' has to be one of P100, but is \"V100\""),
    (("node", "devices", 0, "type"), [], "'type' has to be one of P100, but is []"),
    (("node", "devices", 0, "count"), 0, "'count' has to be a whole number from 1 to 65536, but i"),
    (("node", "devices", 0, "count"), 4097, "so far the machine has 65552 devices; it can have at"),
    (("node", "devices", 0, "memory"), "gpu:0", "gpu:0 is a name for devices only; choose another"),
    (("node", "devices", 0, "memory"), [], "a name has to be a letter, then up to 39 letters,"),
    (("node", "switches"), ["gpu:7"], "node: switches: gpu:7 is a name for devices only; choose"),
    (
        ("node", "switches"),
        ["a", "a"],
        "node: the name a stands for more than one memory or switch",
    ),
    (("node", "switches"), ["a/b"], "node: switches: a name has to be a letter, then up to 39"),
    (("node", "switches"), [["a"]], "node: switches: a name has to be a letter, then up to 39"),
    (
        ("node", "switches"),
        [f"s{i}" for i in range(5000)],
        "unknown endpoint 'host:0'; the choices",
    ),
    (("network", "switches"), ["host:0"], "network: the name host:0 stands for more than one"),
    (("node", "links", 0), ["gpu:0", "gpu:9", "nvlink"], "unknown endpoint 'gpu:9'; the choices"),
    (
        ("node", "links", 0),
        ["gpu:0", "gpu:1", "ethernet"],
        'unknown link type "ethernet"; the choi',
    ),
    (
        ("node", "links", 0),
        ["gpu:0", "gpu:1"],
        "node: a link has to be a list of two ends and a li",
    ),
    (
        ("node", "links", 0),
        "gpu:0",
        "node: a link has to be a list of two ends and a link type, as",
    ),
    (
        ("node", "links", 0),
        [0, 1, "nvlink"],
        "node: a link has to be a list of two ends and a link",
    ),
    (("node", "links", 0), ["gpu:0", "gpu:0", "nvlink"], "gpu:0 - gpu:0: leads back to where it"),
    (("node", "links", 0), ["gpu:3", "gpu:2", "nvlink"], "gpu:2 - gpu:3: occurs twice; give one"),
    (("node", "links"), {}, "node: 'links' has to be a list, but is {}"),
    (
        ("network", "links", 0),
        ["gpu:0", "host:0", "pcie"],
        "both ends are in a node; one has to be",
    ),
    (
        ("network", "links", 0),
        ["nic", "ib", "pcie"],
        "network: link nic - ib: unknown endpoint 'nic'",
    ),
    (("network", "links"), [], "no route from gpu:0 to gpu:4; connect them by a link, by switches"),
    (("network",), DELETE, "no route from gpu:0 to gpu:4; connect them by a link, by switches"),
    (("network",), [], "network: has to be an object with the keys 'switches', 'links', "),
    (("node",), [P100["node"]] * 2, "leave 'nodes' out where 'node' is a list; each entry has a"),
    (("node", "links", 0, 0), "gpu:*", "node: link gpu:1 - gpu:1: leads back to where it starts"),
    (("node", "links", 0, 0), "rail:*", "link rail:* - gpu:1: there is nothing of these names; *"),
    (("node", "links", 0, 0), "*", "node: a link has to be a list of two ends and a link type"),
    (("network", "switches"), ["ib", "ib"], "the name ib stands for more than one switch; rename"),
    (("network", "switches", 0), {"name": "ib"}, "entry 0 of 'switches': the key 'nodes' is miss"),
    (("network", "switches", 0), {"name": "ib", "nodes": 0}, "'nodes' has to be a whole number"),
    (
        ("network", "switches"),
        ["ib", {"name": "leaf", "nodes": 4}, {"name": "row", "nodes": 6}],
        "switches of 4 and of 6 nodes; groups have to be made of whole smaller ones, so take a mu",
    ),
    (
        ("network", "switches"),
        [{"name": "ib", "nodes": 4}],
        "no route from gpu:0 to gpu:16; connect them by a link",
    ),
    (("network", "torus"), 3, "torus: has to be an object with the keys 'switch', 'shape', 'link'"),
    (
        ("network",),
        {"torus": {"switch": "ib", "shape": [4, 4], "link": "infiniband"}},
        "torus: 'switch' has to be a switch of every node: host:0, host:1, but is \"ib\"",
    ),
    (
        ("network",),
        {"torus": {"switch": "host:0", "shape": [4, 5], "link": "infiniband"}},
        "torus: 'shape' has to be up to 6 extents from 1 to 32 whose product is 16, the nodes, but",
    ),
    (
        ("network",),
        {"torus": {"switch": "host:0", "shape": [4, 4], "link": "ethernet"}},
        "torus: 'link' has to be one of nvlink, pcie, qpi, infiniband, but is \"ethernet\"",
    ),
    (
        ("network", "torus"),
        {"switch": "host:0", "shape": [4, 4], "link": "infiniband"},
        "network: a torus joins all nodes; leave its switches and links out",
    ),
    (("node", "routes"), ["gpu:0"], "node: a route has to be a list of names, as in ["),
    (("node", "routes"), [[]], "has to name at least the two devices that it connects"),
    (("node", "routes"), [["gpu:0", "gpu:1", "gpu:0"]], "is cyclic, for it passes gpu:0 twice"),
    (("node", "routes"), [["gpu:0", "host:1", "gpu:2"]], "no link connects gpu:0 and host:1; add"),
    (("node", "routes"), [["gpu:0", "host:0"]], "ends at the switch host:0; a route leads from a"),
    (("node", "routes"), [["gpu:0", "gpu:1"]] * 2, "is the second route from gpu:0 to gpu:1; keep"),
]


@pytest.mark.parametrize(("keys", "value", "text"), CHANGES)
def test_content(capsys: Capture, keys: tuple[Any, ...], value: Any, text: str) -> None:
    changed = copy.deepcopy(P100)
    place = changed
    for key in keys[:-1]:
        place = place[key]
    if value is DELETE:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    assert text in of_file(capsys, changed)


def test_too_many_switches(capsys: Capture) -> None:
    changed = copy.deepcopy(P100)
    changed["node"]["switches"] += [f"s{i}" for i in range(20000)]
    assert of_file(capsys, changed) == (
        "16 nodes have 320048 switches; a machine has at most 262144"
    )


def test_memories_of_different_sizes(capsys: Capture) -> None:
    changed = copy.deepcopy(P100)
    changed["device_types"]["B"] = {**changed["device_types"]["P100"], "memory_bytes": 5}
    changed["node"]["devices"] = [
        {"type": "P100", "count": 4, "memory": "hbm"},
        {"type": "B", "count": 4, "memory": "hbm"},
    ]
    assert "the memory hbm has 5 bytes here, but 17066622976 bytes before; give types" in of_file(
        capsys, changed
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(data=st.data())
def test_any_change_is_right_or_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever stands at whatever place: it loads, or it is a `UserError` of one line."""
    changed = copy.deepcopy(P100)
    changed["nodes"] = 2
    place: Any = changed
    while True:
        key = data.draw(
            st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))
        )
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(JSON)
    path = tmp_path_factory.mktemp("m") / "m.json"
    path.write_text(json.dumps(changed))
    message = ""
    try:
        load_machine(path)
    except UserError as e:
        message = str(e)
    assert not message or message.startswith(f"{path}: ")
    assert "\n" not in message
