"""What the tests of commands share: running one in this process, and its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flexlegion.cli.main import main

Capture = pytest.CaptureFixture[str]

# A network whose search ends in a moment.
SMALL = ["--model", "mlp", "--size", "hidden=64x32", "--machine", "p100x2"]
FEW = ["--proposals", "200", "--chains", "2"]


def text_of(capsys: Capture, *args: str) -> tuple[str, str]:
    """Standard output and standard error of a command that succeeds."""
    status = main(list(args))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out, err


def json_of(capsys: Capture, *args: str) -> dict[str, Any]:
    """The one JSON object that a command prints."""
    out, _ = text_of(capsys, *args, "--json")
    assert out.count("\n") == 1
    result = json.loads(out, parse_constant=_no_constant)
    assert isinstance(result, dict)
    return result


def error_of(capsys: Capture, *args: str) -> str:
    """The one sentence of a command that fails because of its user."""
    status = main(list(args))
    out, err = capsys.readouterr()
    assert status == 2, out
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
