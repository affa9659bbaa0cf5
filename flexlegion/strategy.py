"""Strategies: a parallelization configuration for every operator, and their files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flexlegion.documents import read_json
from flexlegion.errors import UserError
from flexlegion.files import write_text
from flexlegion.fingerprint import Fingerprint, difference
from flexlegion.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.quoting import shown
from flexlegion.soap import ParallelConfig
from flexlegion.suggestions import did_you_mean

SCHEMA_VERSION = 1
KEYS = ("schema_version", "found", "operators")
GRAPH = "graph"  # in `found`: the fingerprint, operator by operator


class Strategy(Mapping[str, ParallelConfig]):
    """The paper's S: operator name -> `ParallelConfig`.

    Parameters
    ----------
    configs
        One entry an operator.
    source
        Where it came from, for messages: a file's name, or a built-in strategy's.
    found
        How a search found it, for people: the model, the machine, simulated times, the seed, and
        so on. Values are what JSON can hold, and files carry it along. A "graph" in it is the
        fingerprint of the graph that it is for, which `check` compares.
    """

    def __init__(
        self,
        configs: Mapping[str, ParallelConfig],
        source: str = "strategy",
        found: Mapping[str, Any] | None = None,
    ) -> None:
        self._configs = dict(configs)
        self.source = source
        self.found = dict(found or {})

    def __getitem__(self, operator: str) -> ParallelConfig:
        return self._configs[operator]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    @property
    def told(self) -> dict[str, Any]:
        """What was found, without the description of the graph, which is for files alone."""
        return {key: value for key, value in self.found.items() if key != GRAPH}

    def devices(self) -> set[str]:
        """All devices that it names."""
        return {device for config in self._configs.values() for device in config.devices}

    def check(self, graph: Graph, devices: Devices) -> None:
        """Raise `UserError` unless it fits the graph and the machine.

        Reductions that it leaves out get degrees of 1. One that carries a fingerprint fits the same
        graph alone, with any batch size and loss.
        """
        self._check_fingerprint(graph)
        operators = {operator.name: operator for operator in graph.operators}
        for name in self._configs:
            if name not in operators:
                close = get_close_matches(name, operators, n=1, cutoff=0.75)
                hint = f"did you mean '{close[0]}'?" if close else f"it has {_some(operators)}"
                raise UserError(f"{self.source}: the model has no operator '{name}'; {hint}")
        missing = [name for name in operators if name not in self._configs]
        if missing:
            raise UserError(
                f"{self.source}: no configuration for operator{'s' * (len(missing) > 1)} "
                f"{_some(missing)}; a strategy has one entry for each operator of the model"
            )
        for name, operator in operators.items():
            self._configs[name].check(operator, devices, self.source)
            self._configs[name] = self._configs[name].filled(operator)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Of the graph that it is for, if that is known.

        Raises
        ------
        UserError
            If what a file says is none.
        """
        texts = self.found.get(GRAPH)
        if texts is None:
            return None
        if not isinstance(texts, dict) or not all(isinstance(t, str) for t in texts.values()):
            raise UserError(
                f"{self.source}: 'found' has the {GRAPH} {shown(texts)}, which is none; it may be "
                "left out"
            )
        return Fingerprint(texts)

    def _check_fingerprint(self, graph: Graph) -> None:
        there = self.fingerprint
        if there is None:
            return
        here = Fingerprint.of(graph)
        if there.value != here.value:
            model = self.found.get("model")
            whose = f" ({model})" if isinstance(model, str) else ""
            raise UserError(
                f"{self.source}: this strategy is for another network{whose}: "
                f"{difference(there, here)}"
            )

    def save(self, path: str | Path) -> None:
        """Write it as JSON: one line an operator, so that versions compare well.

        An earlier file of that name stays as it is until the new one is complete.

        Raises
        ------
        UserError
            If the file cannot be written, or `found` is not JSON.
        """
        lines = [
            f"    {json.dumps(name)}: "
            + json.dumps({"degrees": list(c.degrees), "devices": list(c.devices)})
            for name, c in self._configs.items()
        ]
        operators = ",\n".join(lines)
        try:
            found = json.dumps(self.found, indent=2, allow_nan=False).replace("\n", "\n  ")
        except (TypeError, ValueError) as e:
            raise UserError(f"{path}: what was found cannot be written as JSON ({e})") from None
        text = f'{{\n  "schema_version": {SCHEMA_VERSION},\n'
        text += f'  "found": {found},\n' if self.found else ""
        text += f'  "operators": {{\n{operators}\n  }}\n}}\n'
        write_text(path, text, "strategy")

    @classmethod
    def load(cls, path: str | Path) -> Strategy:
        """Read a strategy file.

        Raises
        ------
        UserError
            If the file is missing or is not such a file. Whether it fits a model is `check`'s.
        """
        # Whose strategies need this file.
        from flexlegion.strategies.registry import STRATEGIES, strategy_names

        document = read_json(
            path,
            "strategy",
            f"give a path, or one of the known strategies {strategy_names()}"
            f"{did_you_mean(str(path), STRATEGIES)}",
            "as the command 'flexlegion strategy' writes it",
        )
        configs = _configs_of(document, str(path))
        return cls(configs, str(path), document.get("found"))


def _some(names: Collection[str]) -> str:
    """For messages: all names, or of very many the first."""
    few = ", ".join(list(names)[:12])
    return few if len(names) <= 12 else f"{few} and {len(names) - 12} more"


def _configs_of(document: Any, where: str) -> dict[str, ParallelConfig]:
    """The configurations in a parsed strategy file."""
    if not isinstance(document, dict) or not isinstance(document.get("operators"), dict):
        raise UserError(
            f"{where}: not a strategy file; it has to be an object with 'schema_version' and "
            "'operators'"
        )
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(
            f"{where}: schema_version is {version!r}, but this program reads {SCHEMA_VERSION}"
        )
    for key in document:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key {shown(key)}; the keys are {', '.join(KEYS)}")
    if not isinstance(document.get("found", {}), dict):
        raise UserError(
            f"{where}: 'found' has to be an object, but is {shown(document['found'])}; it may be "
            "left out"
        )
    configs = {}
    for name, entry in document["operators"].items():
        if not isinstance(entry, dict) or set(entry) != {"degrees", "devices"}:
            raise UserError(
                f"{where}: operator '{name}' needs exactly the keys 'degrees' and 'devices'"
            )
        degrees, devices = entry["degrees"], entry["devices"]
        if not isinstance(degrees, list) or not all(type(d) is int for d in degrees):
            raise UserError(f"{where}: operator '{name}': 'degrees' has to be a list of integers")
        if not isinstance(devices, list) or not all(isinstance(d, str) for d in devices):
            raise UserError(f"{where}: operator '{name}': 'devices' has to be a list of names")
        configs[name] = ParallelConfig(tuple(degrees), tuple(devices))
    return configs
