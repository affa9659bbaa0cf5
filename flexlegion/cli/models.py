"""``flexlegion models``: the zoo."""

from __future__ import annotations

import argparse
import math
from typing import Any

from flexlegion.base.phase import phase
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import add_json_option
from flexlegion.console.text import pairs, table, wrapped
from flexlegion.networks.references import FORMS
from flexlegion.zoo import ZOO, build


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "models",
        "list the networks that come with flexlegion, and their sizes",
        "models",
        _run,
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    facts = [_facts(name) for name in ZOO]
    rows = [
        (
            one["name"],
            f"{one['operators']:,}",
            f"{one['weights']:,}",
            f"{one['flops_per_sample'] / 1e9:,.3f}",
            f"{one['batch_size']}",
            one["description"],
        )
        for one in facts
    ]
    columns = ("model", "operators", "weights", "GFLOPs", "batch", "description")
    text = "\n".join(
        [
            table(columns, rows, texts=(0, 5)),
            wrapped("GFLOPs: of one sample's forward pass, a multiply-add counted as two"),
            "",
            "sizes that --size NAME=VALUE changes:",
            pairs((one["name"], _sizes(one["sizes"])) for one in facts),
            wrapped(f"--model takes a model of your own, too: {FORMS}"),
        ]
    )
    answer(args, {"models": facts}, text)


def _facts(name: str) -> dict[str, Any]:
    phase(f"building {name}")
    entry = ZOO[name]
    graph = build(name).graph
    flops = sum(operator.kind.flops(operator.input_shapes) for operator in graph.operators)
    return {
        "name": name,
        "description": entry.description,
        "operators": len(graph.operators),
        "weights": sum(math.prod(weight.shape) for weight in graph.trained_weights),
        "flops_per_sample": flops // entry.batch_size,
        "batch_size": entry.batch_size,
        "loss": entry.loss,
        "sizes": {k: list(v) if isinstance(v, tuple) else v for k, v in entry.sizes.items()},
    }


def _sizes(sizes: dict[str, Any]) -> str:
    """Names and defaults as ``--size`` takes them; of None, the name alone."""
    return " ".join(
        name
        if value is None
        else f"{name}={'x'.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in sizes.items()
    )
