"""The text of this package's modules as parts of programs."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

# The modules whose text programs have.
MODULES = (
    "dtensor_runtime",
    "dtensor_training",
    "dtensor_pipeline",
    "torch_functions",
    "torch_layers",
    "jax_runtime",
    "jax_training",
    "jax_pipeline",
    "jax_functions",
    "jax_layers",
)
# Names that programs use beside what these modules have.
OWN = ("OUTPUTS", "STATES", "dict", "forward_backward", "key", "now", "parts", "t", "w", "whole")


@functools.cache
def taken() -> frozenset[str]:
    """Names that programs of either target use: so an input has one name in both.

    They are read from the modules' sources, because importing JAX's takes seconds.
    """
    found = set(OWN)
    for module in MODULES:
        source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.update(_spelt(alias).split()[-1] for alias in node.names)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                walked = itertools.chain.from_iterable(map(ast.walk, targets))
                found.update(name.id for name in walked if isinstance(name, ast.Name))
    return frozenset(found)


def imports(text: str, *modules: ModuleType) -> str:
    """The import statements of some modules, with those names alone that a text has."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for module in modules:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Import):
                plain.update(_spelt(alias) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                assert node.module is not None
                if node.module.startswith("flexlegion"):
                    continue  # the program has all of it
                named.setdefault(node.module, set()).update(map(_spelt, node.names))
    lines = [f"import {name}" for name in sorted(plain) if _occurs(name, text)]
    for source, names in sorted(named.items()):
        if kept := sorted(name for name in names if _occurs(name, text)):
            lines.append(f"from {source} import {', '.join(kept)}")
    return "\n".join(lines)


def _spelt(alias: ast.alias) -> str:
    return alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"


def _occurs(name: str, text: str) -> bool:
    """Whether a text uses what is imported so."""
    return re.search(rf"\b{re.escape(name.split()[-1])}\b", text) is not None


def body(module: ModuleType) -> str:
    """What a module has between its marks."""
    return inspect.getsource(module).partition("# begin")[2].partition("# end")[0]


def used(modules: Sequence[ModuleType], names: set[str]) -> str:
    """What modules define under those names, and what that uses, in the modules' order."""
    text = "\n\n\n".join(map(body, modules))
    pieces = [piece.strip("\n") for piece in re.split(r"\n\n\n", text) if piece.strip()]
    named = {}
    for piece in pieces:
        found = re.match(r"(?:@.+\n)*(?:def |class |)(\w+)", piece)
        assert found is not None, piece
        named[found.group(1)] = piece
    wanted, left = set(), list(names)
    while left:
        name = left.pop()
        if name in wanted:
            continue
        wanted.add(name)
        left += [other for other in named if re.search(rf"\b{other}\b", named.get(name, ""))]
    return "\n\n\n".join(text for name, text in named.items() if name in wanted)


def words(text: str) -> set[str]:
    """The identifiers of a program's text."""
    return set(re.findall(r"\w+", text))
