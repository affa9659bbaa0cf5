"""Reading a ``.pt2``, an archive of `torch.export.save`, without running what it says.

torch reads such an archive as code in four ways: it unpickles example inputs and some constants,
it loads compiled libraries, it hands texts of symbolic sizes to sympy, which evaluates them as
Python, and it imports the modules that a structure of arguments names. So an archive is checked
before torch reads it, by torch's own reader of archives: pickles may hold tensors alone, symbolic
sizes are arithmetic, and whatever is code is refused.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.data.reading import check_archive

_DATA = ("models/", "data/weights/", "data/constants/", "data/sample_inputs/", "extra/", ".data/")
_NOTES = ("archive_format", "archive_version", "byteorder")
# Constants that are objects, by the beginning of their file's name; torch unpickles them freely.
_OBJECTS = ("custom_obj", "opaque_obj")
# What sizes are made of, as torch prints them.
_FUNCTION = re.compile(
    "Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Abs|Mod|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|"
    "FloorDiv|ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|"
    "PowByNatural|FloatPow|FloatTrueDiv|IntTrueDiv|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal|"
    "ToFloat|Identity|floor|ceiling"
)
_SYMBOL = re.compile(r"[A-Za-z]\w*", re.ASCII)
_ARITHMETIC = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.Load,
    ast.keyword,
)
_LONGEST = 10_000  # characters of a size
_ONLY_TENSORS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # an environment variable that torch.load reads


def load(path: Path) -> ExportedProgram:
    """The program in a ``.pt2``.

    Raises
    ------
    UserError
        If there is none, if it is damaged, or if reading it would run code of the file's.
    """
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file; give one that torch.export.save has written")
    check_archive(path, "an exported program")
    try:
        _check(path)
        with _only_tensors():
            return torch.export.load(path)
    except UserError:
        raise
    except Exception as e:
        raise UserError(
            f"{path}: not a file that torch.export.save has written, or cut short, or of another "
            f"version than this PyTorch, {torch.__version__}"
        ) from e


@contextlib.contextmanager
def _only_tensors() -> Iterator[None]:
    """Have every `torch.load` meanwhile refuse pickles that hold more than tensors."""
    before = os.environ.get(_ONLY_TENSORS)
    os.environ[_ONLY_TENSORS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ONLY_TENSORS]
        else:
            os.environ[_ONLY_TENSORS] = before


def _check(path: Path) -> None:
    """Raise `UserError` if something in an archive is code."""
    with zipfile.ZipFile(path) as archive:
        if "version" in archive.namelist():
            raise UserError(
                f"{path}: written by PyTorch 2.7 or before, in an archive whose parts cannot be "
                "checked for code; export the module again"
            )
    reader = torch._C.PyTorchFileReader(str(path))
    for name in reader.get_all_records():
        if not name.startswith(_DATA) and name not in _NOTES:
            raise _code(path, f"its part '{name}' is no data of an exported program")
        file = name.rpartition("/")[2]
        if file.startswith(_OBJECTS):
            raise _code(path, f"'{name}' is an object, which only a pickle can hold")
        if name.endswith(".pt"):
            _check_pickle(path, name, reader.get_record(name))
        elif name.endswith(".json"):
            for key, value in _entries(json.loads(reader.get_record(name))):
                _check_entry(path, key, value)


def _check_pickle(path: Path, name: str, content: bytes) -> None:
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError:
        raise _code(path, f"'{name}' is a pickle of more than tensors") from None


def _check_entry(path: Path, key: str, value: Any) -> None:
    """Check what torch reads otherwise than as data."""
    if key == "expr_str" and not _is_arithmetic(value):
        raise _code(path, f"'{value}' stands for a size, and is no arithmetic")
    if key == "path_name" and str(value).rpartition("/")[2].startswith(_OBJECTS):
        raise _code(path, f"'{value}' is an object, which only a pickle can hold")
    if key == "use_pickle" and value:
        raise _code(path, "some of its weights are pickled, as tensors of a class of their own are")
    if key == "__enum__" or (key == "default_factory_module" and value != "builtins"):
        raise _code(path, "the structure of its arguments names classes that torch would import")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """All keys of a JSON document and their values, those of documents within texts included."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            with contextlib.suppress(ValueError):
                waiting.append(json.loads(value))


def _is_arithmetic(text: Any) -> bool:
    """Whether a text is an expression of numbers, symbols and functions that sizes have."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    allowed = set()  # texts that are names of symbols
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if not isinstance(function, ast.Name) or not _FUNCTION.fullmatch(function.id):
                return False
            first = node.args[0] if node.args else None
            if function.id == "Symbol" and isinstance(first, ast.Constant):
                allowed.add(first)
        elif isinstance(node, ast.Name):
            if not _SYMBOL.fullmatch(node.id) or "__" in node.id:
                return False
        elif isinstance(node, ast.Constant):
            value = node.value
            named = node in allowed and isinstance(value, str) and _SYMBOL.fullmatch(value)
            if not named and not isinstance(value, bool | int | float):
                return False
        elif not isinstance(node, _ARITHMETIC):
            return False
    return True


def _code(path: Path, what: str) -> UserError:
    return UserError(
        f"{printable(str(path))}: reading it could run code of the file's: "
        f"{printable(what, 300)}; have torch.export.save write tensors alone"
    )
