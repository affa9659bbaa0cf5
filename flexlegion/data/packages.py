"""Packages that only some data need."""

from __future__ import annotations

import importlib
from types import ModuleType

from flexlegion.base.errors import UserError


def required(name: str, what: str) -> ModuleType:
    """A package that is not always installed.

    Parameters
    ----------
    name
        Of the module, and of the package on PyPI.
    what
        What needs it, for the message.

    Raises
    ------
    UserError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{what} needs the package {name}: pip install {name}") from None
