"""The picture of a network by layers, coloured by split, as SVG: inside a page, or for papers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flexlegion.base.errors import UserError
from flexlegion.base.files import write_text
from flexlegion.console.text import common_name
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies import AnyStrategy, read_strategy
from flexlegion.known_strategies.registry import make_strategy
from flexlegion.machine.devices import Devices
from flexlegion.machine.topology import Topology
from flexlegion.profiling.machines import load_machine
from flexlegion.report.html.groups import WHOLE, Configs, Folded, Group, kinds_of, levels
from flexlegion.report.html.layout import Layout, layered
from flexlegion.report.html.page import markup

NODE_WIDTH, NODE_HEIGHT = 196, 46
GAP, LAYER_HEIGHT, MARGIN = 22, 74, 12
KEY_HEIGHT = 18  # a row of the legend
LETTERS = 25  # of a name, as many as fit into a node

# By what is split: what it is called.
SPLITS = {
    WHOLE: "whole, not split",
    "S": "samples",
    "A": "attributes",
    "P": "parameters",
    "SA": "samples and attributes",
    "SP": "samples and parameters",
    "AP": "attributes and parameters",
    "SAP": "all three",
    "R": "what is summed (rows of the weight)",
    "XR": "what is summed, and others",
}


@dataclass(frozen=True)
class Picture:
    """A network under a strategy, for notebooks and papers.

    Attributes
    ----------
    graph : Graph
        The network.
    strategy : mapping
        By whose splits it is coloured: for each operator its configuration.
    title : str
        What it is of.
    """

    graph: Graph
    strategy: Configs
    title: str

    def __repr__(self) -> str:
        return f"Picture({self.title!r})"

    @cached_property
    def svg(self) -> str:
        """All of it, with its own styles."""
        return markup("picture.svg", self.facts() | {"standalone": True})

    def facts(self) -> dict[str, Any]:
        """What the templates draw."""
        return drawn(levels(self.graph)[0], self.strategy) | {"title": self.title}

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg}</div>'

    def save(self, path: str | Path) -> None:
        """Write it as an SVG file, for papers and slides.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        write_text(path, self.svg, "picture")


def picture_of(
    graph: Graph, spec: AnyStrategy, machine: str | Topology | None, devices: Devices | None
) -> Picture:
    """See `Model.plot`; `devices` are those of this run, if there is one.

    Raises
    ------
    UserError
        If there is no such strategy or machine, or it is not for this graph.
    """
    if machine is not None:
        devices = (load_machine(machine) if isinstance(machine, str) else machine).names
    strategy = read_strategy(spec)
    if isinstance(strategy, str):
        if devices is None:
            raise UserError(
                f"the strategy '{strategy}' depends on the machine; name one, as in "
                f"plot('{strategy}', 'p100x4')"
            )
        strategy = make_strategy(strategy, graph, devices)
    configs = strategy.filled(graph)
    for op in graph.operators:
        if op.name not in configs or len(configs[op.name].degrees) != len(op.dims):
            raise UserError(
                f"{strategy.source}: this strategy is for another network: it does not configure "
                f"'{op.name}', or not as its output has dimensions"
            )
    return Picture(graph, configs, f"{len(graph.operators)} operators; {strategy.source}")


def drawn(folded: Folded, strategy: Configs) -> dict[str, Any]:
    """Nodes, edges and the legend of a picture, with their places."""
    layout = layered(
        len(folded.groups), folded.edges, node_width=NODE_WIDTH, gap=GAP, bend_width=14
    )
    labels = _labels(folded.groups)
    nodes = [
        _node(group, label, place, strategy)
        for group, label, place in zip(folded.groups, labels, layout.nodes, strict=True)
    ]
    used = {kind for node in nodes for kind, _ in node["shares"]}
    legend = [(kind, text) for kind, text in SPLITS.items() if kind in used]
    width = max([round(layout.width), *(_key_width(text) for _, text in legend)]) + 2 * MARGIN
    return {
        "width": width,
        "height": layout.layers * LAYER_HEIGHT - (LAYER_HEIGHT - NODE_HEIGHT) + 2 * MARGIN,
        "node_width": NODE_WIDTH,
        "node_height": NODE_HEIGHT,
        "nodes": nodes,
        "edges": _curves(layout),
        "legend": legend,
        "keys": _keys(legend, width),
    }


