"""What the operations of an exported graph say of themselves: names, arguments, writes, views."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

# Operations that are made of others, but compute: their results never share memory.
_COMPUTING = (
    "linear",
    "matmul",
    "conv1d",
    "conv2d",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "scaled_dot_product_attention",
    "lstm",
    "gru",
    "embedding",
    "softmax",
    "log_softmax",
    "max_pool2d",
)


def is_call(fx_node: Any) -> bool:
    """Whether a node of a graph is an operation."""
    return bool(fx_node.op == "call_function")


def op_name(target: Any) -> str:
    """ATen's name without overload, and without the underscore of operations in place."""
    if target is operator.getitem:
        return "getitem"
    packet = getattr(target, "overloadpacket", None)
    name: str = packet.__name__ if packet is not None else getattr(target, "__name__", str(target))
    namespace = getattr(target, "namespace", "aten")
    if name.endswith("_") and not name.startswith("__"):
        name = name.removesuffix("_")
    return name if namespace in ("aten", "higher_order") else f"{namespace}.{name}"


def written(target: Any) -> list[str]:
    """Names of the arguments that an operation writes to."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return []
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def may_share(target: Any) -> bool:
    """Whether a result can lie in an argument's memory, as far as the operation's name tells."""
    schema = getattr(target, "_schema", None)
    if schema is None or op_name(target) in _COMPUTING:
        return False
    if any(a.alias_info is not None for a in schema.arguments):
        return True
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    )


@dataclass(frozen=True)
class Given:
    """An argument of a call.

    Parameters
    ----------
    value
        As it was given, or its default.
    is_extent
        Whether the schema has an extent or a place there ("int[] size"), and no number that is
        computed with.
    """

    value: Any
    is_extent: bool


# Whole numbers of a schema that are no extents, though their type is the same.
_PLACES = ("index", "start", "shifts", "dim", "dims", "storage_offset", "diagonal", "offset")


def by_name(target: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Given]:
    """Arguments by the names that the operation has for them where it is not in place."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        named = {f"arg{i}": a for i, a in enumerate(args)} | kwargs
        return {name: Given(value, False) for name, value in named.items()}
    names = _functional_names(target)
    result = {}
    for i, argument in enumerate(schema.arguments):
        type_ = str(argument.type)
        extent = "int" in type_ and argument.name not in _PLACES
        name = names.get(argument.name, argument.name)
        if i < len(args):
            result[name] = Given(args[i], extent)
        elif argument.name in kwargs:
            result[name] = Given(kwargs[argument.name], extent)
        elif argument.has_default_value():
            result[name] = Given(argument.default_value, extent)
    return result


def _functional_names(target: Any) -> dict[str, str]:
    """Other names of arguments: "self" of ``dropout_`` is "input" of ``dropout``."""
    packet = getattr(target, "overloadpacket", None)
    if packet is None or not packet.__name__.endswith("_"):
        return {}
    other = getattr(getattr(torch.ops, target.namespace), packet.__name__[:-1], None)
    overload = getattr(other, target._overloadname, None) if other is not None else None
    if overload is None:
        return {}
    pairs = zip(target._schema.arguments, overload._schema.arguments, strict=False)
    return {own.name: functional.name for own, functional in pairs}


def module_of(fx_node: Any) -> tuple[str, str]:
    """Path and class of the innermost module that a node belongs to."""
    stack = fx_node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    path, layer = list(stack.values())[-1]
    layer = layer if isinstance(layer, str) else f"{layer.__module__}.{layer.__qualname__}"
    return path.removeprefix("L['self']").lstrip("."), layer
