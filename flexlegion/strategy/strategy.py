"""Strategies: a parallelization configuration for every operator, and their files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

from flexlegion.base.arguments import wrong_type
from flexlegion.base.documents import read_json
from flexlegion.base.errors import UserError
from flexlegion.base.files import write_text
from flexlegion.base.quoting import described, printable, shown
from flexlegion.graph.fingerprint import Fingerprint, difference
from flexlegion.graph.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.objective.losses import parts_of_loss
from flexlegion.objective.training import MAX_MICRO_BATCHES
from flexlegion.strategy.configuration import SHARDING, SUMS, ParallelConfig
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity, from_json, to_json

SCHEMA_VERSION = 2
KEYS = ("schema_version", "found", "granularity", "operators")
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
        fingerprint of the graph that it is for, which `checked` compares.
    granularity
        How finely plans are cut where the configurations leave it open; None: it states nothing.
    """

    def __init__(
        self,
        configs: Mapping[str, ParallelConfig],
        source: str = "strategy",
        found: Mapping[str, Any] | None = None,
        granularity: Granularity | None = None,
    ) -> None:
        if not isinstance(configs, Mapping):
            raise UserError(
                f"a Strategy is made of a dict of configurations by operators, not of "
                f"{described(configs)}; Strategy.load reads a file"
            )
        for name, config in configs.items():
            if not isinstance(config, ParallelConfig):
                raise UserError(
                    f"{source}: the configuration of operator '{name}' has to be a "
                    "ParallelConfig, as in ParallelConfig((2, 1), ('gpu:0', 'gpu:1')), but is "
                    f"{described(config)}"
                )
        self._configs = dict(configs)
        self.source = source
        self.found = dict(found or {})
        self.granularity = granularity

    @staticmethod
    def _instead_of(value: object) -> str:
        """What a message says where something else was given for a strategy."""
        if isinstance(value, dict):
            return "Strategy(...) makes one of a dict with a ParallelConfig for each operator"
        return ""

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

    def with_origin(self, source: str, found: Mapping[str, Any]) -> Self:
        """The same strategy, which says that it comes from there, and was found in that way."""
        twin = copy(self)
        twin.source = source
        twin.found = dict(found)
        return twin

    def filled(self, graph: Graph) -> dict[str, ParallelConfig]:
        """Its configurations with a degree for each dimension of each operator of a graph.

        See `ParallelConfig.filled`. Operators that prepare a loss, and that the strategy does not
        name, are split as the loss is; those that another loss had, and this one has not, are left
        out.

        Raises
        ------
        UserError
            If it names a dimension that an operator does not have.
        """
        operators = {op.name: op for op in graph.operators}
        configs = dict(self._configs)
        for loss in self._configs:
            for part in parts_of_loss(loss):
                if part in operators:
                    configs.setdefault(part, self._configs[loss])
                elif loss in operators:
                    configs.pop(part, None)
        return {
            name: config.filled(operators[name], self.source) if name in operators else config
            for name, config in configs.items()
        }

    def checked(self, graph: Graph, devices: Devices) -> ResolvedStrategy:
        """The strategy resolved for a graph and a machine, if it fits them.

        Its configurations are `filled`, and otherwise what they were. A strategy that carries a
        fingerprint fits the same graph alone, with any batch size and loss.

        Raises
        ------
        UserError
            If it does not fit.
        """
        self._check_fingerprint(graph)
        filled = self.filled(graph)
        operators = {operator.name: operator for operator in graph.operators}
        for name in filled:
            if name not in operators:
                close = get_close_matches(name, operators, n=1, cutoff=0.75)
                hint = f"did you mean '{close[0]}'?" if close else f"it has {_some(operators)}"
                raise UserError(f"{self.source}: the model has no operator '{name}'; {hint}")
        missing = [name for name in operators if name not in filled]
        if missing:
            raise UserError(
                f"{self.source}: no configuration for operator{'s' * (len(missing) > 1)} "
                f"{_some(missing)}; a strategy has one entry for each operator of the model"
            )
        configs = {name: filled[name] for name in operators}
        for name, operator in operators.items():
            configs[name].check(operator, devices, self.source)
        return ResolvedStrategy(configs, self, graph, devices)

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

        Degrees are written by the names of the operators' dimensions if these are known: those of a
        `ResolvedStrategy` are. An earlier file of that name stays as it is until the new one is
        complete.

        Raises
        ------
        UserError
            If the file cannot be written, or `found` is not JSON.
        """
        lines = [
            f"    {json.dumps(name)}: {json.dumps(entry_of(config))}"
            for name, config in self._for_file().items()
        ]
        operators = ",\n".join(lines)
        try:
            found = json.dumps(self.found, indent=2, allow_nan=False).replace("\n", "\n  ")
        except (TypeError, ValueError) as e:
            raise UserError(f"{path}: what was found cannot be written as JSON ({e})") from None
        text = f'{{\n  "schema_version": {SCHEMA_VERSION},\n'
        text += f'  "found": {found},\n' if self.found else ""
        if self.granularity not in (None, DEFAULT_GRANULARITY):
            text += f'  "granularity": {json.dumps(to_json(self.granularity))},\n'
        text += f'  "operators": {{\n{operators}\n  }}\n}}\n'
        write_text(path, text, "strategy")

    def _for_file(self) -> Mapping[str, ParallelConfig]:
        """Its configurations as a file has them."""
        return self._configs

    @classmethod
    def load(cls, path: str | Path) -> Strategy:
        """Read a strategy file.

        Raises
        ------
        UserError
            If the file is missing or is not such a file. Whether it fits a model is `checked`'s.
        """
        if not isinstance(path, str | Path):
            raise wrong_type("load", "path", str | Path, path)
        return read_file(path, "give the path of one")


class ResolvedStrategy(Strategy):
    """A strategy that was checked: what is planned, simulated, searched from and trained.

    `Strategy.checked` makes it, and nothing else does. So whoever is given one need not check it
    again: each operator of the graph has a configuration that fits, with a degree for each of its
    dimensions, in the graph's order.

    Parameters
    ----------
    configs
        The configurations.
    strategy
        What was checked.
    graph, machine
        What it was checked against.

    Attributes
    ----------
    known
        What others have found out about it, by whom they asked, for them not to ask again.
    """

    def __init__(
        self,
        configs: Mapping[str, ParallelConfig],
        strategy: Strategy,
        graph: Graph,
        machine: Devices,
    ) -> None:
        super().__init__(configs, strategy.source, strategy.found, strategy.granularity)
        self.graph = graph
        self.machine = machine
        self.known: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: what others know stays here."""
        return {name: value for name, value in vars(self).items() if name != "known"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, known=WeakKeyDictionary())

    def with_origin(self, source: str, found: Mapping[str, Any]) -> Self:
        """As of any `Strategy`; what is known of this one holds for that, too."""
        twin = super().with_origin(source, found)
        twin.known = self.known
        return twin

    def changed(self, configs: Mapping[str, ParallelConfig]) -> ResolvedStrategy:
        """The same with other configurations of some operators, which alone are checked.

        Raises
        ------
        UserError
            If one of them does not fit.
        """
        operators = {operator.name: operator for operator in self.graph.operators}
        changed = {}
        for name, config in configs.items():
            changed[name] = config.filled(operators[name], self.source)
            changed[name].check(operators[name], self.machine, self.source)
        return ResolvedStrategy(self._configs | changed, self, self.graph, self.machine)

    def text(self) -> str:
        """All that decides a plan, written out: equal exactly if two plan alike."""
        entries = {name: entry_of(config) for name, config in self._for_file().items()}
        return json.dumps(
            [entries, None if self.granularity is None else to_json(self.granularity)]
        )

    def _for_file(self) -> Mapping[str, ParallelConfig]:
        return {op.name: self[op.name].named(op) for op in self.graph.operators}


