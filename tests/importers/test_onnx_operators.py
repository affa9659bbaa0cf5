"""Operators of ONNX compute what ONNX's own evaluator does, or are refused by name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import BATCH, Case, all_cases, const, given

import flexlegion as fl
from flexlegion.importers.verify import differences

NAMED = re.compile(r"'\w+' at |output 'out\d' |shapes do not fit|two outputs are called")


def outcome(each: Case) -> str:
    """ "right", "refused", or what is wrong."""
    try:
        expected = each.expected()
    except Exception:
        return "not evaluated by ONNX"
    try:
        model = fl.from_onnx(each.model, batch_size=BATCH)
    except fl.UserError as e:
        return "refused" if NAMED.search(str(e)) and "\n" not in str(e) else str(e)
    found = differences(model, each.inputs, expected, torch.float64)
    return f"{found[0].what} {found[0].how}" if found else "right"


def test_every_operator_and_attribute() -> None:
    """Some 1,300 models: none is wrong, refusals name the operation."""
    outcomes = [(each.name, outcome(each)) for each in all_cases()]
    expected = ("right", "refused", "not evaluated by ONNX")
    assert [(name, how) for name, how in outcomes if how not in expected] == []
    counts = Counter(how for _, how in outcomes)
    assert counts["right"] > 950
    assert counts["not evaluated by ONNX"] < 20


def net(nodes: list[Any], initializers: dict[str, Any], outputs: tuple[str, ...] = ("y",)) -> Any:
    """A model of an input x (n, 6)."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])
    ends = [helper.make_empty_tensor_value_info(name) for name in outputs]
    for end in ends:
        end.type.tensor_type.elem_type = 1
    arrays = [numpy_helper.from_array(np.asarray(a), name) for name, a in initializers.items()]
    graph = helper.make_graph(nodes, "g", [x], ends, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def node(op: str, *names: str, **attributes: Any) -> Any:
    """A node; the last name is its output."""
    return helper.make_node(op, names[:-1], names[-1:], **attributes)


def test_the_number_of_samples_is_no_number() -> None:
    """What computes with it is refused; shapes, and what is the same for all, are not."""
    size = [node("Shape", "x", "s"), node("Gather", "s", "zero", "n")]
    real = [*size, node("Cast", "n", "r", to=1)]
    one = numpy_helper.from_array(np.ones(1, np.float32))
    ones = [node("ConstantOfShape", "s", "c", value=one)]
    ones.append(node("ReduceSum", "c", "axes", "t", keepdims=0))
    zero = {"zero": np.int64(0), "axes": np.array([0, 1])}
    refused = [
        [*real, node("Div", "x", "r", "y")],
        [*real, node("Sqrt", "r", "q"), node("Mul", "x", "q", "y")],
        [*size, node("Size", "x", "e"), node("Cast", "e", "f", to=1), node("Mul", "x", "f", "y")],
        [*size, *ones, node("Add", "x", "t", "y")],
        [*real, node("Clip", "x", "", "r", "y")],
    ]  # fmt: skip
    for nodes in refused:
        with pytest.raises(fl.UserError, match="the number of samples, which may be any"):
            fl.from_onnx(net(nodes, zero), batch_size=4)
    ones[1] = node("ReduceMean", "c", "axes", "t", keepdims=0)
    fine = [
        [*size, *ones, node("Add", "x", "t", "y")],
        [*real, node("Div", "r", "r", "one"), node("Mul", "x", "one", "z"), node("Relu", "z", "y")],
        [*size, node("Expand", "half", "s", "h"), node("Add", "x", "h", "y")],
    ]
    for nodes in fine:
        model = net(nodes, zero | {"half": np.float32(0.5)})
        inputs = {"x": given(6)}
        expected = Case("", model, inputs).expected()
        made = fl.from_onnx(model, batch_size=4)
        assert differences(made, inputs, expected, torch.float64) == []


def test_small_files_make_no_large_constants() -> None:
    """Neither at once, nor by doubling, nor by many; nor functions of functions."""
    huge = node("ConstantOfShape", "shape", "c")
    sum_ = node("ReduceMax", "c", "m", keepdims=0)
    end = node("Add", "x", "m", "y")
    shape = {"shape": np.array([1 << 30, 6])}
    doubled = [node("Concat", f"c{i}", f"c{i}", f"c{i + 1}", axis=0) for i in range(40)]
    start = node("Identity", "w", "c0")
    cases = [
        net([huge, sum_, end], shape),
        net([start, *doubled, node("ReduceMax", "c40", "m", keepdims=0), end],
            {"w": np.zeros(1, np.int64)}),
        net([node("Range", "a", "b", "d", "c"), sum_, end],
            {"a": np.int64(0), "b": np.int64(1 << 40), "d": np.int64(1)}),
        net([node("Expand", "w", "shape", "c"), sum_, end], shape | {"w": np.float32(1)}),
        net([node("Tile", "w", "shape", "c"), sum_, end],
            {"w": np.ones((1, 1), np.float32), "shape": np.array([1 << 20, 1 << 20])}),
    ]  # fmt: skip
    for model in cases:
        with pytest.raises(fl.UserError, match="too large for so small a file"):
            fl.from_onnx(model, batch_size=4)
    model = net([helper.make_node("f0", ["x"], ["y"], domain="own")], {})
    for i in range(60):
        twice = [helper.make_node(f"f{i + 1}", [a], [b], domain="own") for a, b in ("xz", "zy")]
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
        model.functions.append(helper.make_function("own", f"f{i}", ["x"], ["y"], twice, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(fl.UserError, match="call each other"):
        fl.from_onnx(model, batch_size=4)


def test_damage_is_said_in_a_sentence(tmp_path: Path) -> None:
    """Cycles, values that nothing computes, data that are too short, and such."""
    weight = {"w": const(6, 6)}
    short = net([node("MatMul", "x", "w", "y")], weight)
    short.graph.initializer[0].raw_data = short.graph.initializer[0].raw_data[:-9]
    outside = net([node("MatMul", "x", "w", "y")], weight)
    onnx.save(outside, tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0)
    (data,) = {*tmp_path.iterdir()} - {tmp_path / "net.onnx"}
    data.write_bytes(b"1")
    sparse = net([node("Relu", "x", "y")], {})
    sparse.graph.sparse_initializer.add()
    loop = [node("Add", "x", "b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")]
    cases = [
        (net(loop, {}), "node 0, 'Add', reads 'b', which nothing before it computes"),
        (net([node("Relu", "z", "y")], {}), "reads 'z'"),
        (net([node("Relu", "x", "z")], {}), "nothing computes 'y'"),
        (net([node("Relu", "x", "y"), node("Relu", "x", "y")], {}), "'y' more than once"),
        (short, "initializer 'w' of shape \\[6, 6\\] cannot be read"),
        (tmp_path / "net.onnx", "net.onnx"),
        (sparse, "sparse"),
        (net([node("Shape", "x", "s"), node("Cast", "s", "y", to=1)], {}), "does not depend"),
        (net([node("Relu", "x", "y", colour=1)], {}), "attribute 'colour' is not known"),
        (net([node("Relu", "x", "x", "y")], {}), "more than 1 inputs"),
    ]
    for model, words in cases:
        with pytest.raises(fl.UserError, match=words) as e:
            fl.from_onnx(model, batch_size=4)
        assert "\n" not in str(e.value)


def trained_of(model: Any, **more: Any) -> tuple[set[str], list[str]]:
    """Names of the parameters that are trained, and the import's notes."""
    made = fl.from_onnx(model, batch_size=4, **more)
    assert made.origin is not None
    weights = {w.name for w in made.graph.weights if w.requires_gradient}
    places = made.origin.places
    return {
        name for name in places if {p.weight for p in places[name]} & weights
    }, made.origin.notes


def test_which_initializers_are_trained() -> None:
    """Names do not matter; single numbers and masks are told of; the file's word and the user's."""
    arrays = {
        "scalar": np.ones((1,), np.float32),
        "val_1": const(6),
        "bias": np.zeros(6, np.float32),
        "single": np.float32(2),
        "mask": np.array([0, -1e9, 0, 0, 0, 0], np.float32),
        "where": const(6, 6),
    }
    chain = ["x", *(f"t{i}" for i in range(5)), "y"]
    ops = [*(("Add", name) for name in [*arrays][:5]), ("MatMul", "where")]
    nodes = [node(op, chain[i], name, chain[i + 1]) for i, (op, name) in enumerate(ops)]
    model = net(nodes, arrays)
    trained, notes = trained_of(model)
    assert trained == {"scalar", "val_1", "bias", "where"}
    assert any("not trained" in note and "'single', 'mask'" in note for note in notes)
    trained, notes = trained_of(model, trained=["single", "where"])
    assert trained == {"single", "where"}
    assert not any("not trained" in note for note in notes)
    with pytest.raises(fl.UserError, match="did you mean 'scalar'"):
        trained_of(model, trained=["scaler"])
    for name, kind in (("bias", "BUFFER"), ("single", "PARAMETER"), ("val_1", "CONSTANT_TENSOR")):
        value = model.graph.value_info.add(name=name)
        key = "pkg.torch.export.graph_signature.InputSpec.kind"
        value.metadata_props.add(key=key, value=kind)
    trained, notes = trained_of(model)
    assert trained == {"scalar", "single", "where"}
    assert any("not trained" in note and "'mask'" in note for note in notes)


def test_where_it_is_no_number() -> None:
    """Not only behind a softmax: what replaces nan does so."""
    x = np.where(given(6) > 0.5, np.float32(np.nan), given(6))
    nodes = [node("Log", "x", "l"), node("IsNaN", "l", "c"), node("Where", "c", "w", "l", "y")]
    model = net(nodes, {"w": const(6)})
    made = fl.from_onnx(model, batch_size=4)
    expected = Case("", model, {"x": x}).expected()
    assert np.isfinite(expected["y"]).all()
    assert differences(made, {"x": x}, expected, torch.float64) == []


@pytest.mark.parametrize("rank", [3, 4])
def test_queries_that_attend_to_nothing(rank: int) -> None:
    """A softmax over nothing is no number, unless the file says zeros; whatever becomes of both."""
    turn = [*range(rank - 2), rank - 1, rank - 2]
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    mask[2] = -np.inf
    nodes = [
        node("MatMul", "x", "wq", "q"),
        node("MatMul", "x", "wk", "k"),
        node("Transpose", "k", "t", perm=turn),
        node("MatMul", "q", "t", "s"),
        node("Add", "s", "m", "a"),
        node("Softmax", "a", "p"),
        node("IsNaN", "p", "c"),
        node("Where", "c", "z", "p", "o"),
        node("MatMul", "o", "x", "y"),
    ]
    arrays = {"wq": const(6, 6), "wk": const(6, 6), "m": mask, "z": np.float32(0)}
    model = net(nodes, arrays)
    x = given(*[2] * (rank - 3), 4, 6)
    model.graph.input[0].type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", *x.shape[1:]])
    )
    with np.errstate(all="ignore"):
        made = fl.from_onnx(model, batch_size=4)
        expected = Case("", model, {"x": x}).expected()
    assert np.isfinite(expected["y"]).all()
    assert differences(made, {"x": x}, expected, torch.float64) == []
    kinds = {op.kind.type for op in made.graph.operators}
    assert ("multi_head_attention" in kinds) == (rank == 4)
