"""Names that a file brings along are data in all that is printed and written."""

from __future__ import annotations

import ast
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Capture, error_of, text_of
from onnx import TensorProto, helper, numpy_helper

import flexlegion as fl

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07\x1b[31m",
    "a\nerror: forged\r\nline",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>&amp;'\"",
    '"+__import__("os").mkdir("ran")+"',
    "\u202eright to left\u2028line\u0085next\x9b31m",
    "$(touch ran)`touch ran`;|\\",
    "${x}{{ 7 * 7 }}{% raw %}\U0001f600",
]
# Which tags a page of ours has is known; no name adds one of these.
FOREIGN = ("img", "iframe", "object", "embed", "base", "form")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an ONNX file in whose names is whatever a file can have there."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(1)
    value = f"in {HOSTILE[1]}"
    nodes, weights = [], []
    first = helper.make_tensor_value_info(value, TensorProto.FLOAT, ["n", 8])
    for i, name in enumerate(HOSTILE):
        weights.append(numpy_helper.from_array(rng.standard_normal((8, 8), "f"), f"w {name}"))
        made = f"{i} {name}"
        nodes.append(helper.make_node("MatMul", [value, f"w {name}"], [made], f"/{name}/MatMul"))
        value = made
    last = helper.make_tensor_value_info(value, TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph(nodes, "g", [first], [last], weights, doc_string=HOSTILE[1])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, folder / "net <b>.onnx")
    return folder


def clean(text: str) -> None:
    """Lines of printable characters, none of which a name has forged."""
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)
        assert not line.startswith("error: forged"), line


class Tags(HTMLParser):
    """The tags of a page, and attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def tags_of(page: str) -> Tags:
    """What a page is made of."""
    tags = Tags()
    tags.feed(page)
    return tags


def test_all_that_is_printed(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Text, notes and errors of every command that shows names; JSON is JSON."""
    monkeypatch.chdir(here)
    net = ["--model", "net <b>.onnx", "--batch-size", "8", "--loss", "mean_squared_error"]
    on = [*net, "--machine", "p100x2"]
    search = ["search", *on, "--proposals", "50", "--chains", "1", "--out", "s.json"]
    commands = [
        search,
        ["simulate", "--strategy", "data", *on],
        ["simulate", "--strategy", "s.json", *on],
        ["plan", "--strategy", "data", *on],
        ["plan", "--sbp", "--strategy", "s.json", *on],
        ["explain", "data", *on],
        ["compare", *on, "--proposals", "50", "--chains", "1"],
        ["what-if", *on, "--vary", "flops=x1,x2", "--proposals", "50", "--report", "w.html"],
        ["simulate", "--runtime", "nccl", "--strategy", "zero=1", *on],
        ["divide", *on],
        ["fits", *on],
        ["export", "s.json", *on, "--to", "dtensor", "--out", "plan.py"],
        ["export", "s.json", *on, "--to", "jax", "--out", "plan_jax.py"],
        ["report", "s.json", *on, "--out", "page.html", "--svg", "p.svg"],
    ]
    for command in commands:
        out, err = text_of(capsys, *command)
        clean(out)
        clean(err)
        if command[0] not in ("plan", "export"):
            out, _ = text_of(capsys, *command, "--json")
            assert json.loads(out)
            clean(out)
    document = json.loads(Path("s.json").read_text())
    document["operators"] = {
        f"x{name}": its
        for name, its in zip(HOSTILE * 9, document["operators"].values(), strict=False)
    }
    Path("other.json").write_text(json.dumps(document))
    clean(error_of(capsys, "simulate", "--strategy", "other.json", *on))
    for name in HOSTILE[:6]:
        clean(error_of(capsys, "simulate", "--strategy", name, *on))
        clean(error_of(capsys, "simulate", "--strategy", "data", *net, "--machine", name))
    assert not {*here.iterdir()} & {here / "ran"}


def test_all_that_is_written(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Pages, pictures, traces, programs: each is what it is, whatever the names."""
    monkeypatch.chdir(here)
    model = fl.from_onnx("net <b>.onnx", batch_size=8)
    model.loss = "mean_squared_error"
    clean(model.summary())
    clean(capsys.readouterr().err)
    result = fl.simulate(model, "p100x2", "data")
    clean(str(result))
    result.save_trace("trace.json")
    assert Path("trace.json").read_text().isascii()
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    report = fl.report_on(model, "p100x2", "data", progress=False)
    plain = fl.Model(8)
    plain.loss = "mean_squared_error"
    plain.dense(plain.input((8,)), 8)
    usual = tags_of(fl.report_on(plain, "p100x2", "data", progress=False).html())
    for html in (report.html(), report._repr_html_(), result._repr_html_()):
        tags = tags_of(html)
        assert not {*tags.tags} & {*FOREIGN}
        assert not tags.handlers
        assert "alert(1)</script>" not in html
    page = tags_of(report.html())
    assert page.tags.count("script") == usual.tags.count("script")
    report.picture.save("p.svg")
    tree = ET.parse("p.svg")
    assert {e.tag.rpartition("}")[2] for e in tree.iter()} <= {
        "svg", "g", "path", "rect", "text", "title", "style", "line", "defs", "marker", "tspan",
        "desc", "circle", "polygon", "polyline",
    }  # fmt: skip
    for to in ("dtensor", "jax"):
        text = fl.export(model, "p100x2", "data", to).text
        called = {n.func.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)
                  and isinstance(n.func, ast.Name)}  # fmt: skip
        assert "__import__" not in called


def test_one_door_prints() -> None:
    """Text with names in it is printed by `flexlegion.base.quoting` alone."""
    root = Path(fl.__file__).parent
    own = {"base/quoting.py", "console/text.py"}  # a table
    own |= {
        f"cli/{what_needs_no_names}.py"
        for what_needs_no_names in ("main", "outcome", "command", "completion", "started")
    }
    found = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"(?<![\w.])print\(", text):
            continue
        tree = ast.parse(text)
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        if any(isinstance(function, ast.Name) and function.id == "print" for function in calls):
            found.add(path.relative_to(root).as_posix())
    assert found <= own, found - own
