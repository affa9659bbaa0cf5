"""Lets the programs of docs/ import torchvision, and what imports it, as the benchmarks do."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class BeforeTorchvision:
    """A finder that finds nothing; but before torchvision is looked for, it is made to import."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            from pytorch.models import vision

            vision()
        return None


sys.meta_path.insert(0, BeforeTorchvision())
