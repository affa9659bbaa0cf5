"""PyTorch modules drawn at random: straight programs over a grammar of everyday operations.

A module is drawn as source text, so that a failure can be shown, shortened and kept. Its program is
a list of statements, each of which computes new values from earlier ones; what an operation needs
of a value (rank, extents that divide) decides where it may stand. Values stay small, so that
comparisons in double precision mean something.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]  # without the samples


@dataclass(frozen=True)
class Value:
    """A tensor of the program, of real numbers.

    Parameters
    ----------
    name
        Of the variable that holds it.
    shape
        Of a sample.
    """

    name: str
    shape: Shape

    @property
    def rank(self) -> int:
        """Number of dimensions, samples included."""
        return len(self.shape) + 1


@dataclass
class Source:
    """A module as text.

    Parameters
    ----------
    parts
        Lines of ``__init__``.
    lines
        Lines of ``forward``.
    arguments
        Names and example tensors (as expressions of ``n``, the number of samples) of the inputs.
    returned
        What forward returns.
    """

    parts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    returned: str = ""

    def __str__(self) -> str:
        body = "\n".join(f"        {line}" for line in [*self.lines, f"return {self.returned}"])
        parts = "\n".join(f"        {line}" for line in self.parts)
        return (
            "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"{parts}\n\n    def forward(self, {', '.join(self.arguments)}):\n{body}\n\n\n"
            f"example = lambda n: ({', '.join(self.arguments.values())},)\n"
        )

    def made(self) -> tuple[nn.Module, Callable[[int], tuple[torch.Tensor, ...]]]:
        """The module, and what makes inputs of so many samples."""
        names: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
        exec(str(self), names)
        return names["Net"](), names["example"]


class Unfit(Exception):
    """An operation has no value that it can take."""


class Program:
    """A program that grows.

    Parameters
    ----------
    rng
        Decides everything.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.source = Source()
        self.values: list[Value] = []
        self.number = 0

    # What operations ask for.

    def pick(self, fits: Callable[[Value], bool] = lambda _: True) -> Value:
        """An earlier value, late ones rather than early ones."""
        found = [value for value in self.values if fits(value)]
        if not found:
            raise Unfit
        return found[max(self.rng.randrange(len(found)) for _ in range(2))]

    def ranked(self, *ranks: int) -> Value:
        """A value of one of some ranks."""
        return self.pick(lambda value: value.rank in ranks)

    def fresh(self, prefix: str = "v") -> str:
        """A new name."""
        self.number += 1
        return f"{prefix}{self.number}"

    def part(self, text: str) -> str:
        """A submodule, parameter or buffer, that `text` makes; its name with ``self``."""
        name = self.fresh("m")
        if text.startswith("buffer:"):
            self.source.parts.append(f'self.register_buffer("{name}", {text[7:]})')
        else:
            self.source.parts.append(f"self.{name} = {text}")
        return f"self.{name}"

    def parameter(self, *shape: int) -> str:
        """A parameter."""
        return self.part(f"nn.Parameter(torch.randn({', '.join(map(str, shape))}) * 0.5)")

    def do(self, line: str) -> None:
        """A statement."""
        self.source.lines.append(line)

    def let(self, text: str, shape: Sequence[int]) -> Value:
        """A new value."""
        value = Value(self.fresh(), tuple(shape))
        self.do(f"{value.name} = {text}")
        self.values.append(value)
        return value

    def copy(self, value: Value) -> Value:
        """A copy that may be written to."""
        how = self.rng.choice(["{}.clone()", "{} * 1.0", "{} + 0.5", "torch.tanh({})"])
        return self.let(how.format(value.name), value.shape)

    def axis(self, value: Value) -> int:
        """A dimension other than the samples'."""
        return self.rng.randrange(1, value.rank)

    def sign(self, value: Value, axis: int) -> int:
        """The same dimension, counted from the front or from the end."""
        return self.rng.choice([axis, axis - value.rank])

    def factors(self, extent: int) -> tuple[int, int]:
        """Two factors of an extent."""
        first = self.rng.choice([f for f in range(1, extent + 1) if extent % f == 0])
        return first, extent // first

    def range(self, extent: int) -> tuple[int, int]:
        """A range within an extent that is not empty."""
        low = self.rng.randrange(extent)
        return low, self.rng.randrange(low + 1, extent + 1)

    def index(self, axis: int, text: str) -> str:
        """An index of one dimension."""
        return f"[{':, ' * axis}{text}]"


Operation = Callable[[Program], None]


def drawn(seed: int, operations: Sequence[Operation], length: int = 5) -> Source:
    """A module; `length` is how many operations at most."""
    rng = random.Random(seed)
    program = Program(rng)
    _inputs(program)
    if rng.random() < 0.9:  # something to train, first
        x = program.pick()
        layer = program.part(f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
        program.let(f"{layer}({x.name})", x.shape)
    wanted = rng.randint(2, length)
    for _ in range(20 * wanted):
        lines = len(program.source.lines)
        try:
            rng.choice(operations)(program)
        except Unfit:
            continue
        large = [v for v in program.values if prod(v.shape) > 600 or v.rank > 5]
        for value in large:
            program.values.remove(value)
        wanted -= len(program.source.lines) > lines
        if not wanted:
            break
    _outputs(program)
    return program.source


def _inputs(program: Program) -> None:
    rng = program.rng
    for i in range(rng.choice([1, 1, 1, 2])):
        rank = rng.choice([1, 2, 2, 2, 3, 3])
        shape = tuple(rng.choice([1, 2, 3, 4, 4, 6]) for _ in range(rank))
        name = f"x{i}"
        program.values.append(Value(name, shape))
        program.source.arguments[name] = f"torch.randn(n, {', '.join(map(str, shape))})"


def _outputs(program: Program) -> None:
    rng = program.rng
    last = program.values[-1]
    shape = rng.random()
    if shape < 0.08:
        last = program.let(f"{last.name}.reshape(x0.shape[0], -1).sum(1)", ())
    elif shape < 0.16:
        last = program.let(f"{last.name}.unsqueeze({rng.randint(1, last.rank)})", (*last.shape, 1))
    names = [last.name]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        name = program.pick().name
        if name not in names and not name.startswith("x"):
            names.append(name)
    if len(names) > 1 and rng.random() < 0.3:
        pairs = ", ".join(f'"{chr(97 + i)}": {name}' for i, name in enumerate(names))
        program.source.returned = f"{{{pairs}}}"
    else:
        program.source.returned = ", ".join(names)
