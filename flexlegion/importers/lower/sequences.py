"""Embeddings and recurrent layers."""

from __future__ import annotations

from typing import Literal

import numpy as np

from flexlegion.graph.graph import Operator
from flexlegion.graph.initializers import Initializer, Later, Zeros
from flexlegion.graph.tensor import Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, first_values, lowers
from flexlegion.importers.lower.elementwise import align_parts
from flexlegion.importers.lower.products import WEIGHTS
from flexlegion.importers.lower.shapes import select
from flexlegion.importers.program import SAMPLES, Node, Type, known
from flexlegion.importers.views import Axis, Run, Value, explicit, plain, runs_of
from flexlegion.layers.origin import Layout
from flexlegion.ops.embedding import Embedding
from flexlegion.ops.gru import GRU
from flexlegion.ops.lstm import LSTM
from flexlegion.ops.merge import Concat
from flexlegion.ops.shape import Slice


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
    value = lowerer.in_graph(lowerer.value(tokens))
    if value.source.dtype != "int32":
        return _by_computed(lowerer, node, table, tokens)
    rows = _looked_up(lowerer, node, table, value)
    return rows.with_seen((rows.seen[0], *rows.seen[2:])) if node.get("picked") else rows


def _by_computed(lowerer: Lowerer, node: Node, table: Node, tokens: Node) -> Value:
    """Rows by numbers that are computed, as positions among what is no padding.

    A number is compared with all rows' numbers; the row is a product of these ones and zeros with
    the table. A number that names no row gives zeros; PyTorch raises an error then.
    """
    from flexlegion.importers.lower.elementwise import apply
    from flexlegion.importers.lower.products import by_kernel

    rows = table.shape[0]
    numbers = np.arange(rows, dtype=np.float32)
    every = Node("constant", {}, Type((rows,), "float32"), node.path, value=numbers)
    value = explicit(lowerer.value(tokens), tokens.shape)
    value = value.with_seen((*value.seen, ()))
    name = lowerer.name(node, suffix="is")
    chosen = apply(lowerer, "(x0 == x1)", [value, plain(every, (rows,))], name)
    kernel = lowerer.value(table)
    padding = _padding(node)
    if padding >= 0:  # whose row has no gradient
        trained = np.ones((rows, 1), np.float32)
        trained[padding] = 0
        mask = Node("constant", {}, Type((rows, 1), "float32"), node.path, value=trained)
        formula = "where((x1 > 0.0), x0, detach(x0))"
        name = lowerer.name(node, suffix="table")
        kernel = apply(lowerer, formula, [kernel, plain(mask, (rows, 1))], name)
    return by_kernel(lowerer, node, chosen, kernel.with_seen(reversed(kernel.seen)))


def rows_of(lowerer: Lowerer, node: Node, table: Node, tokens: Node) -> Value:
    """The rows of a table (a parameter) that a constant names."""
    if table.op not in WEIGHTS:
        raise Unsupported("it gathers rows of a value that is computed")
    assert tokens.value is not None
    if isinstance(tokens.value, Later):
        return _looked_up(lowerer, node, table, plain(tokens, tokens.value.shape))
    numbers = tokens.value.reshape(-1)
    if _padding(node) in numbers:  # whose row has no gradient
        return _looked_up(lowerer, node, table, plain(tokens, tokens.value.shape))
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
    tensor = lowerer.arranged(tokens, [samples, steps], whole=True)
    if tensor.dtype != "int32":
        raise Unsupported("its tokens are computed")
    rows, units = table.shape
    layout = Layout(table.shape, tuple(range(len(table.shape))), table.shape)
    start, count = node.get("start", 0), node.get("steps", tensor.shape[1])
    kind = Embedding(rows, units, start, count, _padding(node), first_values(table, layout))
    operator = lowerer.apply(kind, [tensor], lowerer.name(node), [(table, layout)])
    channels = (Axis(units),) if units > 1 else ()
    seen = tokens.seen
    if count != tensor.shape[1]:  # a part of the steps, which are the second dimension
        steps = (Axis(count),) if count > 1 else ()
        seen = (tokens.seen[0], steps)
    return Value(operator.output, (samples, steps, channels), (*seen, channels))


def _padding(node: Node) -> int:
    """The token whose row has no gradient, or -1."""
    padding = node.get("padding_idx")
    return -1 if padding is None else int(padding)


