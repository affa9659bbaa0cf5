"""OneFlow's SBP signatures as a notation of strategies: its Tables 1 to 4, and what is deduced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sbp_cases import NOT_READ, PAIRS, expected, moved_between, row_of, table_2, transition

import flexlegion as fl
from flexlegion import B, Mesh, Model, P, ParallelConfig, S, Strategy, UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.signatures import Sbp
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.coherence import moves
from flexlegion.plan.plan import Plan
from flexlegion.plan.signatures import MAX_WIDTH, described
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import FLOWS, full
from flexlegion.strategy.sbp.deduction import deduced
from flexlegion.strategy.sbp.operands import signature_of

GPUS = [f"gpu:{i}" for i in range(8)]
LINE = Mesh(GPUS[:2])
SQUARE = Mesh([GPUS[:2], GPUS[2:4]])


def by_name(op: Operator, config: ParallelConfig) -> dict[str, int]:
    """Degrees above 1."""
    return {d.name: k for d, k in zip(op.dims, config.degrees, strict=True) if k > 1}


def degrees_of(graph: Graph, strategy: Strategy) -> dict[str, dict[str, int]]:
    return {op.name: by_name(op, strategy[op.name]) for op in graph.operators}


# Tables 1 and 3: which signatures are valid


def valid(op: Operator, dims: Sequence[int]) -> tuple[tuple[Sbp, ...], ...]:
    """Signatures of the operands, if mesh axis i divides dimension dims[i] of the space."""
    return tuple(tuple(signature_of(a, role, d) for d in dims) for role, _, a in op.operands)


def matmul() -> Operator:
    """X (1, 4, 5) times W (1, 5, 8): the paper's dimensions 0 and 1 are 1 and 2."""
    model = Model(batch_size=1)
    model.matmul(model.input((4, 5), name="X"), model.parameter((5, 8), name="W"), name="Y")
    return model.graph.operators[0]


# What SOAP cannot say, and why.
NOT_SAID = {
    (B, P, P): "a product is linear in one of its factors, which is the first",
    (B, B, B): "no two tasks compute the same: repeated computation is no strategy",
}


def test_table_1() -> None:
    """Each way to split a matrix product is a row of the table; the others are not said."""
    op = matmul()
    dims = {dim.name: d for d, dim in enumerate(op.dims)}
    rows = {name: tuple(its[0] for its in valid(op, [d])) for name, d in dims.items()}
    table = {(S(1), B, S(1)), (B, S(2), S(2)), (S(2), S(1), P)}
    assert {rows["row"], rows["column"], rows["inner"]} == table
    assert rows["sample"] == (
        S(0),
        S(0),
        S(0),
    )  # of batches of matrices, which the paper leaves out
    assert len(rows) == 4
    assert not NOT_SAID.keys() & set(rows.values())


def test_table_1_of_partial_values() -> None:
    """Where X may be partial values, the product of each with W is one of Y: U V W, say."""
    model = Model(batch_size=1)
    uv = model.matmul(model.input((4, 3), name="U"), model.parameter((3, 5), name="V"), name="X")
    model.matmul(uv, model.parameter((5, 8), name="W"), name="Y")
    op = model.graph.operators[1]
    assert [dim.name for dim in op.dims][-1] == "part"
    assert tuple(its[0] for its in valid(op, [len(op.dims) - 1])) == (P, B, P)


def test_partial_values_stay_apart_if_that_is_said() -> None:
    """Of an output that is P, if the input is; otherwise operators read the sum."""
    model = Model(8)
    y = model.dense(model.input((16,), name="x"), 16, name="one")
    y = model.dense(y, 16, name="two")
    graph = graph_of(model)
    said = degrees_of(graph, deduced(graph, LINE, {"one": P, "two": P}, "s")[0])
    assert (said["one"], said["two"]) == ({"in": 2}, {"part": 2})
    unsaid = degrees_of(graph, deduced(graph, LINE, {"one": P}, "s")[0])
    assert unsaid["two"].keys() <= {"sample", "channel", "in"}
    alone = degrees_of(graph, deduced(graph, LINE, {"x": S(0), "two": P}, "s")[0])
    assert (alone["one"], alone["two"]) == ({"sample": 2}, {"in": 2})
    placed = Model(8)
    y = placed.dense(placed.input((16,), name="x"), 16, name="one").to_global(LINE, P)
    placed.dense(y, 16, use_bias=False, name="two")
    graph = graph_of(placed)
    strategy, _ = deduced(graph, LINE, {}, "s")
    assert degrees_of(graph, strategy)["two"] == {"part": 2}


