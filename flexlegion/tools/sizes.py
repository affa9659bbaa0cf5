"""Sizes of networks, as options and files name them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from flexlegion.documents import shown
from flexlegion.errors import UserError
from flexlegion.zoo import ZOO

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def add_size_option(parser: argparse.ArgumentParser) -> None:
    """``--size``."""
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a size of the network, as in steps=10 or input_shape=64x64x3; may be repeated; "
        "flexlegion models lists them",
    )


def given_sizes(given: list[str], model: str) -> dict[str, Any]:
    """Sizes by ``NAME=VALUE``, each in its default's type."""
    sizes: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--size takes NAME=VALUE, as in steps=10, but is '{text[:60]}'")
        if name in sizes:
            raise UserError(f"--size {name} is given twice; give it once")
        sizes[name] = _size(model, name, value, f"--size {name}")
    return sizes


def found_sizes(found: Mapping[str, Any], model: str, source: str) -> dict[str, Any]:
    """Sizes that a strategy file was found for."""
    sizes = found.get("sizes", {})
    if not isinstance(sizes, dict):
        raise UserError(f"{source}: 'found' has the sizes {shown(sizes)}, which is no object")
    return {
        name: _size(model, name, size_text(value), f"{source}: 'found' size '{name[:40]}'")
        for name, value in sizes.items()
    }


def _size(model: str, name: str, text: str, where: str) -> Any:
    known = ZOO[model].sizes
    if name not in known:
        raise UserError(f"model '{model}' has no size '{name[:40]}'; it has {', '.join(known)}")
    default = known[name]
    if isinstance(default, tuple):
        parts = re.split("[x,]", text)
        if all(_WHOLE.fullmatch(part) for part in parts):
            return tuple(map(int, parts))
        raise UserError(
            f"{where} has to be whole numbers with x between them, as in {size_text(default)}, "
            f"but is '{text[:60]}'"
        )
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{where} has to be a number, but is '{text[:60]}'") from None
    if _WHOLE.fullmatch(text):
        return int(text)
    raise UserError(f"{where} has to be a whole number, but is '{text[:60]}'")


def size_text(value: Any) -> str:
    """A size as options write it."""
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
