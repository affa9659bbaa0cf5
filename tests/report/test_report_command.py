"""The command ``report``, ``--report`` of others, and pictures: what they write and refuse."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.cli.main import main
from flexlegion.report.html.groups import levels
from flexlegion.report.html.layout import layered
from flexlegion.report.html.measurements import accuracy_page, tune_page
from flexlegion.report.html.picture import SPLITS, _key_width, _keys
from flexlegion.report.html.tracks import measured_tracks, simulated_tracks
from flexlegion.report.html.views import heat_view, times_view
from flexlegion.sim.simulator import CONTENTS
from flexlegion.zoo import build

Capture = pytest.CaptureFixture[str]


def data_of(page: Path | str) -> Any:
    """The figures within a page."""
    text = page.read_text() if isinstance(page, Path) else page
    begin = text.index('id="data">') + len('id="data">')
    return json.loads(text[begin : text.index("</script>", begin)])


def test_the_command_writes_page_and_picture(tmp_path: Path, capsys: Capture) -> None:
    page, picture = tmp_path / "a.html", tmp_path / "a.svg"
    asked = ["expert", "--model", "lenet", "--machine", "p100x4"]
    assert main(["report", *asked, "--out", str(page), "--svg", str(picture), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["simulate", "--strategy", *asked, "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    shown = data_of(page)["facts"]
    assert {key: shown[key] for key in simulated} == simulated
    assert facts["out"] == str(page)
    assert picture.read_text().startswith("<svg ")
    addresses = re.findall(r"\w+://[^\"' <]*", page.read_text())
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # a name, which nothing loads


def test_what_does_not_fit_is_said() -> None:
    page = fl.report_on("transformer", "p100x1", "single", progress=False).html()
    fits = fl.simulate("transformer", "p100x1", "single").fits
    assert ("Does not fit" in page) == (not fits)
    large = fl.load_model("transformer", batch_size=512)
    assert "Does not fit" in fl.report_on(large, "p100x1", "single", progress=False).html()


def test_nothing_to_write_is_said(capsys: Capture) -> None:
    assert main(["report", "data", "--model", "lenet", "--machine", "p100x4"]) == 2
    assert "give --out FILE, --svg FILE, or both" in capsys.readouterr().err


def test_compare_writes_a_report(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "c.html"
    asked = ["--model", "mlp", "--machine", "p100x2", "--proposals", "50", "--chains", "1"]
    assert main(["compare", *asked, "--report", str(page), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    facts = data_of(page)["facts"]
    assert facts["iteration_time_ns"] == compared["iteration_time_ns"]
    names = {row["strategy"] for row in facts["strategies"]}
    assert names == {row["strategy"] for row in compared["strategies"]} - {"found"}


def test_memory_consists_of_what_is_allocated() -> None:
    timeline = fl.simulate("nmt", "p100x4", "gnmt", optimizer="adam").timeline
    for memory, allocated in timeline.allocated_bytes.items():
        contents = timeline.contents_bytes[memory]
        assert tuple(contents) == CONTENTS
        assert sum(contents.values()) == allocated
    # By hand: a dense layer of 4 x 3 and 3 on one of two devices, and Adam's two states.
    model = fl.Model(8)
    model.softmax(model.dense(model.input((4,)), 3))
    contents = fl.simulate(model, "p100x1", "single", optimizer="adam").timeline.contents_bytes
    assert contents["gpu:0"]["weights"] == 4 * 15
    assert contents["gpu:0"]["weight gradients"] == 4 * 15
    assert contents["gpu:0"]["optimizer states"] == 2 * 4 * 15
    assert contents["gpu:0"]["batch"] == 2 * (4 * 8 * 4 + 4 * 8)  # inputs and labels, twice


def test_searches_tell_how_they_went() -> None:
    found = fl.search("lenet", "p100x4", proposals=200, chains=1, progress=False)
    trace = found.result.trace
    assert trace[0][0] <= 1
    assert trace[-1] == (found.proposals, found.iteration_time_ns)
    assert [time for _, time in trace] == sorted((time for _, time in trace), reverse=True)
    again = fl.search("lenet", "p100x4", proposals=200, chains=1, progress=False)
    assert again.result.trace == trace


def test_steps_and_blocks_are_folded() -> None:
    (nmt,) = levels(build("nmt").graph)
    folded = {group.name: group.repeats for group in nmt.groups}
    assert folded["encoder.lstm1.*"] == folded["project.*"] == 40
    blocks, layers = levels(build("inception_v3").graph)
    assert len(blocks.groups) < len(layers.groups) < 150
    for level in (nmt, blocks, layers):
        assert all(a < b for a, b in level.edges)


def test_layers_are_below_what_leads_to_them() -> None:
    edges = [(0, 2), (1, 2), (2, 3), (0, 3), (3, 4), (0, 4)]
    layout = layered(5, edges, node_width=100, gap=10, bend_width=10)
    assert [layer for _, layer in layout.nodes] == [0, 0, 1, 2, 3]
    assert abs(layout.nodes[0][0] - layout.nodes[1][0]) >= 110
    for (a, b), points in zip(edges, layout.edges, strict=True):
        assert points[0] == layout.nodes[a]
        assert points[-1] == layout.nodes[b]
        assert [layer for _, layer in points] == list(range(points[0][1], points[-1][1] + 1))


def test_a_timeline_of_training_is_read(tmp_path: Path) -> None:
    simulated = fl.simulate("lenet", "p100x2", "data")
    simulated.save_trace(tmp_path / "t.json")
    tracks = measured_tracks(tmp_path / "t.json")
    wanted = simulated_tracks(simulated.timeline)
    busy = {track["name"]: sum(track["track"][1::4]) for track in tracks["devices"]}
    for track in wanted["devices"]:
        assert busy[track["name"]] == sum(track["track"][1::4])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"traceEvents": 1}',
        '{"traceEvents": [1]}',
        '{"traceEvents": []}',
        '{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}',
        '{"traceEvents": [{"ph": "X", "ts": -1, "dur": 1e300, "pid": 1, "tid": 2}]}',
        '{"traceEvents": [{"ph": "X", "ts": NaN, "dur": 1, "pid": 1, "tid": 2}]}',
    ],
)
def test_other_files_are_no_timelines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(fl.UserError, match=str(path)):
        measured_tracks(path)


def test_models_and_results_are_plotted(tmp_path: Path) -> None:
    model = fl.load_model("lenet")
    picture = model.plot("data", "p100x4")
    assert "sample 4" in picture._repr_html_()
    picture.save(tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text() == picture.svg
    found = fl.simulate(model, "p100x4", "expert")
    assert found.plot().svg == fl.simulate(model, "p100x4", found.strategy).plot().svg
    assert "lenet" not in model.plot(found).svg
    with pytest.raises(fl.UserError, match="depends on the machine"):
        model.plot("data")
    with pytest.raises(fl.UserError, match="another network"):
        fl.load_model("alexnet").plot(found)


def finalist(name: str, time: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "iteration_time_ns": time, "measured_iteration_time_ns": time} | more


def test_pages_of_what_was_measured() -> None:
    duel = {"speedups": [1.1, 1.3], "rounds": 2, "won": 2, "median_speedup": 1.2}
    facts = {
        "finalists": [
            finalist("data parallelism", 1200),
            finalist("<b>", 1000, **duel, interval=None, verdict="faster"),
        ],
        "baseline": "data parallelism",
        "chosen": "<b>",
        "reason": "it is faster",
        "rounds": 2,
        "tasks_measured": 3,
        "calibration": {"factor": 1.5, "runtime": 2.0},
        "rest": {"verdict": "at rest: <i>", "restless": False, "drift": 1.0},
        "proposals": 10,
        "seconds": 1.0,
        "gain": 0.02,
        "confidence": 0.99,
    }
    page = tune_page("lenet on 2 CPUs", facts)
    assert "1.20×" in page
    assert "<b>" not in page[page.index("<body>") :].split("<script")[0]
    assert data_of(page)["facts"]["finalists"][1]["name"] == "<b>"
    row = {
        "strategy": "data",
        "iteration_time_ns": 10**6,
        "measured_iteration_time_ns": 1_100_000,
        "measured_interval_ns": [1_090_000, 1_110_000],
        "error": -0.09,
        "calibrated_error": 0.01,
        "difference_ns": {"tasks": 5, "launches": 7, "waits": -5},
        "transfer_time_ns": 0,
    }
    accuracy = facts | {
        "strategies": [row],
        "mean_error": 0.09,
        "worst_error": 0.09,
        "kendall_tau": None,
        "pairs_compared": 0,
        "calibrated": {"mean_error": 0.02, "worst_error": 0.03},
        "reference": row,
        "passes": 3,
        "seed": 0,
    }
    page = accuracy_page("lenet on 2 CPUs", accuracy)
    assert "1.100 ms" in page
    assert page.count("<circle") == 1


def test_known_strategies_are_those_of_compare() -> None:
    its = fl.report_on("gpt", "a100x2", "megatron", progress=False)
    names = {row["strategy"] for row in its.strategies}
    compared = fl.compare("gpt", "a100x2", "0.1s", chains=1, progress=False)
    assert {"megatron", "optcnn", "vocabulary"} <= names
    assert names == {row["strategy"] for row in compared.strategies} - {"placement", "found"}


def test_bars_are_for_what_matters() -> None:
    """Strategies that are far slower do not make all others look alike."""
    its = fl.report_on("gpt", "a100x8", "megatron", progress=False)
    view = times_view(its.strategies, its.facts(), None)
    own = view["bars"][-1]["ns"]
    assert view["beyond"]
    assert view["most"] <= 3 * own
    assert max(bar["ns"] for bar in view["bars"]) > 3 * own


def test_sums_have_a_colour_of_their_own() -> None:
    """Tensor parallelism splits one product by columns, and the next by rows."""
    picture = fl.report_on("gpt", "a100x2", "megatron", progress=False).picture
    kinds = {node["full"]: node["kind"] for node in picture.facts()["nodes"]}
    contract = next(kind for name, kind in kinds.items() if name.endswith("contract"))
    expand = next(kind for name, kind in kinds.items() if name.endswith("expand"))
    assert (expand, contract) == ("P", "R")
    legend = dict(picture.facts()["legend"])
    assert legend["R"] == "what is summed (rows of the weight)"


@pytest.mark.parametrize("kinds", [["SP"], ["S", "SA", "SP", "XR"], list(SPLITS)])
def test_a_narrow_picture_shows_its_whole_legend(kinds: list[str]) -> None:
    """Four kinds of splits did not fit beside each other below AlexNet's, and were cut off."""
    width = 492
    keys = _keys([(kind, SPLITS[kind]) for kind in kinds], width)
    assert [key["kind"] for key in keys] == kinds
    assert all(key["x"] + _key_width(key["text"]) <= width for key in keys)
    rows: dict[int, list[dict[str, Any]]] = {}
    for key in keys:
        rows.setdefault(key["y"], []).append(key)
    for row in rows.values():
        for one, next_ in pairwise(row):
            assert one["x"] + _key_width(one["text"]) < next_["x"]


