"""The functions of flexlegion that ask about strategies: what they return, and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.analysis.result import Result
from flexlegion.cli.main import main
from flexlegion.known_strategies.registry import STRATEGIES
from flexlegion.searches.registry import SEARCHES

Capture = pytest.CaptureFixture[str]

MACHINE = "p100x4"
FEW: dict[str, Any] = {"proposals": 40, "chains": 2, "seed": 3}
FEW_OPTIONS = ["--proposals", "40", "--chains", "2", "--seed", "3"]


def small(batch_size: int = 16) -> fl.Model:
    """A network of two outputs; the commands know it as ``test_functions.py:small``."""
    net = fl.Model(batch_size)
    x = net.dense(net.input((8,), name="x"), 32, activation="relu", name="hidden")
    classes = net.softmax(net.dense(x, 4, name="classes"), name="softmax")
    value = net.dense(x, 1, name="value")
    net.set_outputs([classes, value])
    net.loss = {"softmax": "sparse_categorical_crossentropy", "value": "mean_squared_error"}
    return net


def command(capsys: Capture, *args: str) -> str:
    """What a command prints."""
    assert main(list(args)) == 0
    return capsys.readouterr().out


class Tables(HTMLParser):
    """The texts of all cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


# Equal to what commands print


@pytest.mark.parametrize("model", ["rnntc", f"{__file__}:small"])
def test_simulate(capsys: Capture, model: str) -> None:
    options = ["--model", model, "--machine", MACHINE, "--strategy", "random:4"]
    options += ["--optimizer", "adam"]
    for algorithm in ("full", "delta"):
        result = fl.simulate(model, MACHINE, "random:4", optimizer=fl.Adam(), algorithm=algorithm)
        args = ["simulate", *options, "--algorithm", algorithm]
        assert json.loads(command(capsys, *args, "--json")) == result.facts()
        assert command(capsys, *args) == f"{result}\n"
        assert_fields(result)