def test_table_1_of_a_dense_layer() -> None:
    """The kernel is stored as (out, in): W transposed. A bias is added by one of the parts."""
    model = Model(4)
    model.dense(model.input((5,)), 8)
    (op,) = model.graph.operators
    x, kernel, bias, y = zip(*(tuple(i[0] for i in valid(op, [d])) for d in range(3)), strict=True)
    assert list(zip(x, kernel, y, strict=True)) == [
        (S(0), B, S(0)),
        (B, S(0), S(1)),
        (S(1), S(1), P),
    ]
    assert bias == (B, S(0), P)


def test_table_3() -> None:
    """Signatures of two axes are pairs of those of one."""
    op = matmul()
    row, column, inner = (
        next(d for d, dim in enumerate(op.dims) if dim.name == name)
        for name in ("row", "column", "inner")
    )
    assert valid(op, [row, column]) == ((S(1), B), (B, S(2)), (S(1), S(2)))
    assert valid(op, [row, inner]) == ((S(1), S(2)), (B, S(1)), (S(1), P))


# Table 2: bytes between two signatures


def test_rows_of_table_2() -> None:
    """All of them are measured below, or not said."""
    assert {row_of(*pair) for pair in PAIRS} | set(NOT_READ) == set(table_2(1, 1))


MESHES = [
    (Mesh(GPUS[:2]), Mesh(GPUS[:2])),
    (Mesh(GPUS[:4]), Mesh(GPUS[:4])),
    (Mesh(GPUS[:2]), Mesh(GPUS[2:4])),
    (Mesh(GPUS[:4]), Mesh(GPUS[4:6])),
    (Mesh(GPUS[:2]), Mesh(GPUS[4:8])),
]


@pytest.mark.parametrize(("first", "second"), MESHES, ids=str)
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_table_2(before: str, after: str, first: Mesh, second: Mesh) -> None:
    """Plan and simulator move as many bytes as the paper says."""
    network, strategy = transition(before, after, first, second)
    problem = network.problem(load_machine("p100x8"), AnalyticCosts())
    strategy = problem.checked(strategy)
    plan = Plan(strategy, network.outputs)
    memory_of = {device.name: device.memory for device in problem.topology.devices}
    between, total = moved_between(network, plan, before, memory_of)
    assert between == expected(before, after, first, second)
    rows = full(problem, strategy).tasks
    number = [tensor.name for tensor in problem.graph.tensors].index("t.output")
    flows = [FLOWS.index("value"), FLOWS.index("partial")]
    mine = (rows["hop"] == 0) & (rows["tensor"] == number) & np.isin(rows["flow"], flows)
    assert rows["bytes"][mine].sum() == total


# Table 4, and what is deduced


def table_4() -> Model:
    """The paper's program; its dimensions 0 and 1 are 1 and 2, behind a batch of one."""
    p0, p1 = Mesh(["gpu:0", "gpu:1"]), Mesh(["gpu:2", "gpu:3"])
    model = Model(batch_size=1)
    a0 = model.input((4, 5), name="A0").to_global(p0, S(1))
    b0 = model.parameter((5, 8), name="B0").to_global(p0, B)
    y0 = model.matmul(a0, b0, name="Y0")
    y0 = y0.to_global(p1, B)
    b1 = model.parameter((8, 6), name="B1").to_global(p1, S(2))
    model.matmul(y0, b1, name="Y2")
    return model


