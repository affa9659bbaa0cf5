"""What lies in memory: values that share it, and what writes in place make of them.

PyTorch's values can be views of each other, and an operation in place changes all that share its
memory. The internal form has values that never change. So each value of the exported graph is kept
as the memory that it lies in and the views that lead to it from the tensor that was computed there.
A write makes that tensor's next content; whoever reads a value later gets its views of the newest
content. Where nothing was written, a value is the node that computed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flexlegion.base.errors import UserError
from flexlegion.importers.constants import PROBE, Folded, concrete_shape
from flexlegion.importers.program import SAMPLES, Node, Shape, Type, at

Content = Node | Folded


@dataclass(eq=False)
class Memory:
    """A piece of memory.

    Parameters
    ----------
    content
        The tensor that was computed there, as it is now.
    version
        How often it was written.
    """

    content: Content
    version: int = 0


@dataclass(frozen=True)
class Step:
    """One view of a value, whose result shares the value's memory.

    Parameters
    ----------
    apply
        The same view of any tensor of the value's extents, for `PROBE` samples.
    name
        Of the operation.
    before, after
        Types of the value and of the view.
    """

    apply: Callable[[torch.Tensor], torch.Tensor]
    name: str
    before: Type
    after: Type


@dataclass(eq=False)
class Seen:
    """A value of the exported graph: what `memory` holds, seen through views.

    Parameters
    ----------
    memory
        Where it lies.
    steps
        From the memory's content to this value.
    value, version
        The value as of that version of the memory.
    """

    memory: Memory
    steps: tuple[Step, ...]
    value: Content
    version: int = 0

    @staticmethod
    def computed(value: Content) -> Seen:
        """A value in memory of its own."""
        return Seen(Memory(value), (), value)


class Writer:
    """Reads values, and writes in place.

    Parameters
    ----------
    add
        Adds a node to the program, and returns it.
    """

    def __init__(self, add: Callable[[Node], Node]) -> None:
        self.add = add

    def read(self, seen: Seen, path: str = "") -> Content:
        """The value as it is now."""
        if seen.version != seen.memory.version:
            content = seen.memory.content
            for step in seen.steps:
                assert isinstance(content, Node)
                content = self._view(step, content, path)
            seen.value, seen.version = content, seen.memory.version
        return seen.value

    def write(self, seen: Seen, value: Node, path: str) -> None:
        """Let a value, and with it all that shares its memory, become another one.

        Raises
        ------
        UserError
            If the value shows its memory in a way that a write cannot be followed through.
        """
        memory = seen.memory
        assert isinstance(memory.content, Node)
        between = [memory.content]
        for step in seen.steps[:-1]:
            between.append(self._view(step, between[-1], path))
        content = value
        for step, parent in zip(reversed(seen.steps), reversed(between), strict=False):
            content = self.put(step, parent, content, path)
        memory.content, memory.version = content, memory.version + 1
        seen.value, seen.version = value, memory.version

    def _node(self, op: str, args: dict[str, Any], shape: Shape, dtype: str, path: str) -> Node:
        return self.add(Node(op, args, Type(shape, dtype), path))

    def _reshaped(self, node: Node, shape: Shape, path: str) -> Node:
        if node.shape == shape:
            return node
        return self._node("view", {"self": node, "size": shape}, shape, node.type.dtype, path)

    def _permuted(self, node: Node, order: list[int], path: str) -> Node:
        shape = tuple(node.shape[d] for d in order)
        args = {"self": node, "dims": order}
        return self._node("permute", args, shape, node.type.dtype, path)

    def _cut(self, node: Node, d: int, start: int, size: int, path: str) -> Node:
        shape = (*node.shape[:d], size, *node.shape[d + 1 :])
        args = {"self": node, "dim": d, "start": start, "end": start + size, "step": 1}
        return self._node("slice", args, shape, node.type.dtype, path)

    def _joined(self, parts: list[Node], d: int, path: str) -> Node:
        first = parts[0]
        shape = (*first.shape[:d], sum(p.shape[d] for p in parts), *first.shape[d + 1 :])
        args = {"tensors": parts, "dim": d}
        return self._node("cat", args, shape, first.type.dtype, path)

    def _flat(self, node: Node, path: str) -> Node:
        """(n, elements of a sample)."""
        return self._reshaped(node, (SAMPLES, _elements(node.shape[1:])), path)

    def _picked(self, flat: Node, numbers: Any, shape: Shape, path: str) -> Node:
        """Elements (n, ...) of a value (n, elements), by their numbers within a sample."""
        numbers = np.ascontiguousarray(numbers, np.int64).reshape(-1)
        type_ = Type(numbers.shape, "int64")
        index = self.add(Node("constant", {}, type_, path, value=numbers))
        args = {"self": flat, "indices": [None, index]}
        picked = self._node("index", args, (SAMPLES, len(numbers)), flat.type.dtype, path)
        return self._reshaped(picked, shape, path)

    def _view(self, step: Step, node: Node, path: str) -> Node:
        """What a view shows of a node."""
        shape, form = step.after.shape, _Form(step)
        if form.kind == "same":
            return self._reshaped(node, shape, path)
        if form.kind == "order":
            return self._permuted(node, form.order, path)
        if form.kind == "range":
            d, start, size = form.range
            return self._reshaped(self._cut(node, d, start, size, path), shape, path)
        if form.kind == "repeated":
            args = {"self": node, "size": shape}
            return self._node("expand", args, shape, node.type.dtype, path)
        return self._picked(self._flat(node, path), form.numbers(path), shape, path)

    def put(self, step: Step, parent: Node, value: Node, path: str) -> Node:
        """A node, with a value where a view shows it."""
        shape, form = parent.shape, _Form(step)
        if step.name == "detach":
            raise UserError(
                f"the network writes{at(path)} through a detached tensor, whose gradient would "
                "go on as if nothing had been written; write to the tensor itself"
            )
        if form.kind == "same":
            return self._reshaped(value, shape, path)
        if form.kind == "order":
            return self._permuted(value, [int(d) for d in np.argsort(form.order)], path)
        if form.kind == "range":
            d, start, size = form.range
            end = start + size
            value = self._reshaped(value, (*shape[:d], size, *shape[d + 1 :]), path)
            before = [self._cut(parent, d, 0, start, path)] if start else []
            after = [self._cut(parent, d, end, shape[d] - end, path)] if end < shape[d] else []
            return self._joined([*before, value, *after], d, path)
        if form.kind == "repeated":
            raise UserError(f"the network writes{at(path)} to a tensor that is expanded")
        numbers = form.numbers(path).reshape(-1)
        every = np.arange(_elements(shape[1:]))
        every[numbers] = len(every) + np.arange(len(numbers))
        both = self._joined([self._flat(parent, path), self._flat(value, path)], 1, path)
        return self._picked(both, every, shape, path)


class _Form:
    """What kind of view a step is: found from where it finds each element.

    `kind` is "same" (all elements, in their order), "order" (dimensions in another `order`),
    "range" (dimension, start, size), "repeated" (expanded), or "picked" (anything else).
    """

    def __init__(self, step: Step) -> None:
        shape = concrete_shape(step.before.shape, PROBE)
        self.step = step
        self.order: list[int] = []
        self.range = (0, 0, 0)
        if step.name in _EXPANSIONS:
            self.kind = "same" if step.before.shape == step.after.shape else "repeated"
            return
        if step.name in _ORDERS:
            distinct = torch.empty(tuple(range(2, 2 + len(shape))), device="meta")
            self.order = [extent - 2 for extent in step.apply(distinct).shape]
            self.kind = "order"
            return
        whole = _elements(step.before.shape) == _elements(step.after.shape)
        if whole and step.name not in _BY_PLACE:
            self.kind = "same"
            return
        self.places = torch.arange(_elements(shape)).reshape(shape)
        self.seen = step.apply(self.places)
        if whole and torch.equal(self.places.reshape(-1), self.seen.reshape(-1)):
            self.kind = "same"
            return
        found = self._range(shape)
        self.kind = "picked" if found is None else "range"
        self.range = found or self.range

    def _range(self, shape: Shape) -> tuple[int, int, int] | None:
        """The range of one dimension that is all that is seen, if there is one."""
        count, first = self.seen.numel(), int(self.seen.reshape(-1)[0])
        for d, extent in enumerate(shape):
            size = count * extent // self.places.numel()
            start = first // self.places.stride(d)
            if size * self.places.numel() != count * extent or start + size > extent:
                continue
            part = self.places.narrow(d, start, size)
            if torch.equal(part.reshape(-1), self.seen.reshape(-1)):
                if self.step.before.shape[d] % SAMPLES == 0:
                    raise UserError(f"'{self.step.name}' writes to some of the samples alone")
                return d, start, size
        return None

    def numbers(self, path: str) -> Any:
        """Of the elements that are seen, within a sample; the same in each."""
        before, after = self.step.before.shape, self.step.after.shape
        own = before[:1] == (SAMPLES,) and after[:1] == (SAMPLES,)
        if own and all(extent % SAMPLES for extent in (*before[1:], *after[1:])):
            numbers = self.seen.reshape(PROBE, -1)
            each = self.places.numel() // PROBE
            numbers = numbers - each * torch.arange(PROBE)[:, None]
            if torch.equal(numbers, numbers[:1].expand_as(numbers)) and (
                int(numbers.min()) >= 0 and int(numbers.max()) < each
            ):
                return numbers[0].numpy()
        raise UserError(
            f"the network writes{at(path)} through '{self.step.name}', which does not show the "
            "same elements of each sample"
        )


# Views that can have all elements in another order. All others keep it, if they keep all.
_BY_PLACE = ("as_strided", "unfold")
_EXPANSIONS = ("expand", "expand_as", "broadcast_to")
_ORDERS = (
    "permute",
    "transpose",
    "t",
    "swapaxes",
    "swapdims",
    "movedim",
    "moveaxis",
    "numpy_T",
    "mT",
    "adjoint",
)


def _elements(shape: Shape) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