@lowers("embedding_bag")
def embedding_bag(lowerer: Lowerer, node: Node) -> tuple[Value, ...]:
    """The sum or mean of the rows that each sample's tokens name, of which all have as many.

    Padding tokens count for nothing: neither in the sum, nor in how many it is the mean of.
    """
    tokens, offsets = node["indices"], node["offsets"]
    extents = tokens.shape
    size = extents[0] // SAMPLES if len(extents) == 1 and extents[0] % SAMPLES == 0 else 0
    size = node.get("steps", size)
    counts = offsets.op == "constant"
    if (
        not size
        or not counts
        or not np.array_equal(known(offsets).reshape(-1), size * np.arange(known(offsets).size))
    ):
        raise Unsupported("its bags are of different sizes")
    if node["weight"].op not in WEIGHTS:
        raise Unsupported("its table is computed, not a parameter")
    if node.get("per_sample_weights") is not None or node["mode"] not in (0, 1):
        raise Unsupported("it weighs its rows, or takes their maximum")
    by_sample = lowerer.value(tokens)
    if "steps" not in node.args:
        by_sample = lowerer.reshaped(by_sample, (SAMPLES, size))
    by_sample = lowerer.in_graph(by_sample)
    rows = _looked_up(lowerer, node, node["weight"], by_sample)
    if _padding(node) >= 0:
        return (_bag_without_padding(lowerer, node, by_sample, rows),) * 4
    if size == 1:
        value = rows.with_seen((rows.seen[0], rows.seen[2]))
    else:
        name = lowerer.name(node, suffix="bag")
        kind: Literal["sum", "mean"] = "sum" if node["mode"] == 0 else "mean"
        output = lowerer.model.reduce(lowerer.tensor(rows), kind, 1, name=name)
        runs = (rows.stored[0], rows.stored[2])
        value = Value(output, runs, runs)
    return (value,) * 4


def _bag_without_padding(lowerer: Lowerer, node: Node, tokens: Value, rows: Value) -> Value:
    """The sum of rows, or their mean, each weighted by whether its token is no padding."""
    model, name = lowerer.model, lowerer.name(node, suffix="bag")
    tensor = lowerer.arranged(tokens, [tokens.seen[0], tokens.seen[1]])
    count = rows.source.shape[1]
    if tensor.shape[1] != count:
        raise Unsupported("it leaves out a padding token, of a part of its input's tokens")
    formula = f"(x0 != {_padding(node)!r})"
    weights = model.elementwise(formula, [tensor], name=f"{name}.counts")
    if node["mode"] == 1:
        total = model.reduce(weights, "sum", 1, keepdims=True, name=f"{name}.count")
        # Of a bag of padding alone, the mean is zero.
        weights = model.elementwise("x0 / maximum(x1, 1)", [weights, total], name=f"{name}.weights")
    weights = model.reshape(weights, (1, count), name=f"{name}.row")
    output = model.matmul(weights, lowerer.tensor(rows), name=f"{name}.product")
    output = model.reshape(output, (rows.source.shape[2],), name=name)
    runs = (rows.stored[0], rows.stored[2])
    return Value(output, runs, runs)


# Of a recurrent cell: the gates of its weights, and how many of its outputs are states.
_CELLS = {"lstm": (4, 2), "gru": (3, 1)}


