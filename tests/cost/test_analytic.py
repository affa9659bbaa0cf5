"""The analytic cost model against times derived by hand, and what has to hold for all sizes."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.efficiency import efficiency_of
from flexlegion.cost.kernels import Kernels
from flexlegion.cost.model import Linear, Shapes, wanted_gradients
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import OperatorType
from flexlegion.machine.parts import Device
from flexlegion.ops.attention import MultiHeadAttention
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, Relu
from flexlegion.ops.embedding import Embedding
from flexlegion.profiling.machines import load_machine

# Round rates under a name of the table, so that the table's figures apply.
V100 = Device(
    "gpu:0",
    "gpu",
    "V100",
    0,
    "gpu:0",
    16 << 30,
    {"float32": 10**13, "tfloat32": 8 * 10**13},
    10**12,
)
CPU = Device("cpu:0", "cpu", "some processor", 0, "ram", 16 << 30, {"float32": 10**11}, 10**10)
P100 = load_machine("p100x4").device("gpu:0")
K80 = load_machine("k80x4").device("gpu:0")


def operator_of(
    kind: OperatorType, *shapes: tuple[int, ...], inner: bool = True, dtype: str = "float32"
) -> Operator:
    """An operator in a graph of its own; `inner`: its inputs have gradients."""
    graph = Graph()
    inputs = [
        graph.add_input(f"x{i}", shape, dtype, inner)  # type: ignore[arg-type]
        for i, shape in enumerate(shapes)
    ]
    graph.add(kind, inputs, "it")
    return graph.operators[0]


def whole(operator: Operator) -> Shapes:
    """The shapes of its one task."""
    return tuple(tensor.shape for _, tensor, _ in operator.operands)


def time(operator: Operator, pass_: str = "forward", device: Device = V100) -> int:
    cost = AnalyticCosts().exe_time(operator, pass_, whole(operator), device)
    assert cost.source == "analytic"
    return cost.time_ns


# By hand. V100 of the table: a large product runs at 0.92 of the peak, at half of that with sums of
# 70 terms; 80 multiprocessors, on which for its operands a tile of 32 x 32 takes 1 + 4/32 + 4/32 =
# 1.25 times as long, one of 256 x 128 1.047 times; memory at 0.82; a launch takes 5 us.


def test_matrix_product() -> None:
    """64 x 1024 times 1024 x 1024.

    In 32 x 32 tiles it is 64 tiles, one wave. 2 * 64 * 1024 * 1024 = 134.2 MFLOP at 10 TFLOP/s *
    0.92 * 64/80 * 1.047/1.25 / (1 + 70/1024) = 5.770 TFLOP/s: 23.26 us. Its 4 (65536 + 1048576 +
    65536) = 4.72 MB at 820 GB/s take only 5.8 us.
    """
    assert time(operator_of(Dense(1024, use_bias=False), (64, 1024))) == pytest.approx(
        5_000 + 23_263, rel=1e-3
    )


def test_a_part_of_a_reduction_is_that_part_of_the_work() -> None:
    """The same product by half of its inner dimension: half of the work, in shorter sums.

    67.1 MFLOP at 9.2 TFLOP/s * 64/80 * 1.047/1.25 / (1 + 70/512) = 5.423: 12.38 us.
    """
    dense = operator_of(Dense(1024, use_bias=False), (64, 1024))
    half = ((64, 512), (1024, 512), (64, 1024))
    cost = AnalyticCosts().exe_time(dense, "forward", half, V100)
    assert cost.time_ns == pytest.approx(5_000 + 12_376, rel=1e-3)
    its = AnalyticCosts().exe_time(dense, "backward", half, V100).time_ns - 10_000
    assert its == pytest.approx((time(dense, "backward") - 10_000) / 2, rel=0.15)  # in waves


def test_backward_of_a_matrix_product() -> None:
    """Two products, two launches; of the first layer of a network, only the weights'.

    The input's gradient is 64 x 1024 by sums of 1024, as the output. The weights' is 1024 x 1024 by
    sums of 64: of 32 x 32, 1024 tiles in 13 waves, at 9.2 TFLOP/s * 1024/1040 * 1.047/1.25 / (1 +
    70/64) = 3.623: 37.04 us.
    """
    inner = operator_of(Dense(1024, use_bias=False), (64, 1024))
    first = operator_of(Dense(1024, use_bias=False), (64, 1024), inner=False)
    assert wanted_gradients(inner) == (True,)
    assert wanted_gradients(first) == (False,)
    assert time(inner, "backward") == pytest.approx(10_000 + 23_263 + 37_042, rel=1e-3)
    assert time(first, "backward") == pytest.approx(5_000 + 37_042, rel=1e-3)


def test_elementwise_is_bound_by_memory() -> None:
    """Forward reads and writes 4 MB each: 8 MB at 820 GB/s. Backward: the output, two gradients."""
    relu = operator_of(Relu(), (1000, 1000))
    assert time(relu) == pytest.approx(5_000 + 8e6 / 820, abs=1)
    assert time(relu, "backward") == pytest.approx(5_000 + 12e6 / 820, abs=1)


def test_convolution() -> None:
    """3 x 3, 64 to 128 channels over 16 x 56 x 56 positions, without bias.

    Outputs: 16 * 56 * 56 * 128 = 6.423 M of 576 multiply-adds: 7.399 GFLOP, of which Winograd's
    algorithm saves more than half. At 10 TFLOP/s * 2.2 / ((1 + 170/576) (1 + 250000 /
    6.423e6)) = 16.36 TFLOP/s: 452.5 us. Memory: 4 (3211264 + 73728 + 6422528) = 38.8 MB: 47.3 us.
    By 2 it is a usual convolution: a quarter of the work at 10 TFLOP/s * 0.86 / ((1 + 30/576)
    (1 + 250000 / 1.606e6)) = 7.073 TFLOP/s: 261.5 us.
    """
    conv = Conv2D(128, 3, 3, padding_h=1, padding_w=1, use_bias=False)
    assert time(operator_of(conv, (16, 56, 56, 64))) == pytest.approx(5_000 + 452_500, rel=1e-3)
    by_two = Conv2D(128, 3, 3, 2, 2, padding_h=1, padding_w=1, use_bias=False)
    assert time(operator_of(by_two, (16, 56, 56, 64))) == pytest.approx(5_000 + 261_500, rel=1e-3)


def test_embedding_touches_rows() -> None:
    """32 x 10 tokens of 100 channels: 320 numbers and 2 * 32000 floats, whatever the table.

    (320 + 2 * 32000) * 4 bytes at 820 GB/s * 0.5 for the family: 628 ns.
    """
    small = operator_of(Embedding(1_000, 100, 0, 10), (32, 10), inner=False, dtype="int32")
    large = operator_of(Embedding(1_000_000, 100, 0, 10), (32, 10), inner=False, dtype="int32")
    assert time(small) == pytest.approx(5_000 + 628, abs=2)
    for pass_ in ("forward", "backward"):
        assert time(large, pass_) == time(small, pass_)


def test_tensor_cores() -> None:
    """Another precision is a choice; devices without it, and other families, keep to float32."""
    dense, relu = operator_of(Dense(4096), (4096, 4096)), operator_of(Relu(), (64, 64))
    fast = AnalyticCosts("tfloat32")
    assert fast.exe_time(dense, "forward", whole(dense), V100).time_ns < time(dense) / 6
    assert fast.exe_time(dense, "forward", whole(dense), P100).time_ns == time(dense, device=P100)
    assert fast.exe_time(relu, "forward", whole(relu), V100).time_ns == time(relu)


@pytest.mark.parametrize("device", [P100, K80], ids=["p100", "k80"])
def test_channels_are_cheaper_to_split_than_samples(device: Device) -> None:
    """FlexFlow, section 8.2.1: 38 % less computation for NMT's products (batch 64, hidden 1024)."""
    operator = operator_of(Dense(1024), (64, 1024))
    costs = AnalyticCosts()
    samples: Shapes = ((16, 1024), (1024, 1024), (1024,), (16, 1024))
    channels: Shapes = ((64, 1024), (256, 1024), (256,), (64, 256))
    by_samples = costs.exe_time(operator, "forward", samples, device).time_ns
    by_channels = costs.exe_time(operator, "forward", channels, device).time_ns
    assert 0.5 < by_channels / by_samples < 0.8