def test_equal_devices_are_one_column() -> None:
    timeline = fl.simulate("nmt", "p100x16", "data").timeline
    levels_of = levels(timeline.problem.graph)[-1]
    heat = heat_view(levels_of, timeline)
    assert heat["number"] == 16
    assert heat["devices"] == ["gpu:0", "gpu:1 to gpu:15"]  # the first one loads more
    assert all(len(row["cells"]) == 2 for row in heat["rows"])
    embedded = heat["rows"][0]
    assert embedded["total"] == 16 * embedded["cells"][0]["ns"]


def test_names_of_boxes_tell_them_apart() -> None:
    model = fl.Model(4)
    x = model.input((8,), name="x")
    for name in ("query", "key"):
        x = model.dense(x, 8, name=f"transformer.encoder.stack.attention_of_self_{name}_projection")
    x = model.dense(x, 8, name="transformer.encoder.stack.an_output_that_is_called_at_length")
    model.dense(x, 8, name="short")
    nodes = model.plot("data", "p100x2").facts()["nodes"]
    shown = {node["full"].rpartition(".")[2]: node["name"] for node in nodes}
    assert shown["attention_of_self_query_projection"] == "…of_self_query_projection"
    assert shown["attention_of_self_key_projection"] == "…of_self_key_projection"
    assert shown["short"] == "short"
    assert len(set(shown.values())) == len(shown)
    assert max(map(len, shown.values())) <= 25
