"""Embeddings and recurrent layers."""

from __future__ import annotations

import numpy as np

from flexlegion.graph import Operator
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.lower.elementwise import align_parts
from flexlegion.importers.lower.products import WEIGHTS
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Axis, Value, plain
from flexlegion.importers.weights import Layout
from flexlegion.initializers import Given
from flexlegion.ops.elementwise import Dropout
from flexlegion.ops.embedding import Embedding
from flexlegion.ops.lstm import LSTM
from flexlegion.ops.merge import Concat
from flexlegion.ops.shape import Slice
from flexlegion.tensor import Tensor


@lowers("embedding")
def embedding(lowerer: Lowerer, node: Node) -> Value:
    """Rows of a table; where their numbers are constants, often a part of it as it is."""
    table, tokens = node["weight"], node["indices"]
    if table.op not in WEIGHTS:
        raise Unsupported("its table is computed, not a parameter")
    if node.get("scale_grad_by_freq") or node.get("sparse"):
        raise Unsupported("its gradient is scaled by frequency, or sparse")
    if tokens.op == "constant":
        return rows_of(lowerer, node, table, tokens)
    if node.get("padding_idx", -1) >= 0:
        lowerer.origin.notes.append(
            f"'{node.path}' trains the row of its padding token {node['padding_idx']}, too, which "
            "PyTorch leaves alone"
        )
    return _looked_up(lowerer, node, table, lowerer.in_graph(lowerer.value(tokens)))


def rows_of(lowerer: Lowerer, node: Node, table: Node, tokens: Node) -> Value:
    """The rows of a table (a parameter) that a constant names."""
    if table.op not in WEIGHTS:
        raise Unsupported("it gathers rows of a value that is computed")
    assert tokens.value is not None
    numbers = tokens.value.reshape(-1)
    value = lowerer.value(table)
    first = int(numbers[0])
    if (numbers == first).all():
        row = _some_rows(lowerer, node, value, table, first, 1)
        return row.with_seen((*(() for _ in tokens.shape), *row.seen[1:]))
    if np.array_equal(numbers, np.arange(first, first + len(numbers))):
        rows = _some_rows(lowerer, node, value, table, first, len(numbers))
        shape = (*tokens.value.shape, *table.shape[1:])
        return lowerer.reshaped(rows, shape)
    places = plain(tokens, tokens.value.shape)
    return _looked_up(lowerer, node, table, places)


def _some_rows(
    lowerer: Lowerer, node: Node, value: Value, table: Node, first: int, count: int
) -> Value:
    if count == table.shape[0]:
        return value
    value = lowerer.in_graph(value)
    (axis,) = value.seen[0]
    tensor = lowerer.arranged(value, ((), (axis,), *value.seen[1:]))
    name = lowerer.name(node, suffix="rows")
    output = lowerer.model.graph.add(Slice(1, first, count), [tensor], name)
    new = (Axis(count),) if count > 1 else ()
    return Value(output, ((), new, *value.seen[1:]), (new, *value.seen[1:]))


def _looked_up(lowerer: Lowerer, node: Node, table: Node, tokens: Value) -> Value:
    samples = tuple(a for a in tokens.axes if a.extent == SAMPLES)
    steps = tuple(a for a in tokens.axes if a not in samples)
    tensor = lowerer.arranged(tokens, [samples, steps])
    if tensor.dtype != "int32":
        raise Unsupported("its tokens are computed")
    rows, units = table.shape
    values = np.asarray(table.value, np.float32)
    layout = Layout(table.shape, tuple(range(len(table.shape))), table.shape)
    kind = Embedding(rows, units, 0, tensor.shape[1], Given(values))
    operator = lowerer.apply(kind, [tensor], lowerer.name(node), [(table, layout)])
    channels = (Axis(units),) if units > 1 else ()
    return Value(operator.output, (samples, steps, channels), (*tokens.seen, channels))


