"""What commands that train are asked for by options is what ran; see options_of_training.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from commands import Capture
from launch import ROOT, legate_environment, run_checked
from options import Outcome, words_of
from options_of_training import DATA, RUNS, TRAINING, Elsewhere, Run, Shown
from PIL import Image
from pyarrow import parquet

from flexlegion.base.errors import UserError
from flexlegion.cli.command import parser_of
from flexlegion.cli.main import MODULES
from flexlegion.cli.training import prepared
from flexlegion.data.images import ImageFolder

Runs = Mapping[str, Outcome]


def _ran(run: Run, name: str, folder: Path) -> Outcome:
    words = [sys.executable, "-m", "flexlegion", *words_of(run.command, run.given, folder)]
    done = run_checked(words, environment=legate_environment(), timeout=300)
    file = folder / f"{name}.json"
    text = file.read_text() if run.command == "train" else done.stdout
    return Outcome(json.loads(text), done.stdout, done.stderr, done.returncode, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What each of `RUNS` did, in their order: later ones need files of earlier ones."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: _ran(run, name, folder) for name, run in RUNS.items()}


@pytest.mark.legion
@pytest.mark.parametrize(
    ("command", "option"),
    [(c, o) for c in TRAINING for o, shown in TRAINING[c].items() if isinstance(shown, Shown)],
)
def test_option_arrives(command: str, option: str, runs: Runs) -> None:
    shown = TRAINING[command][option]
    run = RUNS[shown.run]
    assert run.command == command
    assert f"--{option.replace('_', '-')}" in run.given
    for key, value in (shown.told or {}).items():
        assert runs[shown.run].told(key) == value
    assert shown.shows(runs[shown.run])


def test_other_options_have_tests() -> None:
    for command, rows in TRAINING.items():
        for option, shown in rows.items():
            if isinstance(shown, Elsewhere):
                name = option.replace("_", "-")
                text = (ROOT / shown.test).read_text()
                assert any(word in text for word in (name, option)), f"{command} --{name}"
            assert shown is not None or option in DATA


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty samples, as files of several kinds."""
    folder = tmp_path_factory.mktemp("data")
    x = np.linspace(0, 1, 40 * 1024, dtype=np.float32).reshape(40, 32, 32, 1)
    y = np.arange(40, dtype=np.int32) % 7
    np.savez(folder / "arrays.npz", x=x, y=y)
    np.savez(folder / "tested.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    pixels = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(x)
    parquet.write_table(pyarrow.table({"pixels": pixels, "digit": y}), folder / "table.parquet")
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    (folder / "corpus.en").write_text("a house\na tree\n")
    for label in "ab":
        (folder / "images" / label).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (40, 40), 10 * i).save(folder / "images" / label / f"{i}.png")
    return folder


@pytest.mark.parametrize("command", ["train", "tune", "evaluate"])
@pytest.mark.parametrize(("option", "number"), [(o, n) for o in DATA for n in range(len(DATA[o]))])
def test_option_of_data_arrives(
    command: str, option: str, number: int, data: Path, capsys: Capture
) -> None:
    if option not in TRAINING[command]:
        pytest.skip(f"{command} has no --{option}")
    row = DATA[option][number]
    out = ["--out", str(data / "out.json")] if command == "tune" else []
    args = parser_of(MODULES, command).parse_args([*words_of(command, row.given, data), *out])
    facts: dict[str, Any] = {}
    status, said = 0, ""
    try:
        ready = prepared(args)
        facts |= {"samples": ready.train.number, "precision": ready.network.training.precision}
        if isinstance(ready.train.x, ImageFolder):
            facts["augment"] = ready.train.x.augment
        elif isinstance(ready.train.y, np.ndarray):
            facts["largest_label"] = int(ready.train.y.max())
    except UserError as e:
        status, said = 2, str(e)
    outcome = Outcome(facts, capsys.readouterr().out, said, status, data)
    assert status == row.status, said
    for key, value in row.told.items():
        assert outcome.told(key) == value
    assert row.shows(outcome), said
