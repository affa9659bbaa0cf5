"""What the native code numbers, Python reads from its header and says nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from flexlegion.bindings.native import enumeration, names

ROOT = Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "native" / "include").glob("*.h"))
ENUMERATION = re.compile(r"typedef enum \{([^}]*)\} (\w+);")


def enumerations() -> dict[str, list[str]]:
    """Of each enumeration of the headers, the enumerators without prefix."""
    return {
        name: [
            word.removeprefix(f"{name.upper()}_").removeprefix("FL_").lower()
            for word in re.findall(r"\bFL_\w+", members)
        ]
        for header in HEADERS
        for members, name in ENUMERATION.findall(header.read_text())
    }


def test_enumerations_are_read_from_the_header() -> None:
    known = enumerations()
    assert len(known) >= 14
    assert names("fl_tensor_kind") == tuple(known["fl_tensor_kind"])
    assert list(enumeration("fl_role").values()) == list(range(len(known["fl_role"])))
    assert enumeration("fl_run") == {"trains": 1, "evaluates": 2, "predicts": 4}
    assert names("fl_verdict")[-1] == "too_fine"
    assert names("fl_content", " ")[-2:] == ("weight gradients", "optimizer states")


def stated(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a file numbers enumerators itself: by a list of them, or by constants."""
    known = enumerations()
    words = {word for members in known.values() for word in members}
    lists = {tuple(members) for members in known.values() if len(members) > 1}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        constants = [t.id for target in node.targets for t in ast.walk(target) if _is_constant(t)]
        its = {name.lower() for name in constants}
        named = len(its) > 1 and words & (its | {f"{name}s" for name in its})
        if constants and ((named and _numbers(node.value)) or _texts(node.value) in lists):
            yield node.lineno, " ".join(constants)


def _is_constant(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id.isupper()


def _texts(value: ast.expr) -> tuple[str, ...]:
    items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    texts = [str(item.value) for item in items if isinstance(item, ast.Constant)]
    return tuple(re.sub("[- ]", "_", text) for text in texts)


def _numbers(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "range"
    return all(
        not isinstance(node, ast.Constant | ast.Name | ast.Call)
        or (isinstance(node, ast.Constant) and isinstance(node.value, int))
        for node in ast.walk(value)
    )


@pytest.mark.parametrize(
    "text",
    [
        "SIMULATED, OVERLOADED = range(2)",
        "TRAIN, EVALUATE, PREDICT = 1, 2, 4",
        "STAGED, NORM = -1, -2",
        'PRIVILEGES = ("read", "write", "read-write")',
        'ALGORITHMS = ["full", "delta", "unfolded"]',
    ],
)
def test_numbers_are_found(text: str) -> None:
    assert list(stated(ast.parse(text)))


def test_no_file_states_them() -> None:
    found = [
        (path.name, where)
        for path in sorted((ROOT / "flexlegion").rglob("*.py"))
        for _, where in stated(ast.parse(path.read_text()))
    ]
    # Users choose a precision by name; no number is made of the list.
    assert found == [("precision.py", "PRECISIONS")]
