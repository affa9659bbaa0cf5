"""Strategies: a parallelization configuration for every operator, and their files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flexlegion.devices import Devices
from flexlegion.documents import read_json
from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.soap import ParallelConfig

SCHEMA_VERSION = 1


class Strategy(Mapping[str, ParallelConfig]):
    """The paper's S: operator name -> `ParallelConfig`.

    Parameters
    ----------
    configs
        One entry an operator.
    source
        Where it came from, for messages: a file's name, or a built-in strategy's.
    """

    def __init__(self, configs: Mapping[str, ParallelConfig], source: str = "strategy") -> None:
        self._configs = dict(configs)
        self.source = source

    def __getitem__(self, operator: str) -> ParallelConfig:
        return self._configs[operator]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def devices(self) -> set[str]:
        """All devices that it names."""
        return {device for config in self._configs.values() for device in config.devices}

    def check(self, graph: Graph, devices: Devices) -> None:
        """Raise `UserError` unless it fits the graph and the machine."""
        operators = {operator.name: operator for operator in graph.operators}
        for name in self._configs:
            if name not in operators:
                close = get_close_matches(name, operators, n=1, cutoff=0.75)
                hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(operators)}"
                raise UserError(f"{self.source}: the model has no operator '{name}'; {hint}")
        missing = [name for name in operators if name not in self._configs]
        if missing:
            raise UserError(
                f"{self.source}: no configuration for operator{'s' * (len(missing) > 1)} "
                f"{', '.join(missing)}; a strategy has one entry for each operator of the model"
            )
        for name, operator in operators.items():
            self._configs[name].check(operator, devices, self.source)

    def save(self, path: str | Path) -> None:
        """Write it as JSON: one line an operator, so that versions compare well.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        lines = [
            f"    {json.dumps(name)}: "
            + json.dumps({"degrees": list(c.degrees), "devices": list(c.devices)})
            for name, c in self._configs.items()
        ]
        operators = ",\n".join(lines)
        text = (
            f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "operators": {{\n{operators}\n  }}\n}}\n'
        )
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as e:
            raise UserError(
                f"{path}: the strategy cannot be written there ({e.strerror}); give the name of a "
                "file in a folder that exists"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Strategy:
        """Read a strategy file.

        Raises
        ------
        UserError
            If the file is missing or is not such a file. Whether it fits a model is `check`'s.
        """
        document = read_json(
            path,
            "strategy",
            "give a path, or one of the built-in strategies single, data, model, random:SEED",
            "as the command 'flexlegion strategy' writes it",
        )
        return cls(_configs_of(document, str(path)), str(path))


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