def read_file(path: str | Path, remedy: str) -> Strategy:
    """Read a strategy file.

    Parameters
    ----------
    path
        The file.
    remedy
        What to do where there is none, for the message.

    Raises
    ------
    UserError
        As `Strategy.load`.
    """
    document = read_json(path, "strategy", remedy, "as the command 'flexlegion strategy' writes it")
    configs = _configs_of(document, str(path))
    granularity = None
    if "granularity" in document:
        granularity = from_json(document["granularity"], str(path))
    return Strategy(configs, str(path), document.get("found"), granularity)


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
            f"{where}: schema_version is {shown(version)}, but this program reads {SCHEMA_VERSION}"
        )
    for key in document:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key {shown(key)}; the keys are {', '.join(KEYS)}")
    if not isinstance(document.get("found", {}), dict):
        raise UserError(
            f"{where}: 'found' has to be an object, but is {shown(document['found'])}; it may be "
            "left out"
        )
    return {
        name: _config_of(entry, f"{where}: operator '{printable(name)}'")
        for name, entry in document["operators"].items()
    }


def _config_of(entry: Any, where: str) -> ParallelConfig:
    """An operator's configuration."""
    required = {"degrees", "devices"}
    optional = {"sums", "hierarchical", "buffers", "again", "sharding"}
    if not isinstance(entry, dict) or not required <= set(entry) <= required | optional:
        raise UserError(
            f"{where} needs the keys 'degrees' and 'devices', and may have 'sums', "
            "'hierarchical', 'buffers', 'again' and 'sharding'"
        )
    degrees = entry["degrees"]
    buffers = entry.get("buffers", 1)
    if type(buffers) is not int or not 1 <= buffers <= MAX_MICRO_BATCHES:
        raise UserError(
            f"{where}: 'buffers' has to be a number from 1 to {MAX_MICRO_BATCHES:,}, but is "
            f"{shown(buffers)}"
        )
    flags = {name: entry.get(name, False) for name in ("hierarchical", "again")}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise UserError(f"{where}: '{name}' has to be true or false, but is {shown(flag)}")
    chosen: dict[str, Any] = dict(flags, buffers=buffers)
    for name, choices in {"sums": SUMS, "sharding": SHARDING}.items():
        chosen[name] = entry.get(name, choices[0])
        if not isinstance(chosen[name], str) or chosen[name] not in choices:
            raise UserError(
                f"{where}: '{name}' has to be {' or '.join(map(shown, choices))}, but is "
                f"{shown(chosen[name])}"
            )
    if not _is_list(entry["devices"], str):
        raise UserError(f"{where}: 'devices' has to be a list of names")
    devices = tuple(entry["devices"])
    if isinstance(degrees, dict) and _is_list(list(degrees.values()), int):
        names = tuple(degrees)
        extents = tuple(degrees.values())
        return ParallelConfig(extents, devices, dims=names, **chosen)
    if _is_list(degrees, int):
        return ParallelConfig(tuple(degrees), devices, **chosen)
    raise UserError(
        f"{where}: 'degrees' has to be an object of integers by the dimensions' names, as in "
        '{"sample": 2}, or a list of one for each dimension'
    )


def _is_list(value: Any, of: type) -> bool:
    return isinstance(value, list) and all(type(item) is of for item in value)


def entry_of(config: ParallelConfig) -> dict[str, Any]:
    """What a file says of an operator: degrees, devices, and how sums are made, if otherwise."""
    by_name = config.dims is not None
    degrees = dict(zip(config.dims or (), config.degrees, strict=False))
    entry: dict[str, Any] = {"degrees": degrees if by_name else list(config.degrees)}
    if config.sums != SUMS[0]:
        entry["sums"] = config.sums
    if config.hierarchical:
        entry["hierarchical"] = True
    if config.buffers != 1:
        entry["buffers"] = config.buffers
    if config.again:
        entry["again"] = True
    if config.sharding != SHARDING[0]:
        entry["sharding"] = config.sharding
    return entry | {"devices": list(config.devices)}