def test_search_and_explain(capsys: Capture, tmp_path: Path) -> None:
    model, path = f"{__file__}:small", str(tmp_path / "s.json")
    args = ["--model", model, "--machine", MACHINE]
    printed = json.loads(command(capsys, "search", *args, *FEW_OPTIONS, "--out", path, "--json"))
    found = fl.search(fl.load_model(model), fl.load_machine(MACHINE), **FEW)
    result = found.facts()
    assert_fields(found)
    for facts in (printed, result):
        assert facts.pop("seconds") > 0
    assert printed.pop("out") == printed["strategy"] == path
    assert printed | {"strategy": "found"} == result
    assert found.strategy.found["loss"] == small().loss
    # What it saves is what the command wrote.
    found.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == Path(path).read_text()
    explained = fl.explain(model, MACHINE, path)
    assert_fields(explained)
    shown = command(capsys, "explain", path, "--model", model)
    assert shown == f"{explained}\n"
    assert json.loads(command(capsys, "explain", path, *args, "--json")) == explained.facts()
    # A result stands for its strategy.
    assert fl.simulate(model, MACHINE, found).iteration_time_ns == found.iteration_time_ns
    assert (
        fl.explain(small(), MACHINE, found).facts()["deviations"] == explained.facts()["deviations"]
    )
    found.save_trace(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_compare(capsys: Capture) -> None:
    args = ["compare", "--model", "mlp", "--machine", MACHINE, *FEW_OPTIONS]
    printed, result = (
        json.loads(command(capsys, *args, "--json")),
        fl.compare("mlp", MACHINE, **FEW),
    )
    facts = json.loads(result.to_json())
    for one in (printed, facts):
        del one["seconds"]
        for row in one["strategies"]:
            row.pop("seconds", None)
    assert printed == facts
    best = min(row["iteration_time_ns"] for row in result.strategies)
    assert result.found.iteration_time_ns == best
    assert fl.simulate("mlp", MACHINE, result).iteration_time_ns == best


def assert_fields(result: Any) -> None:
    """What has a name in JSON has it as an attribute, too."""
    facts = result.facts()
    names = [
        name for name in facts if hasattr(result, name) and name not in ("strategy", "deviations")
    ]
    assert {"iteration_time_ns", "bytes_moved", "peak_memory_bytes", "fits"} <= set(names)
    for name in names:
        assert getattr(result, name) == facts[name]
    assert json.loads(result.to_json()) == json.loads(json.dumps(facts))


# Models without a name


def test_models_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    fl.search(small(), "p100x2", **FEW).save(path)
    strategy = fl.Strategy.load(path)
    assert strategy.found["model"] is None
    assert strategy.fingerprint is not None
    result = fl.simulate(small(64), "p100x2", path)
    assert str(result).startswith("model (batch 64) on p100x2: ")
    with pytest.raises(fl.UserError, match=r"s\.json: this strategy is for another network: "):
        fl.simulate("mlp", "p100x2", path)


def test_two_searches_at_once() -> None:
    """Nothing is kept in the model, so results do not depend on what was asked before."""
    net = small()
    first = fl.search(net, MACHINE, **FEW)
    other = fl.search(net, "p100x2", loss=["sparse_categorical_crossentropy", "huber"], **FEW)
    assert other.iteration_time_ns != first.iteration_time_ns
    assert dict(fl.search(net, MACHINE, **FEW).strategy) == dict(first.strategy)


# Notebooks


def test_html() -> None:
    results: list[Result] = [
        fl.simulate("lenet", MACHINE, "expert"),
        fl.search("lenet", MACHINE, **FEW),
        fl.explain("lenet", MACHINE, "expert"),
        fl.compare("lenet", MACHINE, **FEW),
    ]
    for result in results:
        html = Tables(result._repr_html_())
        assert "table" in html.tags
        # The same texts, however they are laid out.
        words = " ".join(str(result).replace("─", " ").split())
        assert " ".join(" ".join(html.cells).split()) == words


# Mistakes


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: fl.search("lenets", MACHINE), "unknown model 'lenets' (did you mean 'lenet'?); "),
        (lambda: fl.search("lenet", "q100x4"), "q100x4: no such machine file; "),
        (lambda: fl.search("lenet", MACHINE, "soon"), "the budget has to be a time such as 30s, "),
        (lambda: fl.search("lenet", MACHINE, -1), "the budget has to be "),
        (lambda: fl.search("lenet", MACHINE, seed=-1), "the seed has to be at least 0 and below"),
        (lambda: fl.search("lenet", MACHINE, chains=0), "the number of chains has to be 1 to 256"),
        (lambda: fl.search("lenet", MACHINE, search="guess"), "unknown search 'guess'; choose one"),
        (lambda: fl.search("lenet", MACHINE, costs="free"), "unknown costs 'free'; choose one of "),
        (lambda: fl.simulate("lenet", MACHINE, "dta"), "dta: no such strategy file; give a path"),
        (lambda: fl.simulate("lenet", MACHINE, algorithm="fast"), "unknown algorithm 'fast'; "),
        (lambda: fl.simulate("lenet", MACHINE, loss="hinge"), "unknown loss 'hinge'; "),
        (lambda: fl.simulate("lenet", MACHINE, optimizer="lion"), "unknown optimizer 'lion'; "),
        (lambda: fl.explain("lenet", MACHINE, "data", top=0), "the number of groups to show has "),
        (lambda: fl.simulate(fl.Model(4), MACHINE), "the model has no layers"),
        (lambda: fl.simulate([1], MACHINE), "simulate: 'model' has to be a Model or a Network or"),
        (lambda: fl.register_strategy("data")(dict), "the strategy 'data' comes with flexlegion; "),
        (lambda: fl.register_search("My search")(dict), "a search's name has to be lower-case "),
    ],
)
def test_mistakes(ask: Any, text: str) -> None:
    with pytest.raises(fl.UserError) as error:
        ask()
    assert str(error.value).startswith(text)


@pytest.fixture
def names_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered meanwhile is forgotten."""
    for registry in (STRATEGIES, SEARCHES):
        monkeypatch.setattr(registry, "_entries", {name: registry[name] for name in registry})


@pytest.mark.usefixtures("names_of_before")
def test_functions_that_return_something_else() -> None:
    @fl.register_strategy("numbers")
    def numbers(graph: object, devices: object) -> Any:
        del graph, devices
        return [1]

    @fl.register_search("nothing")
    def nothing(task: object) -> Any:
        del task

    with pytest.raises(fl.UserError, match="strategy 'numbers': its function returns a list, but"):
        fl.simulate("lenet", MACHINE, "numbers")
    with pytest.raises(fl.UserError, match="search 'nothing': its function returns a NoneType, b"):
        fl.search("lenet", MACHINE, search="nothing", start=["data"])


def test_importing_is_light() -> None:
    """Neither legate nor native code, nor what only searches need."""
    lines = [
        "import sys, flexlegion as fl",
        "assert 'legate' not in sys.modules and 'torch' not in sys.modules",
        "assert 'flexlegion.searches.mcmc' not in sys.modules",
        "assert set(fl.__all__) <= set(dir(fl))",
        "assert all(hasattr(fl, name) for name in fl.__all__)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
