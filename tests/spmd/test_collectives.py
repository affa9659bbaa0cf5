"""What groups of devices get of a machine's links, by hand."""

from __future__ import annotations

import pytest

from flexlegion.machine.files import described_machine
from flexlegion.spmd.axes import Axes
from flexlegion.spmd.collectives import NCCL, Collectives
from flexlegion.spmd.program import Stage

INSIDE, BETWEEN = NCCL.inside, NCCL.between


def _stage(*sizes: int) -> Stage:
    axes = Axes(sizes)
    return Stage(tuple(range(axes.devices)), axes)


@pytest.mark.parametrize(
    ("machine", "sizes", "along", "inside", "between"),
    [
        ("a100x8", (8,), (0,), 300e9, None),  # 12 NVLinks to the switches
        ("a100x8", (4, 2), (1,), 300e9, None),  # pairs do not share them
        ("v100x8", (8,), (0,), 150e9, None),  # 6 NVLinks of each GPU
        ("v100x8", (2, 4), (1,), 100e9, None),  # 4 of these inside a half
        ("p100x4", (4,), (0,), 60e9, None),  # 3 NVLinks of 20 GB/s
        ("k80x4", (4,), (0,), 15.75e9, None),  # over host bridges, each link once each way
        ("a100x16", (16,), (0,), 300e9, 200e9),  # eight adapters of a node
        ("a100x16", (2, 8), (0,), None, 25e9),  # each GPU its own
        ("v100x16", (2, 8), (0,), None, 6.25e9),  # two share one
        ("p100x8", (8,), (0,), 60e9, 12.5e9),  # one a node
        ("p100x8", (2, 4), (0,), None, 12.5e9 / 4),  # shared by four groups
    ],
)
def test_rings(
    machine: str, sizes: tuple[int, ...], along: tuple[int, ...], inside: float, between: float
) -> None:
    ring = Collectives(described_machine(machine)).ring(_stage(*sizes), along)
    inf = float("inf")
    assert ring.inside == pytest.approx(inf if inside is None else inside * INSIDE)
    assert ring.between == pytest.approx(inf if between is None else between * BETWEEN)


def test_bytes_of_rings() -> None:
    """Large messages: (n - 1) / n of the size for a gather, twice that for an all-reduce."""
    collectives, stage, size = Collectives(described_machine("a100x8")), _stage(8), 10**10
    share = 7 / 8 * size / (300e9 * INSIDE) * 1e9
    for name, times in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        took = collectives.time_ns(name, size, stage, (0,))
        assert took == pytest.approx(times * share, rel=0.01)
    # Each device has an eighth for each of the others, which all send at once.
    assert collectives.time_ns("all-to-all", size, stage, (0,)) == pytest.approx(share, rel=0.01)


def test_small_messages_cost_latency() -> None:
    topology = described_machine("a100x256")
    collectives, stage = Collectives(topology), _stage(256)
    ring = NCCL.start_ns + 2 * (224 * NCCL.step_inside_ns + 32 * NCCL.step_between_ns)
    took = collectives.time_ns("all-reduce", 8, stage, (0,))
    assert NCCL.start_ns < took < ring / 4  # by a tree
    assert collectives.time_ns("all-reduce", 8, _stage(1), (0,)) == 0


def test_sending_shares_adapters() -> None:
    collectives = Collectives(described_machine("p100x8"))
    one = collectives.send_ns(10**9, [(0, 4)])
    four = collectives.send_ns(10**9, [(n, n + 4) for n in range(4)])
    assert one == pytest.approx(1e9 * 1e9 / (12.5e9 * BETWEEN), rel=0.01)
    assert four == pytest.approx(4 * one, rel=0.01)
    assert collectives.send_ns(10**9, [(0, 0)]) == 0


@pytest.mark.parametrize(
    ("machine", "sizes", "along", "blocks", "multiprocessors"),
    [
        ("v100x8", (8,), (0,), 12, 80),  # two a ring, a ring for each of six NVLinks
        ("a100x8", (8,), (0,), 24, 108),
        ("a100x8", (4, 2), (1,), 24, 108),
        ("h100x8", (8,), (0,), 24, 132),
        ("a100x16", (16,), (0,), 16, 108),  # between nodes for each of eight adapters
        ("a100x16", (2, 8), (0,), 2, 108),  # a group of two GPUs has one
        ("v100x16", (16,), (0,), 8, 80),
    ],
)
def test_multiprocessors_that_collectives_take(
    machine: str, sizes: tuple[int, ...], along: tuple[int, ...], blocks: int, multiprocessors: int
) -> None:
    collectives = Collectives(described_machine(machine))
    assert collectives.taken(_stage(*sizes), along) == pytest.approx(blocks / multiprocessors)


def test_of_other_gpus_an_estimate_is_taken() -> None:
    assert Collectives(described_machine("mi300x8")).taken(_stage(8), (0,)) == NCCL.taken
