"""Ranks read what their tasks stage, and train as one rank does, bit by bit."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import run_legate, run_ranks
from loading_worker import BATCH, EPOCHS
from PIL import Image

WORKER = Path(__file__).parent / "loading_worker.py"
SAMPLES = 20
KINDS = ("source", "pictures", "arrays", "mapped", "mapped bytes")
STRATEGIES = ("data", "halves")

pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of two sizes and three classes."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(7)
    for number in range(SAMPLES):
        folder = root / "abc"[number % 3]
        folder.mkdir(exist_ok=True)
        size = (24, 20) if number % 2 else (9, 30)
        Image.fromarray(rng.integers(0, 256, size, np.uint8)).save(folder / f"{number}.jpg")
    return root


@pytest.fixture(scope="module", params=[2, 3])
def runs(
    request: pytest.FixtureRequest, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path, Path]:
    """How many processors; what one rank with all of them makes, and ranks of one each."""
    number: int = request.param
    folders = [tmp_path_factory.mktemp(name) for name in ("alone", "ranks")]
    run_legate(WORKER, folders[0], pictures, *STRATEGIES, cpus=number, timeout=120)
    run_ranks(WORKER, folders[1], pictures, *STRATEGIES, ranks=number, timeout=240)
    return number, folders[0], folders[1]


def summary_of(folder: Path, rank: int) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"summary-{rank}.json").read_text())
    return result


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_train_as_one_does(strategy: str, runs: tuple[int, Path, Path]) -> None:
    number, alone, ranks = runs
    expected = summary_of(alone, 0)
    assert expected["ranks"] == 1
    for rank in range(number):
        found = summary_of(ranks, rank)
        assert found["ranks"] == number
        for kind in KINDS:
            name = f"{strategy} {kind}"
            for key in ("losses", "evaluated"):
                assert found[name][key] == expected[name][key], name
            weights = np.load(alone / f"{strategy}-{kind}-0.npz")
            theirs = np.load(ranks / f"{strategy}-{kind}-{rank}.npz")
            for weight in weights.files:
                assert np.array_equal(theirs[weight], weights[weight]), (name, weight)


def test_memory_mapped_arrays_are_as_good_as_arrays(runs: tuple[int, Path, Path]) -> None:
    _, alone, _ = runs
    weights = {kind: np.load(alone / f"data-{kind}-0.npz") for kind in ("arrays", "mapped")}
    for name in weights["arrays"].files:
        assert np.array_equal(weights["arrays"][name], weights["mapped"][name])


def test_each_sample_is_read_by_one_rank(runs: tuple[int, Path, Path]) -> None:
    number, alone, ranks = runs
    summaries = [summary_of(ranks, rank) for rank in range(number)]
    passes = EPOCHS + 1
    each = dict.fromkeys(range(SAMPLES), passes)
    read = [summary["data source"]["rows"] for summary in summaries]
    assert Counter(itertools.chain(*read)) == each
    # A short last batch has most of its samples on the first ranks.
    full, rest = divmod(SAMPLES, BATCH)
    share = BATCH // number
    for rank, rows in enumerate(read):
        last = min(max(rest - rank * share, 0), share)
        assert len(rows) == passes * (full * share + last)
        # Of all others, the labels.
        assert Counter(rows + summaries[rank]["data source"]["labels"]) == each
    # Of arrays in files, nothing else is touched.
    touched = [summary["data mapped bytes"]["rows"] for summary in summaries]
    assert Counter(itertools.chain(*touched)) == each
    assert [len(rows) for rows in touched] == [len(rows) for rows in read]
    assert all(summary["data mapped bytes"]["first"] == [True, True] for summary in summaries)
    # Images are decoded once on each rank that stages them in any epoch.
    for summary in summaries:
        names = summary["data pictures"]["decoded"]
        assert len(set(names)) == len(names)
    decoded = [name for summary in summaries for name in summary["data pictures"]["decoded"]]
    assert set(decoded) == {f"{i}.jpg" for i in range(SAMPLES)}
    assert Counter(summary_of(alone, 0)["data source"]["rows"]) == each
    assert len(summary_of(alone, 0)["data pictures"]["decoded"]) == SAMPLES


def test_samples_are_read_where_they_are_needed(runs: tuple[int, Path, Path]) -> None:
    """The first rank has the layer that takes the samples, the last one the loss."""
    number, _, ranks = runs
    summaries = [summary_of(ranks, rank) for rank in range(number)]
    for rank, summary in enumerate(summaries):
        its = summary["halves source"]
        all_of_them = SAMPLES * (EPOCHS + 1)
        assert (len(its["rows"]), len(its["labels"])) == (
            (all_of_them, 0) if rank == 0 else (0, all_of_them)
        )
        assert len(summary["halves pictures"]["decoded"]) == (SAMPLES if rank == 0 else 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_one_rank_cannot_read_ends_all(strategy: str, runs: tuple[int, Path, Path]) -> None:
    number, _, ranks = runs
    results = [summary_of(ranks, rank)[f"{strategy} failed"] for rank in range(number)]
    assert [result["message"] for result in results] == ["sample 17 cannot be read"] * number
    assert sum(result["tried"] for result in results) == 1
