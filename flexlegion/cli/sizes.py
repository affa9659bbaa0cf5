"""Sizes of models, as options and files name them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable, shown
from flexlegion.graph.tensor import MAX_EXTENT
from flexlegion.networks.references import Target, same_target
from flexlegion.networks.sizes import size_text
from flexlegion.strategy.strategy import Strategy


def add_size_option(parser: argparse.ArgumentParser) -> None:
    """``--size``."""
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a size of the model, as in steps=10 or input_shape=64x64x3; may be repeated; "
        "flexlegion models lists them",
    )


def given_sizes(given: list[str], target: Target) -> dict[str, Any]:
    """Sizes by ``NAME=VALUE``, each of the kind that the model takes."""
    sizes: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--size takes NAME=VALUE, as in steps=10, but is '{text[:60]}'")
        if name in sizes:
            raise UserError(f"--size {name} is given twice; give it once")
        sizes[name] = target.size(name, value, f"--size {name}")
    return sizes


def batch_size(text: str) -> int:
    """The value of ``--batch-size``."""
    if not re.fullmatch("[0-9]{1,10}", text) or not 1 <= int(text) <= MAX_EXTENT:
        raise argparse.ArgumentTypeError(
            f"has to be a whole number from 1 to {MAX_EXTENT}, but is {printable(text, 40)}"
        )
    return int(text)


def found_for(target: Target, strategy: str | Strategy | None) -> Mapping[str, Any]:
    """What a strategy file was found for, if for this model: its batch size, loss, ...

    Raises
    ------
    UserError
        If its batch size is none.
    """
    if not isinstance(strategy, Strategy):
        return {}
    found = strategy.found
    if not same_target(target.name, str(found.get("model"))):
        return {}
    size = found.get("batch_size")
    if size is not None and type(size) is not int:
        raise UserError(
            f"{strategy.source}: 'found' has the batch_size {shown(size)}, which is none"
        )
    return found


def found_sizes(found: Mapping[str, Any], target: Target, source: str) -> dict[str, Any]:
    """Sizes that a strategy file was found for."""
    sizes = found.get("sizes", {})
    if not isinstance(sizes, dict):
        raise UserError(f"{source}: 'found' has the sizes {shown(sizes)}, which is no object")
    return {
        name: target.size(name, size_text(value), f"{source}: 'found' size '{name[:40]}'")
        for name, value in sizes.items()
    }


def listed(text: str | None) -> list[str] | None:
    """Names with commas between."""
    return None if text is None else [name.strip() for name in text.split(",")]