@lowers("lstm")
def lstm(lowerer: Lowerer, node: Node) -> tuple[Value, ...]:
    """Layers one after the other, each in one or both directions."""
    if "params" not in node.args or "batch_sizes" in node.args:
        raise Unsupported("its sequences are packed")
    value = lowerer.value(node["input"])
    if any(s.op != "constant" or s.value is None or s.value.any() for s in node["hx"]):
        raise Unsupported("it begins with a state other than zeros")
    directions = 2 if node["bidirectional"] else 1
    each = 4 if node["has_biases"] else 2
    groups = [node["params"][i : i + each] for i in range(0, len(node["params"]), each)]
    if len(groups) != node["num_layers"] * directions:
        raise Unsupported("it projects its states")
    samples, steps = (0, 1) if node["batch_first"] else (1, 0)
    states: list[Operator] = []
    for layer in range(node["num_layers"]):
        if layer and node["dropout"] and node["train"]:
            kind = Dropout(float(node["dropout"]), len(lowerer.model.graph.operators))
            name = lowerer.unique(f"{node.path}.layer{layer}.dropout".lstrip("."))
            dropped = lowerer.model.graph.add(kind, [lowerer.tensor(value)], name)
            value = Value(dropped, value.stored, value.seen)
        value = lowerer.in_graph(value)
        runs = [value.seen[samples], value.seen[steps], value.seen[2]]
        tensor = lowerer.arranged(value, runs)
        parts = []
        for direction in range(directions):
            group = groups[layer * directions + direction]
            name = f"{node.path}.layer{layer}{'.reverse' if direction else ''}".lstrip(".")
            operator = _recurrent(lowerer, tensor, group, lowerer.unique(name), bool(direction))
            parts.append(operator.output)
            states.append(operator)
        output = parts[0]
        if directions == 2:
            name = lowerer.unique(f"{node.path}.layer{layer}.both".lstrip("."))
            output = lowerer.model.graph.add(Concat(2), parts, name)
        hidden = (Axis(output.shape[2]),)
        seen = [(), (), hidden]
        seen[samples], seen[steps] = value.seen[samples], value.seen[steps]
        value = Value(output, (seen[samples], seen[steps], hidden), tuple(seen))
    used = {user["index"] for user in lowerer.users[node] if user.op == "getitem"}
    final = [_states(lowerer, node, states, i) if i in used else value for i in (1, 2)]
    return (value, *final)


def _recurrent(
    lowerer: Lowerer, tensor: Tensor, group: list[Node], name: str, reverse: bool
) -> Operator:
    """One layer in one direction; its gates, the rows of PyTorch's weights, lie within a unit's."""
    hidden = group[1].shape[1]
    weights, initial = [], []
    for source in group:
        if source.op not in WEIGHTS or source.value is None:
            raise Unsupported("its weights are computed, not parameters")
        rest = source.shape[1:]
        order = tuple(range(2 + len(rest)))
        layout = Layout((4, hidden, *rest), (1, 0, *order[2:]), (hidden, 4, *rest))
        weights.append((source, layout))
        initial.append(Given(layout.of(np.asarray(source.value, np.float32))))
    if len(group) == 2:
        raise Unsupported("it has no biases")
    kind = LSTM(
        hidden, initial[0], initial[1], initial[2], initial[3], two_biases=True, reverse=reverse
    )
    return lowerer.apply(kind, [tensor], name, weights)


def _states(lowerer: Lowerer, node: Node, layers: list[Operator], output: int) -> Value:
    """The last states of all layers and directions, seen as (layers, n, hidden)."""
    values = []
    for layer in layers:
        tensor = layer.outputs[output]
        runs = ((Axis(SAMPLES),), (Axis(tensor.shape[1]),))
        values.append(Value(tensor, runs, ((), *runs)))
    shape = (1, SAMPLES, layers[0].output.shape[2])
    parts, place = align_parts(lowerer, values, [shape] * len(values), 0)
    if len(values) == 1:
        return Value(parts.tensors[0], parts.stored, parts.seen)
    name = lowerer.name(node, suffix="states")
    joined = lowerer.model.graph.add(Concat(place), parts.tensors, name)
    return Value(joined, parts.stored, parts.seen)