def test_share_of_a_task() -> None:
    """Half of the samples is half of the operations, in waves; the weights are read whole."""
    operator = operator_of(Dense(64, use_bias=False), (1 << 16, 64))
    costs = AnalyticCosts()
    half = costs.exe_time(operator, "forward", ((1 << 15, 64), (64, 64), (1 << 15, 64)), V100)
    assert (half.time_ns - 5_000) * 2 == pytest.approx(time(operator) - 5_000, rel=0.1)


@pytest.mark.parametrize("device", [V100, CPU])
def test_linear(device: Device) -> None:
    """Moving bytes costs at least what the memory's rate allows."""
    for pass_ in ("update", "load", "sum"):
        linear, source = AnalyticCosts().linear(pass_, device)
        assert source == "analytic"
        assert linear.time_ns(10**9) >= 1e18 / device.memory_bandwidth
        assert linear.time_ns(0) == linear.overhead_ns > 0
    with pytest.raises(UserError, match="no pass 'forward'; the choices are update, sum, load"):
        AnalyticCosts().linear("forward", device)


def test_linear_time() -> None:
    assert Linear(100, 10**9).time_ns(50) == 150
    assert Linear(0, 10**9).time_ns(0) == 1


# What holds for all sizes.

EXTENTS = st.integers(1, 2_000)
DEVICES = st.sampled_from([V100, P100, K80, CPU])
TASK_PASSES = st.sampled_from(["forward", "backward"])


