"""A machine with one thing changed: what a question of the kind "what if" varies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import exp, log
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.machine.description import DeviceType, Machine

# Units and the factors that stand before them.
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS = {"": 1, "B": 1, "B/s": 1, "ns": 1, "us": 10**3, "ms": 10**6}
# In which of them values of a quantity are written. A small number without any, "memory=16", is as
# likely to be meant in others.
_LEAST_BARE = 1e6
_WRITTEN = {"B": ("B",), "B/s": ("B/s",), "ns": ("ns", "us", "ms")}
_EXAMPLES = {
    "B": "in bytes, as in 16GB, or as a factor, as in x2",
    "B/s": "in bytes a second, as in 10GB/s, or as a factor, as in x2",
    "ns": "as a time, as in 5us, or as a factor, as in x2",
    "": "as a number without a unit, as in 4",
    "x": "as a factor, as in x0.5",
}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?([kMGT]?)(B/s|B|ns|us|ms|)")
MOST_POINTS = 100

_Change = Callable[[float], Machine]


@dataclass(frozen=True)
class Quantity:
    """Something of a machine, or of training on it, that can have another value.

    Parameters
    ----------
    name
        As ``--vary`` names it.
    unit
        ``B/s``, ``B``, ``ns``; "x": a factor; or nothing, of numbers.
    whole
        Whether it is a whole number, such as that of nodes.
    own
        Its value now; a factor's is 1: of what has no single value, such as several types of links.
    machine
        The machine with another value, and how many of its GPUs are used (None: all); None: it is
        no matter of the machine.
    """

    name: str
    unit: str
    whole: bool
    own: float
    machine: Callable[[float], tuple[Machine, int | None]] | None

    @property
    def same_devices(self) -> bool:
        """Whether strategies for one value fit all others."""
        return not self.whole or self.machine is None

    def told(self, value: float) -> str:
        """A value, for people."""
        if self.unit == "x":
            return f"{value:.3g}x"
        if self.whole:
            return f"{round(value):,}"
        if self.unit == "ns":
            return f"{value / 1000:.3g} us" if value >= 1000 else f"{value:.3g} ns"
        return f"{value / 1e9:.4g} G{self.unit}"


def quantities(machine: Machine, gpus: int | None, batch: int) -> dict[str, Quantity]:
    """What can be varied, by name.

    Parameters
    ----------
    machine
        As its file describes it.
    gpus
        How many of its GPUs are used; None: all.
    batch
        Samples of an iteration.
    """
    found: list[Quantity] = []

    def add(name: str, unit: str, own: set[int], change: Callable[[bool], _Change]) -> None:
        single = float(next(iter(own))) if len(own) == 1 else None
        its = change(single is None)
        found.append(
            Quantity(
                name,
                "x" if single is None else unit,
                False,
                1.0 if single is None else single,
                lambda value: (its(value), gpus),
            )
        )

    outside = {link[2] for link in machine.network_links}
    if machine.torus is not None:
        outside.add(machine.torus.link)
    groups = [("network", outside), *((f"link.{name}", {name}) for name in machine.link_types)]
    for group, names in groups:
        types = [machine.link_types[name] for name in names]
        for key, field, unit in (
            ("bandwidth", "bandwidth", "B/s"),
            ("latency", "latency_ns", "ns"),
        ):
            own = {getattr(type_, field) for type_ in types}
            if own:
                change = partial(_links, machine, frozenset(names), field, group == "network")
                add(f"{group}.{key}", unit, own, change)
    devices = machine.device_types.values()
    for name, field, unit in (
        ("memory", "memory_bytes", "B"),
        ("memory.bandwidth", "memory_bandwidth", "B/s"),
    ):
        own = {getattr(type_, field) for type_ in devices}
        add(name, unit, own, partial(_devices, machine, field))
    found.append(Quantity("flops", "x", False, 1.0, lambda value: (_faster(machine, value), gpus)))
    found += _counts(machine, gpus)
    found.append(Quantity("batch", "", True, batch, None))
    return {quantity.name: quantity for quantity in found}


def _counts(machine: Machine, gpus: int | None) -> list[Quantity]:
    """Of GPUs and of nodes, where there can be fewer or more."""
    sizes, each = machine.sizes, machine.gpus_per_node
    if len(machine.kinds) > 1 or len(sizes) < 2:
        return []
    used = sizes[-1] if gpus is None else gpus
    found = [Quantity("gpus", "", True, used, lambda value: (machine, round(value)))]
    if used % each == 0:
        nodes = used // each
        found.append(Quantity("nodes", "", True, nodes, lambda n: (machine, round(n) * each)))
    return found


def _links(
    machine: Machine, names: frozenset[str], field: str, network: bool, factor: bool
) -> _Change:
    """Gives the machine with another rate of these types of links; of the network, there alone."""

    def changed(value: float) -> Machine:
        types = dict(machine.link_types)
        renamed: dict[str, str] = {}
        for name in names:
            own = types[name]
            its = round(getattr(own, field) * value if factor else value)
            # A type that is inside nodes as well stays what it is there.
            inside = any(link[2] == name for kind in machine.kinds for link in kind.links)
            renamed[name] = f"{name}@network" if network and inside else name
            changes: dict[str, Any] = {field: max(its, int(field == "bandwidth"))}
            types[renamed[name]] = replace(own, **changes)
        links = tuple((a, b, renamed.get(type_, type_)) for a, b, type_ in machine.network_links)
        torus = machine.torus
        if torus is not None:
            torus = replace(torus, link=renamed.get(torus.link, torus.link))
        return replace(machine, link_types=types, network_links=links, torus=torus)

    return changed


def _devices(machine: Machine, field: str, factor: bool) -> _Change:
    def changed(value: float) -> Machine:
        def of(type_: DeviceType) -> DeviceType:
            its = getattr(type_, field) * value if factor else value
            changes: dict[str, Any] = {field: max(1, round(its))}
            return replace(type_, **changes)

        return replace(machine, device_types=_each(machine.device_types, of))

    return changed


def _faster(machine: Machine, factor: float) -> Machine:
    """With other peak rates, of all precisions alike."""

    def of(type_: DeviceType) -> DeviceType:
        peaks = {p: max(1, round(rate * factor)) for p, rate in type_.peak_flops.items()}
        return replace(type_, peak_flops=peaks)

    return replace(machine, device_types=_each(machine.device_types, of))


def _each(
    types: Mapping[str, DeviceType], of: Callable[[DeviceType], DeviceType]
) -> dict[str, DeviceType]:
    return {name: of(type_) for name, type_ in types.items()}


def variation(
    text: str, among: Mapping[str, Quantity], points: int
) -> tuple[Quantity, tuple[float, ...]]:
    """What ``--vary`` says: a quantity, and its values in ascending order, its own among them.

    Parameters
    ----------
    text
        ``NAME=A..B``: from A to B in equal ratios (whole numbers double); ``NAME=A,B,C``: these.
        ``x0.5..x4``: factors of its own value.
    among
        `quantities`.
    points
        How many values a range stands for.

    Raises
    ------
    UserError
        If there is no such quantity, or the values are wrong.
    """
    name, equals, given = text.partition("=")
    if not equals:
        raise UserError(
            f"'{text[:60]}' names no values; write what varies, and from where to where, as in "
            "network.bandwidth=1GB/s..100GB/s, or nodes=1,2,4"
        )
    quantity = among.get(name.strip())
    if quantity is None:
        raise unknown("quantity", name.strip(), among)
    if not 2 <= points <= MOST_POINTS:
        raise UserError(f"the number of points has to be from 2 to {MOST_POINTS}, but is {points}")
    ends = given.split("..")
    if len(ends) == 2:
        low, high = (_value(end, quantity) for end in ends)
        if low >= high:
            raise UserError(f"{given} is no range; write the smaller value first")
        values = _doubled(low, high) if quantity.whole else _spread(low, high, points)
    else:
        values = [_value(value, quantity) for value in given.split(",")]
    ordered = sorted({*values, quantity.own})
    if len(ordered) > MOST_POINTS:
        raise UserError(f"{len(ordered)} values are too many; give at most {MOST_POINTS}")
    # The machine's own value stands for one that differs from it by rounding alone.
    near = {
        b if a == quantity.own else a
        for a, b in pairwise(ordered)
        if not quantity.whole and quantity.own in (a, b) and b < a * 1.001
    }
    return quantity, tuple(value for value in ordered if value not in near)


def _value(text: str, quantity: Quantity) -> float:
    factor = text.strip().startswith("x")
    match = _NUMBER.fullmatch(text.strip().removeprefix("x"))
    wanted = "a factor, as in x0.5" if quantity.unit == "x" else "a number, as in 4 or 12.5G"
    if match is None or (quantity.unit == "x" and not factor):
        raise UserError(f"a value of {quantity.name} has to be {wanted}, but is '{text[:40]}'")
    unit = "" if factor else quantity.unit
    number = float(match[1])
    bare = unit and not match[2] and not match[3] and 0 < number < _LEAST_BARE
    if bare or match[3] not in ("", *_WRITTEN.get(unit, ())):
        raise UserError(
            f"a value of {quantity.name} is written {_EXAMPLES[unit]}, but is '{text[:40]}'"
        )
    value = number * _FACTORS[match[2]] * _UNITS[match[3]]
    if factor and quantity.unit != "x":
        value *= quantity.own
    if quantity.whole and value != round(value):
        raise UserError(f"{quantity.name} is a whole number, but is {text[:40]}")
    if not 0 < value <= 1e18 and not (value == 0 and quantity.unit == "ns"):
        raise UserError(f"a value of {quantity.name} has to be positive, but is '{text[:40]}'")
    return value


def _spread(low: float, high: float, points: int) -> list[float]:
    """In equal ratios, the ends among them."""
    if low == 0:  # of latencies
        return [high * i / (points - 1) for i in range(points)]
    step = log(high / low) / (points - 1)
    return [low, *(low * exp(step * i) for i in range(1, points - 1)), high]


def _doubled(low: float, high: float) -> list[float]:
    values = [low]
    while values[-1] * 2 < high:
        values.append(values[-1] * 2)
    return [*values, high]


def between(low: float, high: float) -> float:
    """The value in the middle, in equal ratios."""
    return high / 2 if low == 0 else exp((log(low) + log(high)) / 2)
