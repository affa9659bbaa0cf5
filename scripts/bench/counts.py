"""Counts how the code is built: lines by room, circles of imports, the native interface, comments.

Run it before and after a change of the structure, and compare. `--rooms` adds a row for each.

- A *room* is a folder of `flexlegion/` or `native/`, or a module at the top of `flexlegion/`.
- Rooms are in a *circle* if each can be reached from the other by imports. Imports for type
  checkers alone (`if TYPE_CHECKING`) are counted separately.
- Lines are those of tracked files, blank ones included. The mean length of lines that are not
  blank tells whether fewer lines only hold more each.

Usage: python scripts/bench/counts.py [--rooms]
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "flexlegion"
CODE = {".py", ".cc", ".cu", ".cuh", ".h", ".html", ".css", ".js", ".svg"}
DEVICE_CODE = {".cc", ".cu", ".cuh", ".h"}
# What C++ casts to a whole number: static_cast<int64_t>, static_cast<std::size_t>, int(x).
INTEGER_CAST = re.compile(
    r"static_cast<\s*(?:std::)?(?:unsigned |signed )?"
    r"(?:u?int\w*_t|size_t|ptrdiff_t|int|long long|long|unsigned|short|char|coord_t)\s*>"
)
# A requirement that is known by its place, not by its role.
BY_ORDER = re.compile(r"\brequirements(?:\[-?\d+\]|\.front\(\)|\.back\(\)|\[:)")


def tracked() -> list[Path]:
    """The files that git knows, relative to the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def room_of(path: Path) -> str:
    """The room of a file of `flexlegion/` or `native/`."""
    return f"{path.parts[0]}/{path.parts[1].removesuffix('.py')}"


def lines_of(path: Path) -> list[str]:
    """A file's lines."""
    return (ROOT / path).read_text(encoding="utf-8").splitlines()


def imports_of(path: Path, modules: Mapping[str, Path]) -> Iterator[tuple[str, bool]]:
    """The package's modules that a module imports, and whether for type checkers alone."""

    def visit(node: ast.AST, for_types: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for statement in child.body:
                    yield from visit(ast.Module([statement], []), True)
                for statement in child.orelse:
                    yield from visit(ast.Module([statement], []), for_types)
            elif isinstance(child, ast.Import):
                yield from ((alias.name, for_types) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                for alias in child.names:
                    name = f"{child.module}.{alias.name}"
                    yield (name if name in modules else child.module), for_types
            else:
                yield from visit(child, for_types)

    for name, for_types in visit(ast.parse((ROOT / path).read_text(encoding="utf-8")), False):
        if name in modules:
            yield name, for_types


def circles(arrows: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The groups of more than one node whose members reach each other, the largest first."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(arrows.get(start, ()))
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(arrows.get(node, ()))
        return seen

    reach = {node: reached(node) for node in arrows}
    groups: list[set[str]] = []
    for node in arrows:
        if any(node in group for group in groups):
            continue
        group = {other for other in reach[node] if node in reach.get(other, ())}
        if len(group) > 1:
            groups.append(group)
    return sorted(groups, key=len, reverse=True)


def room_arrows(python: list[Path], types_too: bool) -> dict[str, set[str]]:
    """Which rooms of the package each room imports from."""
    modules = {}
    for path in python:
        parts = path.with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    arrows: dict[str, set[str]] = defaultdict(set)
    for path in python:
        if path == Path(PACKAGE, "__init__.py"):
            continue  # it names what is public, wherever it is
        here = room_of(path)
        arrows[here]  # a room without imports is a room
        for name, for_types in imports_of(path, modules):
            there = room_of(modules[name])
            if there not in (here, f"{PACKAGE}/__init__") and (types_too or not for_types):
                arrows[here].add(there)
    return arrows


def declared_functions(headers: list[Path]) -> int:
    """How many functions cffi reads in the native headers."""
    count = 0
    for header in headers:
        text = "\n".join(lines_of(header))
        text = re.sub(r"/\*(?! cdef).*?\*/", "", text, flags=re.DOTALL)
        text = text.split("/* cdef begin */")[1].split("/* cdef end */")[0]
        count += len(re.findall(r"\bfl_\w+\([^;{}]*\);", text))
    return count


def comment_lines(lines: Iterable[str]) -> int:
    """How many lines of C++ are comment and nothing else."""
    count = 0
    inside = False
    for line in map(str.strip, lines):
        if inside:
            count += 1
            inside = "*/" not in line
        elif line.startswith("//"):
            count += 1
        elif line.startswith("/*"):
            count += 1
            inside = "*/" not in line
    return count


def matches(files: Iterable[Path], pattern: re.Pattern[str]) -> int:
    """How often a pattern occurs."""
    return sum(len(pattern.findall("\n".join(lines_of(path)))) for path in files)


def show(what: str, value: object) -> None:
    """Print a row."""
    print(f"{what:<58} {value}")


def main() -> None:
    """Print all counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rooms", action="store_true", help="a row for each room, too")
    rooms_too = parser.parse_args().rooms

    files = tracked()
    product = [f for f in files if f.parts[0] in (PACKAGE, "native") and f.suffix in CODE]
    python = [f for f in product if f.suffix == ".py"]
    native = [f for f in product if f.parts[0] == "native"]

    def of(*suffixes: str) -> Callable[[Path], bool]:
        return lambda path: path.suffix in suffixes

    lines: Counter[str] = Counter()
    for path in product:
        lines[room_of(path)] += len(lines_of(path))
    written = [line for path in product for line in lines_of(path) if line.strip()]
    show("product lines (flexlegion/, native/)", sum(lines.values()))
    show("  mean length of its lines that are not blank", f"{_mean(written):.1f}")
    for folder in (PACKAGE, "native"):
        show(f"  {folder}/", sum(n for room, n in lines.items() if room.startswith(folder)))
    for folder in ("tests", "scripts", "docs"):
        text = [f for f in files if f.parts[0] == folder and f.suffix in CODE | {".md", ".sh"}]
        show(f"{folder}/ lines", sum(len(lines_of(path)) for path in text))

    show(f"files at the top of {PACKAGE}/", sum(len(f.parts) == 2 for f in python))
    for types_too in (False, True):
        arrows = room_arrows(python, types_too)
        groups = circles(arrows)
        suffix = ", types included" if types_too else ""
        show(f"rooms{suffix}", len(arrows))
        show(f"rooms in circles{suffix}", sum(map(len, groups)))
        if rooms_too and groups:
            print("    " + "; ".join(" ".join(sorted(group)) for group in groups))

    headers = [f for f in native if f.parent == Path("native/include")]
    show("functions that cffi reads", declared_functions(headers))
    sources = list(filter(of(".cc", ".cu"), native))
    every = [line for path in sources for line in lines_of(path)]
    show("comment lines in .cc and .cu", f"{comment_lines(every) / len(every):.1%}")
    show("integer casts in native/", matches(native, INTEGER_CAST))
    show("requirements known by their place", matches(product, BY_ORDER))
    show("files above 500 lines", sum(len(lines_of(path)) > 500 for path in product))

    if rooms_too:
        print("\nlines by room")
        for room, n in sorted(lines.items()):
            show(f"  {room}", n)


def _mean(lines: list[str]) -> float:
    return sum(map(len, lines)) / len(lines)


if __name__ == "__main__":
    main()
