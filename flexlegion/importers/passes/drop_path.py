"""Stochastic depth: a branch times a mask of whole samples, drawn anew in each step."""

from __future__ import annotations

from flexlegion.importers.passes.matching import operands, scalar
from flexlegion.importers.program import SAMPLES, Node, Program


def recognise_drop_path(program: Program) -> None:
    """One node for the pattern."""
    for node in program.nodes:
        if node.op != "mul" or len(operands(node)) != 2:
            continue
        for x, mask in (operands(node), operands(node)[::-1]):
            kept = _kept(mask)
            of_samples = kept is not None and mask.shape == (SAMPLES, *(1,) * (len(x.shape) - 1))
            if of_samples and kept is not None and x.shape == node.shape:
                node.op, node.args = "drop_path", {"input": x, "rate": 1.0 - kept}
                break


def _kept(mask: Node) -> float | None:
    """The probability that a sample is kept, if a node is a mask scaled up by it."""
    if mask.op != "div" or mask["self"].op != "bernoulli":
        return None
    drawn = mask["self"]
    kept = scalar(drawn.get("p"))
    return kept if kept is not None and scalar(mask["other"]) == kept else None