def test_table_4() -> None:
    """Y0 is split by rows where A0 is, Y2 by columns where B1 is: pipelined model parallelism."""
    network = Network.of(table_4(), TrainingSpec("mean_squared_error"))
    devices = Devices.of(gpus=4)
    strategy = resolve("sbp", network.graph, devices)
    assert strategy["Y0"] == ParallelConfig((1, 2, 1, 1), ("gpu:0", "gpu:1"))
    assert strategy["Y2"] == ParallelConfig((1, 1, 2, 1, 1), ("gpu:2", "gpu:3"))
    plan = Plan(strategy, network.outputs)
    plan.verify()
    moved = {m.launch.operator.name: 0 for m in moves(plan, {name: name for name in devices.names})}
    for m in moves(plan, {name: name for name in devices.names}):
        if m.requirement.tensor.name == "Y0.output" and m.requirement.field == "value":
            moved[m.launch.operator.name] += m.bytes
    assert moved["Y2"] == 2 * 4 * 4 * 8  # p2 |T|: S to B, on other devices


def mlp(length: int = 6) -> Model:
    """A block as a transformer has it."""
    model = Model(8)
    x = model.input((length, 16), name="x")
    y = model.dense(x, 32, name="expand")
    y = model.dense(model.gelu(y, name="gelu"), 16, name="contract")
    y = model.layer_norm(model.add([x, y], name="add"), name="norm")
    model.dense(y, 10, name="out")
    return model


def graph_of(model: Model) -> Graph:
    return Network.of(model, TrainingSpec("mean_squared_error")).graph


def test_pairs_follow_from_one_signature() -> None:
    """Of Megatron's pair, either layer is deduced from the other, and what is between."""
    graph = graph_of(mlp())
    for name, its in (("expand.kernel", S(0)), ("contract.kernel", S(1))):
        strategy, messages = deduced(graph, SQUARE, {"x": (S(0), None), name: (B, its)}, "s")
        assert not messages
        degrees = degrees_of(graph, strategy)
        assert degrees["expand"] == degrees["gelu"] == {"sample": 2, "channel": 2}
        assert degrees["contract"] == {"sample": 2, "in": 2}
        assert degrees["add"] == degrees["norm"] == {"sample": 2, "length": 2}
        for op in graph.operators:
            assert strategy[op.name].devices == tuple(GPUS[:4])
        strategy.checked(graph, Devices.of(gpus=4))


def test_without_signatures_it_is_data_parallelism() -> None:
    graph = graph_of(mlp())
    strategy, _ = deduced(graph, Mesh(GPUS[:4]), {}, "s")
    assert dict(strategy) == dict(resolve("data", graph, Devices.of(gpus=4)))


def test_axes_of_one_dimension() -> None:
    """The first axis is the major one; the same devices in columns are other ones."""
    graph = graph_of(mlp())
    x = {"x": (S(0), S(0))}
    assert deduced(graph, SQUARE, x, "s")[0]["expand"].devices == tuple(GPUS[:4])
    turned = Mesh([["gpu:0", "gpu:2"], ["gpu:1", "gpu:3"]])
    strategy, _ = deduced(graph, turned, x, "s")
    assert strategy["expand"] == ParallelConfig((4, 1, 1, 1), ("gpu:0", "gpu:2", "gpu:1", "gpu:3"))


def test_tasks_lie_on_their_place_of_the_mesh() -> None:
    """Where a later dimension is the first axis, tasks row-major are devices column by column."""
    graph = graph_of(mlp())
    strategy, _ = deduced(graph, SQUARE, {"expand.kernel": (S(0), B), "x": (B, S(0))}, "s")
    assert by_name(graph.operators[0], strategy["expand"]) == {"sample": 2, "channel": 2}
    assert strategy["expand"].devices == ("gpu:0", "gpu:2", "gpu:1", "gpu:3")