@given(EXTENTS, EXTENTS, EXTENTS, st.integers(0, 2), st.integers(1, 500), TASK_PASSES, DEVICES)
def test_larger_products_take_longer(
    rows: int, depth: int, columns: int, which: int, more: int, pass_: str, device: Device
) -> None:
    """More operations never take less time."""
    sizes = [rows, depth, columns]
    small = operator_of(Dense(sizes[2]), (sizes[0], sizes[1]))
    sizes[which] += more
    large = operator_of(Dense(sizes[2]), (sizes[0], sizes[1]))
    assert time(small, pass_, device) <= time(large, pass_, device)


@given(
    st.tuples(*[st.integers(1, 40)] * 4),
    st.integers(1, 64),
    st.integers(0, 4),
    st.integers(1, 30),
    TASK_PASSES,
    DEVICES,
)
def test_larger_convolutions_take_longer(
    shape: tuple[int, ...], filters: int, which: int, more: int, pass_: str, device: Device
) -> None:
    """More operations never take less time."""

    def conv(sizes: list[int]) -> Operator:
        n, h, w, c, o = sizes
        return operator_of(Conv2D(o, 3, 3, padding_h=1, padding_w=1), (n, h, w, c))

    sizes = [*shape, filters]
    small = conv(sizes)
    sizes[which] += more
    assert time(small, pass_, device) <= time(conv(sizes), pass_, device)


@given(st.integers(1, 64), st.integers(1, 64), TASK_PASSES, DEVICES)
def test_parts_take_no_longer_than_the_whole(
    samples: int, units: int, pass_: str, device: Device
) -> None:
    """A part of the samples and units, of operands no larger; all parts together take longer."""
    operator = operator_of(Dense(64), (64, 256))
    part: Shapes = ((samples, 256), (units, 256), (units,), (samples, units))
    cost = AnalyticCosts().exe_time(operator, pass_, part, device).time_ns
    assert cost <= time(operator, pass_, device)
    share = samples * units / prod(operator.output.shape)
    assert cost >= share * time(operator, pass_, device) - 1


def test_answers_are_remembered() -> None:
    operator = operator_of(Dense(64), (64, 256))
    costs = AnalyticCosts()
    first = costs.exe_time(operator, "forward", whole(operator), V100)
    assert costs.exe_time(operator, "forward", whole(operator), V100) is first


def test_kernels_that_systems_have() -> None:
    """Attention in one kernel or by steps, biases and dropout by themselves, turned images."""

    def taken(kernels: Kernels, its: Operator, pass_: str = "forward") -> int:
        costs = AnalyticCosts("tfloat32", kernels)
        return costs.exe_time(its, pass_, whole(its), V100).time_ns

    heads = (4, 512, 8, 64)
    attention = operator_of(MultiHeadAttention(True, 0.125, 0.0, 0), heads, heads, heads)
    kinds = ("fused", "unfused", "by steps")
    for pass_ in ("forward", "backward"):
        times = [taken(Kernels(attention=kind), attention, pass_) for kind in kinds]
        assert times == sorted(times)
    # 6 or 5 times more pass memory: 4 * 8 * 512 * 512 scores of 4 bytes; and queries, keys and
    # values twice each, which are put head by head.
    scores = 4 * 8 * 512 * 512 * 4
    steps = [taken(Kernels(attention=kind), attention) for kind in kinds[1:]]
    turned = 4 * 512 * 8 * 64 * 4
    assert steps[1] - steps[0] == pytest.approx((6 * scores + 6 * turned) / 820, rel=1e-3)
    dense = operator_of(Dense(1024), (512, 1024))
    apart = taken(Kernels(bias="separate"), dense) - taken(Kernels(), dense)
    assert apart == pytest.approx(2 * 4 * 512 * 1024 / 820, abs=2)
    dropout = operator_of(Dropout(0.1, 0), (512, 1024))
    assert taken(Kernels(dropout="fused"), dropout) < taken(Kernels(), dropout)
    conv = operator_of(Conv2D(64, 3, 3, padding_h=1, padding_w=1), (8, 56, 56, 64))
    assert taken(Kernels(channels="first"), conv) > taken(Kernels(), conv)


def test_products_by_precision() -> None:
    """A machine's figures of a precision are for products in it alone."""
    v100 = load_machine("v100x1").device("gpu:0")
    its = efficiency_of(v100)
    assert its.at("float16").matmul == 0.95
    assert (its.sustained, its.at("float16").sustained) == (1.0, 0.93)
    assert its.at("float16").memory == its.memory
    assert its.at("bfloat16") == its
    dense = operator_of(Dense(4096, use_bias=False), (4096, 4096))
    half = AnalyticCosts("float16").exe_time(dense, "forward", whole(dense), v100).time_ns
    waves = 512 / (7 * 80)  # tiles of 256 x 128
    expected = 2 * 4096**3 / (125e12 * 0.95 * 0.93 * waves / (1 + 300 / 4096)) * 1e9
    assert half == pytest.approx(5_000 + expected, rel=1e-3)
