"""What can be called on PyTorch's side of a check: a module, a copy of it, an exported program."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from flexlegion.importers.export import in_mode

Tensors = dict[str, torch.Tensor]


class Side(ABC):
    """Something of PyTorch's that can be called."""

    name = "the module"
    dtype = torch.float32

    @abstractmethod
    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Its outputs."""

    @abstractmethod
    def prepared(self, training: bool) -> AbstractContextManager[None]:
        """In train or evaluation mode for a while; its state is the same afterwards.

        In train mode, a module's parts that alone are in evaluation mode stay so.
        """

    @abstractmethod
    def parameters(self) -> Tensors:
        """Those that have gradients, by name."""

    @abstractmethod
    def buffers(self) -> Tensors:
        """By name."""


class InPlace(Side):
    """A module as it is."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.name = type(module).__name__

    def __call__(self, args: Any, kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def prepared(self, training: bool) -> Iterator[None]:
        buffers = {buffer: buffer.clone() for buffer in self.module.buffers()}
        try:
            with in_mode(self.module, training):
                yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers.items():
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)

    def parameters(self) -> Tensors:
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def buffers(self) -> Tensors:
        return dict(self.module.named_buffers())


class _Doubled(InPlace):
    """A copy of a module in double precision."""

    dtype = torch.float64


def copied_in_double(module: torch.nn.Module) -> _Doubled | None:
    """A copy in double precision; None where it cannot be copied."""
    try:
        doubled = copy.deepcopy(module).double()
    except Exception:
        return None
    for part in doubled.modules():
        if isinstance(part, torch.nn.RMSNorm) and part.eps is None:
            part.eps = torch.finfo(torch.float32).eps  # it would be that of double precision
    return _Doubled(doubled)


class ProgramSide(Side):
    """An exported program; what it does while training alone is left out in evaluation mode.

    Parameters
    ----------
    exported
        In the training IR.
    dtype
        What it computes in where it says single precision.
    seen
        Gets each node and its value.
    """

    name = "the exported program"

    def __init__(
        self,
        exported: ExportedProgram,
        dtype: torch.dtype,
        seen: Callable[[torch.fx.Node, Any], None] | None = None,
    ) -> None:
        self.exported = exported
        self.dtype = dtype
        self.training = False
        self.seen = seen
        self.state: Tensors = {}
        self._reset()

    def _reset(self) -> None:
        state = dict(self.exported.state_dict) | dict(self.exported.constants)
        kept = self.exported.graph_signature.parameters
        self.state = {}
        tied: dict[Any, torch.Tensor] = {}  # by memory: what is one tensor under several names
        for name, tensor in state.items():
            if not isinstance(tensor, torch.Tensor):
                continue
            memory: Any = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if name not in kept:
                memory = (name,)
            elif memory in tied and tensor.numel():
                self.state[name] = tied[memory]
                continue
            value = tensor.detach()
            value = value.to(self.dtype) if value.is_floating_point() else value
            trained = name in kept and tensor.requires_grad
            tied[memory] = value.requires_grad_(trained) if trained else value.clone()
            self.state[name] = tied[memory]

    def __call__(self, args: Any, kwargs: Any) -> Any:
        signature = self.exported.graph_signature
        user = iter(pytree.tree_leaves((args, kwargs)))
        given = [
            next(user) if spec.kind == InputKind.USER_INPUT else self.state.get(spec.target or "")
            for spec in signature.input_specs
        ]
        interpreter = _Evaluation(self.exported.graph_module, self.dtype, self.training, self.seen)
        results = interpreter.run(*given)
        outputs = [
            value
            for value, spec in zip(results, signature.output_specs, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT
        ]
        return pytree.tree_unflatten(outputs, self.exported.call_spec.out_spec)

    @contextmanager
    def prepared(self, training: bool) -> Iterator[None]:
        self.training = training
        try:
            yield
        finally:
            self._reset()

    def parameters(self) -> Tensors:
        names = self.exported.graph_signature.parameters
        return {n: self.state[n] for n in names if self.state[n].requires_grad}

    def buffers(self) -> Tensors:
        return {n: self.state[n] for n in self.exported.graph_signature.buffers if n in self.state}


class _Evaluation(torch.fx.Interpreter):
    """Runs a graph of the training IR; without training, as a module in evaluation mode."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        dtype: torch.dtype,
        training: bool,
        seen: Callable[[torch.fx.Node, Any], None] | None,
    ) -> None:
        super().__init__(graph_module)
        self.dtype, self.training, self.seen = dtype, training, seen

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if self.seen is not None:
            self.seen(n, value)
        return value

    def call_function(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        at = [i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule)]
        if at:  # a region with its own settings
            enabled = args[0] if "grad" in str(target) else torch.is_grad_enabled()
            with torch.set_grad_enabled(bool(enabled) and torch.is_grad_enabled()):
                inner = _Evaluation(args[at[0]], self.dtype, self.training, self.seen)
                return inner.run(*args[at[0] + 1 :])
        schema = getattr(target, "_schema", None)
        if schema is not None and not self.training:
            args, kwargs = _without_training(schema, list(args), dict(kwargs))
        args = [self._typed(a) for a in args]
        kwargs = {name: self._typed(value) for name, value in kwargs.items()}
        return super().call_function(target, tuple(args), kwargs)

    def _typed(self, argument: Any) -> Any:
        return self.dtype if argument is torch.float32 else argument


def _without_training(
    schema: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as a module in evaluation mode gives them."""
    names = [argument.name for argument in schema.arguments]
    if "running_mean" in names and args[names.index("running_mean")] is None:
        return args, kwargs  # a normalisation by the batch's statistics in either mode
    for name, value in (
        ("train", False),
        ("training", False),
        ("use_input_stats", False),
        ("dropout_p", 0.0),
    ):
        if name in kwargs:
            kwargs[name] = value
        elif name in names and names.index(name) < len(args):
            args[names.index(name)] = value
    return args, kwargs