def test_partial_values_that_are_read_whole_are_summed_by_shards() -> None:
    """P to B; P to S by the readers."""
    model = Model(8)
    y = model.dense(model.input((16,), name="x"), 16, name="one")
    model.dense(y.to_global(LINE, B), 16, name="two")
    strategy, _ = deduced(graph_of(model), LINE, {"one": P}, "s")
    assert strategy["one"] == ParallelConfig((1, 1, 2), ("gpu:0", "gpu:1"), "shards")
    strategy, _ = deduced(graph_of(mlp()), LINE, {"contract": P}, "s")
    assert strategy["contract"].sums == "readers"


def test_repeated_computation_is_split_and_said() -> None:
    """What reads B alone divides its length; who reads it as B gathers."""
    graph = graph_of(mlp())
    said = {"x": B, "expand.kernel": B, "expand.bias": B}
    strategy, messages = deduced(graph, LINE, said, "s")
    assert by_name(graph.operators[0], strategy["expand"]) == {"length": 2}
    assert messages == [
        "along axis 0 of the mesh, what reads B alone would be computed by every device; it is "
        "split instead: 'expand' by length, 'add' by length"
    ]
    with pytest.warns(UserWarning, match="along axis 0 of the mesh, what reads B alone"):
        fl.sbp(mlp(), LINE, said, loss="mean_squared_error")


def test_what_is_too_small_stays_whole() -> None:
    """A mesh with more devices than any dimension has elements: on the first ones."""
    model = Model(2)
    model.dense(model.input((3,), name="x"), 3, name="fc")
    strategy, _ = deduced(graph_of(model), Mesh(GPUS[:4]), {}, "s")
    assert strategy["fc"] == ParallelConfig((1, 1, 1), ("gpu:0",))


def test_names_with_a_star() -> None:
    model = fl.load_model("transformer", 4, {"layers": 2, "hidden": 64, "heads": 4, "steps": 8})
    graph = Network.of(model).graph
    wide = (None, S(0))
    said = {"*.query.kernel": wide, "*.key.kernel": wide, "*.value.kernel": wide}
    said |= {"*.output.kernel": (None, S(1)), "*.expand.kernel": wide, "tokens": (S(0), None)}
    strategy, _ = deduced(graph, SQUARE, said, "s")
    degrees = degrees_of(graph, strategy)
    for block in ("block1", "block2"):
        heads = {"sample": 2, "head": 2}
        assert degrees[f"{block}.attention"] == heads
        assert degrees[f"{block}.output"] == degrees[f"{block}.contract"] == {"sample": 2, "in": 2}
        assert degrees[f"{block}.norm2"] == {"sample": 2, "length": 2}
    resolve(strategy, graph, Devices.of(gpus=4))


# What is wrong gets a sentence


@pytest.mark.parametrize(
    ("signatures", "message"),
    [
        (
            {"expand.kernal": S(0)},
            "the model has no tensor 'expand.kernal' (did you mean 'expand.kernel'?); a signature "
            "is of an input, a weight (LAYER.kernel), or what a layer computes (LAYER)",
        ),
        ({"x": S(3)}, "'x' has dimensions 0 to 2, but its signature has S(3)"),
        (
            {"x": (S(0), B)},
            "the signature of 'x' is for 2 axes, (S(0), B), but its mesh has 1: 2",
        ),
        (
            {"x": ("S(0)",)},
            "a signature of 'x' is made of S(dimension), B, P and None, but has \"S(0)\"",
        ),
        (
            {"out.kernel": S(1), "out": S(0)},
            "operator 'out' cannot be split with out.kernel S(1), out.output S(0) along axis 0 of "
            "its mesh; there is norm.output S(0), out.kernel B, out.bias B, out.output S(0); or "
            "norm.output S(1), out.kernel B, out.bias B, out.output S(1); or norm.output B, "
            "out.kernel S(0), out.bias S(0), out.output S(2); or norm.output S(2), out.kernel "
            "S(1), out.bias P, out.output P",
        ),
    ],
)
def test_signatures_that_do_not_fit(signatures: dict, message: str) -> None:
    with pytest.raises(UserError) as e:
        deduced(graph_of(mlp()), LINE, signatures, "s")
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([], "a mesh takes names of devices, in a list or in lists of equal length"),
        ("gpu:0", "a mesh takes names of devices, in a list or in lists of equal length"),
        ([["gpu:0"], ["gpu:1", "gpu:2"]], "a mesh takes names of devices, in a list or in lists"),
        ([0, 1], "a mesh takes names of devices, in a list or in lists of equal length"),
        (["gpu:0", "gpu:1", "gpu:0"], "device 'gpu:0' occurs twice in a mesh"),
    ],
)
def test_meshes(devices: list, message: str) -> None:
    with pytest.raises(UserError) as e:
        Mesh(devices)
    assert str(e.value).startswith(message)


