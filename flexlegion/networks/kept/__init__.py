"""Imports that are kept: a model of PyTorch or ONNX is imported once, and then read.

An import takes seconds to minutes, and simulations need of it the graph alone. An entry is found by
all that is known before any code runs (`reads.surroundings`, the name, sizes, batch size), and
counts if all that the import read is still the same (`reads.Reads`). If anything else might decide
what the import makes, nothing is kept. Values of weights are never kept: whoever reads some has the
model imported.

There are two kinds of entries. The first says what a name leads to and which sizes it takes, for
which a user's module would have to be loaded; the second is a model.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import note
from flexlegion.known_strategies.registry import STRATEGIES
from flexlegion.model.model import Model
from flexlegion.networks.kept import store
from flexlegion.networks.kept.document import NotKeptError, document_of, model_of
from flexlegion.networks.kept.reads import READS, surroundings, unchanged
from flexlegion.networks.references import Target, Wanted, is_code, target_of
from flexlegion.networks.sizes import REQUIRED, Size
from flexlegion.process.together import rank
from flexlegion.searches.registry import SEARCHES

OPTION = "--no-kept-import"
_KINDS = {kind.__name__: kind for kind in (int, float, bool, str, tuple)}


def kept_target_of(name: str) -> Target:
    """What a reference leads to, as `target_of` says; its imports are kept, and read if they are.

    Code of the user's runs as far as nothing is kept.

    Raises
    ------
    UserError
        If there is no such thing.
    """
    if not is_code(name):
        return target_of(name)
    facts = ["target", name, surroundings()]
    entry = _entry(facts)
    if entry is not None:
        return _Keeping(name, entry["name"], _read_sizes(entry["sizes"]), None)
    with READS.recorded():
        target = target_of(name)
    return _Keeping(name, target.name, target.sizes, target)


class _Keeping(Target):
    """A target whose imports are kept.

    Parameters
    ----------
    given
        The reference, as it was given.
    name, sizes
        As of `Target`.
    target
        The target itself; None: it is found when it has to build something.
    """

    def __init__(
        self, given: str, name: str, sizes: dict[str, Size], target: Target | None
    ) -> None:
        super().__init__(name, sizes)
        self._given = given
        self._target = target

    def verified(self, verify: bool, wanted: Wanted) -> Model:
        around = surroundings()
        its = [wanted.batch_size, sorted(wanted.sizes.items()), wanted.seed, verify]
        facts = ["model", self._given, around, its]
        entry = _entry(facts)
        if entry is not None:
            model = model_of(entry["model"], cache(lambda: self._checked(entry, verify, wanted)))
            self._say(entry, model)
            return model
        model = self._imported(verify, wanted)
        if model.origin is not None and rank() == 0:
            self._keep(facts, ["target", self._given, around], model)
        return model

    def _imported(self, verify: bool, wanted: Wanted) -> Model:
        with READS.recorded():
            if self._target is None:
                self._target = target_of(self._given)
            return self._target.verified(verify, wanted)

    def _keep(self, facts: Any, target_facts: Any, model: Model) -> None:
        try:
            document = document_of(model)
            if document_of(model_of(document, lambda: model)) != document:
                raise NotKeptError("it would not be read as it was")
            sizes = _written_sizes(self.sizes)
            reads = READS.document()
            for registry in (STRATEGIES, SEARCHES):
                if others := registry.others:
                    raise NotKeptError(f"it registers the {registry.what} '{others[0]}'")
            if READS.reason:
                raise NotKeptError(READS.reason)
            made = time.strftime("%Y-%m-%d %H:%M:%S")
            store.write(store.key_of(facts), {"reads": reads, "made": made, "model": document})
            its = {"reads": reads, "made": made, "name": self.name, "sizes": sizes}
            store.write(store.key_of(target_facts), its)
        except (NotKeptError, OSError) as e:
            note(f"the import of {self.name} is not kept, because {e}")

    def _say(self, entry: dict[str, Any], model: Model) -> None:
        from flexlegion.importers import announce

        if rank() == 0:
            note(f"{self.name} was imported at {entry['made']}, and is not again ({OPTION} does)")
        announce(model)

    def _checked(self, entry: dict[str, Any], verify: bool, wanted: Wanted) -> Model:
        """The model, imported for the values of its weights.

        Raises
        ------
        UserError
            If it is not what was kept.
        """
        model = self._imported(verify, wanted)
        if model.origin is None or document_of(model) != entry["model"]:
            raise UserError(
                f"{self.name} is not what was imported at {entry['made']}, although nothing that it"
                f" reads has changed; {OPTION} imports it again"
            )
        return model

    def _build(self, wanted: Wanted) -> Model:
        raise NotImplementedError  # `verified` has all of it


def _entry(facts: Any) -> dict[str, Any] | None:
    """What is kept of an import, if it would be the same now."""
    entry = store.read(store.key_of(facts))
    return entry if entry is not None and unchanged(entry["reads"]) else None


def _written_sizes(sizes: dict[str, Size]) -> list[Any]:
    written = []
    for size in sizes.values():
        plain = isinstance(size.default, tuple | list | int | float | str | None)
        if size.default is not REQUIRED and not plain:
            raise NotKeptError(f"its size {size.name} is no number or text")
        default = [] if size.default is REQUIRED else [size.default]
        written.append([size.name, size.kind.__name__, default])
    return written


def _read_sizes(written: list[Any]) -> dict[str, Size]:
    return {
        name: Size(name, _KINDS[kind], *(tuple(d) if isinstance(d, list) else d for d in default))
        for name, kind, default in written
    }
