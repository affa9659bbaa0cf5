"""Commands with micro-batches: where they show, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Capture, error_of, json_of, text_of

MODEL = ["--model", "mlp", "--batch-size", "32", "--micro-batches", "4"]


def test_headings_say_it(capsys: Capture) -> None:
    out, _ = text_of(capsys, "simulate", *MODEL, "--machine", "p100x2")
    assert out.startswith("mlp (batch 32 in 4 micro-batches) on p100x2")
    assert json_of(capsys, "simulate", *MODEL, "--machine", "p100x2")["micro_batches"] == 4


def test_plans_say_it(capsys: Capture) -> None:
    """A plan is that of a round; what is moved is an iteration's."""
    words = [*MODEL, "--machine", "p100x2", "--strategy", "data"]
    out, _ = text_of(capsys, "plan", *words)
    assert out.startswith("the first of 4 micro-batches, and what follows the last\n")
    assert "hidden1.output [0:4 x 0:512]" in out  # 8 samples, of which each GPU has half
    sbp, _ = text_of(capsys, "plan", *words, "--sbp")
    facts = json_of(capsys, "simulate", *words)
    assert f"{facts['bytes_moved'] / 1e6:.3f} MB are moved in an iteration" in sbp


def test_traces_say_which(tmp_path: Path, capsys: Capture) -> None:
    """A task of each; what ends an iteration is there once, as of none."""
    path = tmp_path / "trace.json"
    words = [*MODEL, "--machine", "p100x1", "--strategy", "single"]
    text_of(capsys, "simulate", *words, "--trace", str(path))
    events = json.loads(path.read_text())["traceEvents"]
    rounds: dict[str, list[int | None]] = {}
    for event in events:
        if event["ph"] == "X":
            rounds.setdefault(event["name"], []).append(event["args"].get("micro_batch"))
    assert rounds["forward hidden1 [0]"] == [0, 1, 2, 3]
    assert rounds["backward hidden1 [0]"] == [0, 1, 2, 3]
    assert rounds["update hidden1 [0]"] == [None]


def test_pages_say_which(tmp_path: Path, capsys: Capture) -> None:
    """Of a simulated iteration, and of a file with measured ones."""
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    words = [*MODEL, "--machine", "p100x1"]
    text_of(capsys, "simulate", *words, "--strategy", "single", "--trace", str(trace))
    text_of(capsys, "report", "single", *words, "--measured", str(trace), "--out", str(page))
    text = page.read_text()
    assert "batch 32 in 4 micro-batches" in text
    assert text.count('"hidden1, micro-batch 3"') == 4  # forward and backward, in both
    assert text.count('"hidden1"]') == 2  # update


@pytest.mark.parametrize("to", ["jax", "dtensor"])
def test_exported_programs_have_them(tmp_path: Path, capsys: Capture, to: str) -> None:
    out = tmp_path / "program.py"
    words = [*MODEL, "--machine", "p100x2", "--to", to, "--out", str(out)]
    said = " ".join(" ".join(text_of(capsys, "export", "data", *words)).split())
    assert "takes a whole batch, and brings it through in 4 micro-batches" in said
    assert "4 micro-batches" in out.read_text()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0", "the number of micro-batches is 1 to 4,096, but is 0"),
        ("-2", "the number of micro-batches is 1 to 4,096, but is -2"),
        ("4097", "the number of micro-batches is 1 to 4,096, but is 4097"),
        ("5000", "the number of micro-batches is 1 to 4,096, but is 5000"),
        ("1.5", "--accumulate has to be a whole number, but is '1.5'"),
        ("two", "--accumulate has to be a whole number, but is 'two'"),
        ("3", "a batch of 32 samples cannot be divided into 3 micro-batches"),
    ],
)
def test_options_out_of_range(capsys: Capture, number: str, text: str) -> None:
    words = ["--model", "mlp", "--batch-size", "32", "--machine", "p100x2"]
    assert text in error_of(capsys, "simulate", *words, f"--micro-batches={number}")


@pytest.mark.parametrize("wrong", [0, -1, 1.0, "2", None, True, 4097, [2]])
def test_wrong_buffers_in_files(tmp_path: Path, capsys: Capture, wrong: object) -> None:
    path = tmp_path / "s.json"
    words = ["--model", "mlp", "--batch-size", "32"]
    text_of(capsys, "strategy", *words, "--strategy", "data", "--gpus", "2", "--out", str(path))
    document = json.loads(path.read_text())
    document["operators"]["hidden1"]["buffers"] = wrong
    path.write_text(json.dumps(document))
    said = error_of(capsys, "simulate", "--strategy", str(path), "--machine", "p100x2")
    shown = json.dumps(wrong)
    assert f"operator 'hidden1': 'buffers' has to be a number from 1 to 4,096, but is {shown}" in (
        said
    )