@pytest.mark.parametrize("axis", [-1, 1.0, True, "0"])
def test_dimensions_of_s(axis: object) -> None:
    with pytest.raises(UserError, match="S takes the number of a dimension, from 0, but got"):
        S(axis)


def test_inputs_on_two_meshes() -> None:
    model = Model(4)
    a = model.input((8,), name="a").to_global(Mesh(["gpu:0"]), S(0))
    b = model.input((8,), name="b").to_global(Mesh(["gpu:1"]), S(0))
    model.add([a, b], name="sum")
    with pytest.raises(UserError) as e:
        resolve("sbp", graph_of(model), Devices.of(gpus=2))
    assert str(e.value) == (
        "operator 'sum' reads 'a' on Mesh(['gpu:0']) and 'b' on Mesh(['gpu:1']); give both the "
        "same mesh by to_global"
    )


def test_a_model_that_says_nothing() -> None:
    with pytest.raises(UserError, match="strategy 'sbp' is what a model says by its tensors' to_"):
        resolve("sbp", graph_of(mlp()), Devices.of(gpus=2))


def test_devices_that_are_not_there() -> None:
    with pytest.raises(UserError, match="operator 'Y0' needs device 'gpu:0', but this run has"):
        resolve("sbp", graph_of(table_4()), Devices.of(cpus=2))


# Tensors


def test_to_global_is_the_same_tensor() -> None:
    """For other readers nothing changes, and the graph holds no second one."""
    model = Model(4)
    x = model.input((8,), name="x")
    wanted = x.to_global(LINE, S(1)).to_global(LINE, S(0))
    assert wanted == x
    assert hash(wanted) == hash(x)
    assert wanted in model.graph
    model.relu(x, name="first")
    y = model.relu(wanted, name="second")
    first, second = model.graph.operators
    assert first.inputs[0] is second.inputs[0] is x
    assert first.signatures == {}
    assert second.signatures[0].signature == (S(0),)
    model.set_outputs(y.to_global(LINE, S(0)))
    graph = graph_of(model)
    assert graph.operators[-1].inputs[0] is y
    assert degrees_of(graph, deduced(graph, LINE, {}, "s")[0])["second"] == {"sample": 2}


# What is printed


def test_description_fits_a_terminal() -> None:
    graph = graph_of(mlp())
    strategy, _ = deduced(graph, SQUARE, {"x": (S(0), None), "contract.kernel": (B, S(1))}, "s")
    devices = Devices.of(gpus=4)
    plan = Plan(strategy.checked(graph, devices), graph.operators[-2].output)
    memory_of = dict(zip(devices.names, devices.names, strict=True))
    text = described(plan, memory_of)
    lines = [line.split() for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= MAX_WIDTH
    # |T| is 8 x 6 x 16 elements, of which each of two rows of the mesh has half.
    half = 4 * 8 * 6 * 16 / 2 / 1000
    assert ["contract.output", "(S(0),", "P)", "2", "x", "2", f"{2 * half:.3f}", "kB"] in lines
    assert ["add", "(S(0),", "S(1))", "2", "x", "2", f"{2 * half:.3f}", "kB"] in lines
    total = sum(move.bytes for move in moves(plan, memory_of))
    assert lines[-1][:2] == [f"{total / 1000:.2f}", "kB"]
    assert text.endswith("are moved in an iteration; all operators are on gpu:0 to gpu:3")