def _key_width(text: str) -> int:
    """Of a square and a text of so many letters."""
    return 16 + round(6.2 * len(text))


def _keys(legend: Sequence[tuple[str, str]], width: int) -> list[dict[str, Any]]:
    """The legend of a picture by itself: in as many rows as its width makes of it."""
    keys: list[dict[str, Any]] = []
    x, y = MARGIN, 8
    for kind, text in legend:
        if x > MARGIN and x + _key_width(text) > width - MARGIN:
            x, y = MARGIN, y + KEY_HEIGHT
        keys.append({"kind": kind, "text": text, "x": x, "y": y})
        x += _key_width(text) + 18
    return keys


def split_text(group: Group, strategy: Configs) -> str:
    """How a group's operators are split: ``sample 4 x channel 2``, or what most of them are."""
    texts: dict[str, int] = {}
    for op in group.operators:
        parts = [
            f"{dim.name} {degree}"
            for dim, degree in zip(op.dims, strategy[op.name].degrees, strict=True)
            if degree > 1
        ]
        text = " × ".join(parts) or "whole"
        texts[text] = texts.get(text, 0) + 1
    if not texts:
        return "data"
    most = max(texts, key=lambda text: texts[text])
    return most if len(texts) == 1 else f"{most}, +{len(texts) - 1} more"


def _labels(groups: Sequence[Group]) -> list[str]:
    """Names that fit into the boxes, by what tells them apart.

    A long name loses its beginning, part by part, for its end is what differs:
    ``…attention.self.query`` of ``encoder.layer.*.attention.self.query``. Where that leaves two
    alike, the middle is left out.
    """
    found = [_ended(group.name, _room(group)) for group in groups]
    return [
        label if found.count(label) == 1 else _middle(group.name, _room(group))
        for label, group in zip(found, groups, strict=True)
    ]


def _room(group: Group) -> int:
    """Letters beside how often a group repeats."""
    return LETTERS - (5 if group.repeats > 1 else 0)


def _ended(name: str, letters: int) -> str:
    """A name, or the longest end of it that fits and begins with a part, or with a word of one."""
    if len(name) <= letters:
        return name
    for between in (".", "_"):
        starts = [match.end() for match in re.finditer(re.escape(between), name)]
        for start in starts:
            if 4 < len(name) - start < letters:
                return f"…{name[start:]}"
    return _middle(name, letters)


def _middle(text: str, letters: int) -> str:
    """A text without its middle, if it is longer."""
    if len(text) <= letters:
        return text
    end = letters // 2
    return f"{text[: letters - end - 1]}…{text[-end:]}"


def _node(group: Group, label: str, place: tuple[float, int], strategy: Configs) -> dict[str, Any]:
    kinds = kinds_of(group, strategy)
    total = sum(kinds.values())
    types = list(dict.fromkeys(op.kind.type for op in group.operators))
    return {
        "x": round(place[0] - NODE_WIDTH / 2) + MARGIN,
        "y": place[1] * LAYER_HEIGHT + MARGIN,
        "name": label,
        "full": group.name,
        "repeats": group.repeats,
        "types": common_name(types) if types else "input",
        "split": _cut(split_text(group, strategy), LETTERS + 4),
        "kind": next(iter(kinds), "input"),
        "shares": [(kind, count / total) for kind, count in kinds.items()],
    }


def _curves(layout: Layout) -> list[Markup]:
    """SVG paths from the bottom of one node to the top of another."""
    return [Markup(_curve(edge)) for edge in layout.edges]  # numbers, however many


def _curve(points: list[tuple[float, int]]) -> str:
    places = [(round(x, 1) + MARGIN, layer * LAYER_HEIGHT + MARGIN) for x, layer in points]
    x, y = places[0]
    y += NODE_HEIGHT
    path = f"M{x:g} {y}"
    for number, (to_x, to_y) in enumerate(places[1:], 1):
        half = (y + to_y) / 2
        path += f"C{x:g} {half:g} {to_x:g} {half:g} {to_x:g} {to_y}"
        if number < len(places) - 1:  # past the nodes of this layer
            path += f"V{to_y + NODE_HEIGHT}"
        x, y = to_x, to_y + NODE_HEIGHT
    return path


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
