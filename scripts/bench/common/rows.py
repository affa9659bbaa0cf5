"""Files of figures that are kept: JSON, of which each row is a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flexlegion.base.files import json_text, write_text


def write_rows(file: Path, document: dict[str, Any]) -> None:
    """As JSON, each entry of its lists on a line of its own."""

    def lines(its: list[Any]) -> str:
        return "[\n" + ",\n".join(map(json_text, its)) + "\n]"

    parts = [
        f"{json_text(key)}: {lines(its) if isinstance(its, list) else json_text(its)}"
        for key, its in document.items()
    ]
    write_text(file, "{" + ",\n".join(parts) + "}\n", "report")
