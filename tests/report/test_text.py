"""Quantities, names and tables as people read them."""

from __future__ import annotations

import pytest

from flexlegion.console import text


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.000 us"),
        (12_345, "12.35 us"),
        (392_045_770, "392.0 ms"),
        (1_056_067_291, "1.056 s"),
        (12_345_678_901_234, "12,346 s"),
        (-5_627, "-5.627 us"),
    ],
)
def test_duration(ns: int, shown: str) -> None:
    assert text.duration(ns) == shown


def test_volume_and_memory() -> None:
    assert text.volume(0) == "0 B"
    assert text.volume(16_206_305_280) == "16.21 GB"
    assert text.volume(-10_130_000) == "-10.13 MB"
    assert text.volume(5 * 10**12) == "5.000 TB"
    assert text.memory(100) == "100 B"
    assert text.memory(16 * 2**30) == "16.00 GiB"
    assert text.memory(1536) == "1.500 KiB"


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ([], ""),
        (["gpu:0"], "gpu:0"),
        (["gpu:0", "gpu:1"], "gpu:0, gpu:1"),
        (["gpu:0", "gpu:1", "gpu:2", "gpu:8"], "gpu:0 to gpu:2, gpu:8"),
        (["gpu:2", "gpu:1", "gpu:0"], "gpu:2, gpu:1, gpu:0"),
        (["gpu:0", "gpu:0"], "gpu:0, gpu:0"),
        (["node:0/ram", "node:1/ram", "node:2/ram"], "node:0/ram to node:2/ram"),
        (["cpu:9", "gpu:10"], "cpu:9, gpu:10"),
    ],
)
def test_names(devices: list[str], shown: str) -> None:
    assert text.names(devices) == shown


def test_many_names_are_cut() -> None:
    cut = text.names([f"gpu:{i}" for i in range(0, 100, 2)])
    assert len(cut) == 60
    assert cut.endswith("...")


@pytest.mark.parametrize(
    ("operators", "shown"),
    [
        (["conv1"], "conv1"),
        (["embed.0", "embed.1"], "embed.*"),
        (["encoder.lstm1.0", "encoder.lstm2.3"], "encoder.lstm*.*"),
        (["encoder.embed.0", "decoder.embed.1"], "*.embed.*"),
        (["a", "b"], "a and 1 more"),
        (["stem.conv", "mixed.a.conv", "pool"], "stem.conv and 2 more"),
    ],
)
def test_common_name(operators: list[str], shown: str) -> None:
    assert text.common_name(operators) == shown


def test_consecutive() -> None:
    assert text.consecutive([]) == []
    assert text.consecutive(["a", "a", "b", "a"]) == [(0, 2), (2, 3), (3, 4)]


def test_table_and_pairs() -> None:
    lines = text.table(("name", "time"), [("a", "1 ms"), ("b[x]", "20 ms")]).splitlines()
    assert lines[0] == "name    time"
    assert lines[2:] == ["a       1 ms", "b[x]   20 ms"]
    assert text.pairs([("a", "1"), ("long", ""), ("b", "2")]) == "a     1\nlong\nb     2\n"
