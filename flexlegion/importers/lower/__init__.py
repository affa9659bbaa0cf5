"""From the internal form to our operators: one function an operation, a file a family."""

from __future__ import annotations

import difflib
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Later
from flexlegion.importers.lower import (
    attention,
    elementwise,
    experts,
    gathering,
    images,
    normalization,
    products,
    reductions,
    resizing,
    sequences,
    shapes,
)
from flexlegion.importers.lower.base import LOWERINGS, Absent, Lowerer, Unsupported
from flexlegion.importers.lower.ends import lower_input, lower_output
from flexlegion.importers.program import SAMPLES, Node, Program, Type, why_unknown
from flexlegion.importers.views import plain
from flexlegion.layers.origin import Origin
from flexlegion.model.model import Model

__all__ = [
    "attention",
    "elementwise",
    "experts",
    "gathering",
    "images",
    "lower",
    "normalization",
    "products",
    "reductions",
    "resizing",
    "sequences",
    "shapes",
]

SOURCES = ("input", "parameter", "buffer", "constant")


def lower(program: Program, model: Model) -> Origin:
    """Add a program's operators to a model, whose outputs become the program's.

    Raises
    ------
    UserError
        If there are operations that cannot be lowered; all of them are named.
    """
    users = program.users()
    lowerer = Lowerer(model, users)
    problems: dict[str, None] = {}
    for node in program.nodes:
        if node.op not in SOURCES and node.op not in LOWERINGS:
            problems[_unknown(node)] = None
            continue
        if any(source not in lowerer.results for source in node.inputs):
            continue  # it stands behind a problem that is known
        try:
            lowerer.results[node] = _lower(lowerer, node, users)
        except (Unsupported, UserError) as e:
            problems[f"{_where(node)}: {e}"] = None
    if problems:
        raise UserError(
            f"{len(problems)} of the network's operations cannot be imported: "
            + "; ".join(list(problems)[:20])
            + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        )
    outputs = []
    for name, node in program.outputs:
        try:
            outputs.append(lower_output(lowerer, name, node))
        except Unsupported as e:
            raise UserError(f"output '{name}' cannot be imported: {e}") from e
    model.set_outputs(outputs)
    lowerer.origin.aliases, lowerer.origin.buffers = program.aliases, program.buffers
    lowerer.origin.notes = program.notes + lowerer.origin.notes
    return lowerer.origin


def _lower(lowerer: Lowerer, node: Node, users: dict[Node, list[Node]]) -> Any:
    if node.op == "input":
        return lower_input(lowerer, node, users)
    if node.op == "constant":
        assert node.value is not None
        if len(node.value.shape) != len(node.shape) or any(
            e not in (1, s) or e == SAMPLES
            for e, s in zip(node.value.shape, node.shape, strict=True)
        ):
            if isinstance(node.value, Later):
                return Absent(
                    "it reads a constant that may differ from sample to sample: "
                    + why_unknown(node.value)
                )
            return Absent("it reads a constant that differs from sample to sample")
        return plain(node, node.value.shape)
    if node.op in SOURCES:
        return plain(node, node.shape)
    if isinstance(node.type, Type) and 0 in node.shape:
        return Absent("it reads a value without elements")  # concatenation leaves it out
    return LOWERINGS[node.op](lowerer, node)


def _where(node: Node) -> str:
    at = f" at '{node.path}'" if node.path else ""
    layer = f" ({node.layer.rsplit('.', 1)[-1]})" if node.layer else ""
    return f"'{node.op}'{at}{layer}"


def _unknown(node: Node) -> str:
    near = difflib.get_close_matches(node.op, LOWERINGS, 3, 0.5)
    hint = f"; near it are {', '.join(near)}" if near else ""
    return f"{_where(node)} is not known{hint}"