@lowers("lstm", "gru")
def recurrent(lowerer: Lowerer, node: Node) -> tuple[Value, ...]:
    """Layers one after the other, each in one or both directions."""
    if "params" not in node.args or "batch_sizes" in node.args:
        raise Unsupported("its sequences are packed")
    value = lowerer.value(node["input"])
    first = node["hx"] if isinstance(node["hx"], list | tuple) else [node["hx"]]
    zeros = all(s.op == "constant" and not known(s).any() for s in first)
    directions = 2 if node["bidirectional"] else 1
    each = 4 if node["has_biases"] else 2
    groups = [node["params"][i : i + each] for i in range(0, len(node["params"]), each)]
    samples, steps = (0, 1) if node["batch_first"] else (1, 0)
    states: list[Operator] = []
    for layer in range(node["num_layers"]):
        if layer and node["dropout"] and node["train"]:
            name = lowerer.unique(f"{node.path}.layer{layer}.dropout".lstrip("."))
            rate = float(node["dropout"])
            dropped = lowerer.model.dropout(lowerer.tensor(value), rate, name)
            value = Value(dropped, value.stored, value.seen)
        value = lowerer.in_graph(value)
        runs = [value.seen[samples], value.seen[steps], value.seen[2]]
        tensor = lowerer.arranged(value, runs)
        parts = []
        for direction in range(directions):
            group = groups[layer * directions + direction]
            name = f"{node.path}.layer{layer}{'.reverse' if direction else ''}".lstrip(".")
            name = lowerer.unique(name)
            tensors = [tensor]
            if not zeros:
                number = layer * directions + direction
                tensors += [_initial(lowerer, node, s, number, value.seen[samples]) for s in first]
            operator = _cell(lowerer, node.op, tensors, group, name, bool(direction))
            parts.append(operator.output)
            states.append(operator)
        output = parts[0]
        if directions == 2:
            name = lowerer.unique(f"{node.path}.layer{layer}.both".lstrip("."))
            output = lowerer.model.graph.add(Concat(2), parts, name)
        hidden = runs_of(output.shape[2:])[0]  # no axis for a single unit
        seen = [(), (), hidden]
        seen[samples], seen[steps] = value.seen[samples], value.seen[steps]
        value = Value(output, (seen[samples], seen[steps], hidden), tuple(seen))
    used = {user["index"] for user in lowerer.users[node] if user.op == "getitem"}
    numbers = range(1, 1 + _CELLS[node.op][1])
    final = [_states(lowerer, node, states, i) if i in used else value for i in numbers]
    return (value, *final)


def _initial(lowerer: Lowerer, node: Node, states: Node, number: int, samples: Run) -> Tensor:
    """The state (n, hidden) with which one layer begins in one direction, of those of all."""
    shape = states.shape[1:]
    args = {"self": states, "dim": 0, "index": number}
    one = select(lowerer, Node("select", args, Type(shape, states.type.dtype), node.path))
    value = lowerer.with_samples(one, shape)
    if value.seen[0] != samples and len(value.seen[0]) != len(samples):
        raise Unsupported("its samples are merged otherwise than those of its first state")
    return lowerer.arranged(value, [value.seen[0], value.seen[1]])


def _cell(
    lowerer: Lowerer, op: str, tensors: list[Tensor], group: list[Node], name: str, reverse: bool
) -> Operator:
    """One layer in one direction; its gates, the rows of PyTorch's weights, lie within a unit's."""
    hidden, gates = group[1].shape[1], _CELLS[op][0]
    weights: list[tuple[Node, Layout] | None] = []
    initial: list[Initializer] = []
    for source in group:
        if source.op not in WEIGHTS or source.value is None:
            raise Unsupported("its weights are computed, not parameters")
        rest = source.shape[1:]
        order = tuple(range(2 + len(rest)))
        layout = Layout((gates, hidden, *rest), (1, 0, *order[2:]), (hidden, gates, *rest))
        weights.append((source, layout))
        initial.append(first_values(source, layout))
    if len(group) == 2:  # constants, which nothing trains
        weights += [None, None]
        initial += [Zeros(), Zeros()]
    kind: LSTM | GRU
    kernel, recurrent, bias, recurrent_bias = initial
    if op == "lstm":
        kind = LSTM(hidden, kernel, recurrent, bias, recurrent_bias, True, reverse)
    else:
        kind = GRU(hidden, kernel, recurrent, bias, recurrent_bias, reverse)
    return lowerer.apply(kind, tensors, name, weights)


def _states(lowerer: Lowerer, node: Node, layers: list[Operator], output: int) -> Value:
    """The last states of all layers and directions, seen as (layers, n, hidden)."""
    values = []
    for layer in layers:
        tensor = layer.outputs[output]
        runs = runs_of((SAMPLES, *tensor.shape[1:]))
        values.append(Value(tensor, runs, ((), *runs)))
    if len(values) == 1:
        return values[0]
    shape = (1, SAMPLES, layers[0].output.shape[2])
    parts, place = align_parts(lowerer, values, [shape] * len(values), 0)
    name = lowerer.name(node, suffix="states")
    joined = lowerer.model.graph.add(Concat(place), parts.tensors, name)
    return Value(joined, parts.stored, parts.seen)
