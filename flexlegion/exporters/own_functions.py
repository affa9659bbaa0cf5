"""What users' own operators compute, as functions whose text programs have.

A program needs no flexlegion, and none of the user's files. So a function is its text alone: it may
use its arguments, builtins, and modules that its file imports; these imports come with it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.exporters.spelling import identifiers
from flexlegion.graph.operator_type import OperatorType

Function = Callable[..., Any]


@dataclass(frozen=True)
class OwnFunction:
    """A user's function of an operator type.

    Parameters
    ----------
    function
        It.
    name
        In programs.
    text
        Its definition by that name, with the imports that it needs.
    """

    function: Function
    name: str
    text: str


# By the target's name, and the operator type's.
_FUNCTIONS: dict[tuple[str, str], OwnFunction] = {}


@typed
def register_functions(
    kind: type[OperatorType], *, torch: Function | None = None, jax: Function | None = None
) -> None:
    """Say what an operator type of your own computes, for programs that `export` writes.

    A function takes the operator's inputs, then its weights, and returns its output, or a tuple of
    several. Attributes that it has as arguments of the same names are given to it. It stands in
    programs as its text, so it uses nothing but its arguments, builtins and modules.

    For DTensor it is applied to tiles: what it computes from the part of the operands that the
    access maps say has to be the part of the output. Its argument `shape`, if it has one, is the
    shape of that; `low` and `key` are not known for types of one's own.

    Parameters
    ----------
    kind
        The operator type.
    torch
        A function of PyTorch tensors, for ``to="dtensor"``.
    jax
        A function of JAX arrays, for ``to="jax"``.

    Raises
    ------
    UserError
        If the type is one of flexlegion's own, or a function's text is not all that it needs.

    Examples
    --------
    >>> import torch
    >>> def swish(x, beta):
    ...     return x * torch.sigmoid(beta * x)
    >>> register_functions(Swish, torch=swish)  # doctest: +SKIP
    """
    if kind.__module__.startswith("flexlegion."):
        raise UserError(f"operators '{kind.type}' are flexlegion's own, whose functions it has")
    for target, function in (("dtensor", torch), ("jax", jax)):
        if function is not None:
            _FUNCTIONS[target, kind.type] = _spelt(function, kind.type)


def own_function(kind: OperatorType, target: str) -> OwnFunction | None:
    """What a user registered for an operator's type and a target; None: nothing."""
    return _FUNCTIONS.get((target, kind.type))


def _spelt(function: Function, kind: str) -> OwnFunction:
    """A function's text, under a name that no other function of a program has."""
    called = f"the function '{printable(getattr(function, '__name__', '?'))}' of '{kind}'"
    tree: ast.stmt | None = None
    if inspect.isfunction(function):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        except (OSError, SyntaxError, IndexError):
            tree = None  # of a lambda within an expression, say
    if not isinstance(tree, ast.FunctionDef):
        raise UserError(f"{called} has no text of its own; define it by 'def' in a file")
    if tree.decorator_list:
        raise UserError(f"{called} is decorated, which a program is not; leave decorators out")
    its = inspect.getclosurevars(function)
    modules = {
        name: value.__name__ for name, value in its.globals.items() if isinstance(value, ModuleType)
    }
    used = {*its.globals, *its.nonlocals, *its.unbound}
    if others := sorted(used - {*modules, *_attributes(tree)}):
        raise UserError(
            f"{called} uses '{others[0]}', which a program does not have; define it inside the "
            "function, or use it through a module"
        )
    (name,) = identifiers([f"own_{kind}"], ()).values()
    tree.name = name
    imports = [
        ast.Import([ast.alias(module, None if module == name_ else name_)])
        for name_, module in sorted(modules.items())
    ]
    has_docstring = ast.get_docstring(tree) is not None
    tree.body[has_docstring:has_docstring] = imports
    for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    tree.returns = None
    return OwnFunction(function, name, ast.unparse(ast.fix_missing_locations(tree)))


def _attributes(tree: ast.AST) -> set[str]:
    """Names behind a dot, which are looked up in something, not alone."""
    alone = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} - alone
