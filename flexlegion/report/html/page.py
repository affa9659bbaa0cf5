"""Pages from templates: everything that comes out of files is escaped, and nothing is fetched.

A page's policy (Content-Security-Policy) lets its own script run, known by its hash, and no other;
nothing is loaded from anywhere, so that a hostile name could not do harm even if it got through.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import flexlegion
from flexlegion.base.files import write_text
from flexlegion.base.quoting import escaped, printable
from flexlegion.console.text import count, duration, memory, volume
from flexlegion.plan.passes import GATHERING, PASSES, RECOMPUTING

LONGEST_LABEL = 200


def label(text: object) -> str:
    """A name out of a file as a label: without control characters, its middle cut if it is long.

    Only labels are cut. A page's data and its sentences are complete.
    """
    return printable(str(text), LONGEST_LABEL)


def markup(template: str, values: Mapping[str, Any]) -> str:
    """A template of this folder, filled."""
    return _environment().get_template(template).render(values)


def page(template: str, values: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """A page of its own: styles and script inside, and data for the script.

    Parameters
    ----------
    template
        Of this folder; extends ``page.html``.
    values
        What it shows.
    data
        What JSON can hold; read by the script, and by whoever wants the figures.
    """
    script = _source("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # In a script element, only "<" could end it.
    data = {"pass_rows": [[name, _colour(name)] for name in (*PASSES, "other")], **data}
    text = json.dumps(_clean(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    inside = {
        "style": Markup(_source("report.css")),
        "script": Markup(script),
        "hash": f"sha256-{digest}",
        "data": Markup(text),
        "version": flexlegion.__version__,
    }
    return markup(template, {**values, **inside})


def _colour(pass_: str) -> str:
    """Whose colour a pass has: what follows the backward passes is like an update."""
    alike = dict.fromkeys(("sum", *RECOMPUTING, *GATHERING), "forward")
    own = ("load", "forward", "backward", "other")
    return pass_ if pass_ in own else alike.get(pass_, "update")


def save_page(path: str | Path, text: str) -> None:
    """Write a page; an earlier file stays until it is complete.

    Raises
    ------
    UserError
        If it cannot be written there.
    """
    write_text(path, text, "report")


def _clean(value: Any) -> Any:
    """Data without control characters in its texts. Nothing is cut: a text may be a series."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {escaped(str(key)): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


def _source(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters |= {
        "label": label,
        "duration": duration,
        "memory": memory,
        "volume": volume,
        "count": count,
        "percent": lambda share: f"{share:.0%}" if share >= 0.1 else f"{share:.1%}",
    }
    return environment
