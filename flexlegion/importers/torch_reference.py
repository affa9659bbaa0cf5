"""PyTorch's side of `verify`: modules and exported programs, and where a model leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.importers import verify
from flexlegion.importers.evaluation import evaluate, initial_values, is_random
from flexlegion.importers.reader import key_name
from flexlegion.importers.schemas import module_of
from flexlegion.importers.torch_sides import InPlace, ProgramSide, Side, Tensors, copied_in_double
from flexlegion.importers.values import has_values
from flexlegion.importers.verify import Arrays, Difference
from flexlegion.model.model import Model

# Of a module that is copied, to compute in double precision: bytes of its tensors.
_MOST_COPIED = 1 << 29
# A backward pass costs two forward passes.
_TRAINING_PASSES = 3


def check_torch(
    model: Model, module: Any, example: tuple[Any, Any] | None, exported: ExportedProgram
) -> str | None:
    """Compare an imported model with the module or the exported program that it was made from.

    Parameters
    ----------
    model
        Imported.
    module
        The module; or else what was imported is the exported program itself.
    example
        Positional and keyword arguments, with samples in the first dimension of each tensor.
    exported
        Of the module.

    Returns
    -------
    str | None
        Why there was no check; None: there was one.

    Raises
    ------
    UserError
        If an output or a gradient differs.
    """
    state = [*exported.state_dict.values(), *exported.constants.values()]
    tensors = [t for t in state if isinstance(t, torch.Tensor)]
    if not all(map(has_values, tensors)):
        return (
            "the module has no values, as its tensors are on the device 'meta' or fake; the model "
            "can be searched and simulated, not trained"
        )
    if reason := verify.unchecked(model):
        return reason
    if example is None:
        return "the exported program kept no example inputs"
    leaves, spec = _leaves(example, exported)
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(given) != len(model.graph.inputs):
        return "the example inputs are not those of the model"
    if any(not has_values(t) or t.device.type != "cpu" for t in (*tensors, *given)):
        return "the module or its example is not on the CPU"
    with verify.quiet():
        return _Check(model, module, exported, leaves, spec).run()


@dataclass
class _Check:
    model: Model
    module: Any
    exported: ExportedProgram
    leaves: list[Any]
    spec: Any

    def run(self) -> str | None:
        samples = verify.samples_for(self.model, (self._example_samples(),))
        inputs = self._inputs(samples, exact=max(samples - 1, 1))
        reason = None
        for side in self._sides(samples):
            try:
                expected = self._outputs(side, inputs)
            except Exception as e:  # a double's, where the code says that it is single precision
                reason = f"{side.name} does not run with {samples} samples: {_first_line(e)}"
                continue
            if set(expected) != set(self._origin().output_names):
                return f"{side.name} has other outputs in evaluation mode than in train mode"
            found = self._differences(side, inputs, expected)
            if found and side.dtype is not torch.float64:  # which may be rounding
                found = self._in_double(inputs, found)
            if found:
                self._check_mode(side, expected, inputs)
                raise self._error(side, found[0], self._first_wrong(inputs))
            cheap = self._is_cheap(samples, 1 + _TRAINING_PASSES)
            if cheap and side.dtype is torch.float64 and (wrong := self._gradients(side, samples)):
                raise self._error(side, wrong[0], None)
            return None
        return reason

    def _sides(self, samples: int) -> Iterator[Side]:
        """What to compare with: the first one that runs."""
        tensors = [t for t in self.exported.state_dict.values() if isinstance(t, torch.Tensor)]
        small = sum(t.numel() * t.element_size() for t in tensors) <= _MOST_COPIED
        if small and self._is_cheap(samples, 1):
            yield from self._double()
        if isinstance(self.module, torch.nn.Module):
            yield InPlace(self.module)
        else:
            yield ProgramSide(self.exported, torch.float32)

    def _double(self) -> Iterator[Side]:
        if not isinstance(self.module, torch.nn.Module):
            yield ProgramSide(self.exported, torch.float64)
        elif (copied := copied_in_double(self.module)) is not None:
            yield copied

    def _tolerance(self, dtype: torch.dtype) -> float:
        return verify.tolerance(dtype, self.exported.state_dict.values())

    def _differences(self, side: Side, inputs: Arrays, expected: Tensors) -> list[Difference]:
        most = self._tolerance(side.dtype)
        return verify.differences(self.model, inputs, _arrays(expected), side.dtype, most)

    def _in_double(self, inputs: Arrays, found: list[Difference]) -> list[Difference]:
        """Differences in double precision; those that were found if that does not run."""
        for side in self._double():
            try:
                expected = self._outputs(side, inputs)
            except Exception:
                return found
            return self._differences(side, inputs, expected)
        return found

    def _is_cheap(self, samples: int, passes: int) -> bool:
        return verify.cost(self.model, samples, passes, torch.float64) <= verify.THOROUGH

    def _origin(self) -> Any:
        assert self.model.origin is not None
        return self.model.origin

    def _example_samples(self) -> int:
        return next(len(leaf) for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    # Inputs and outputs.

    def _inputs(self, samples: int, exact: int) -> Arrays:
        """The first samples of the example, as they are; and others with noise, up to `samples`."""
        draw = torch.Generator().manual_seed(0)
        vocabularies = _vocabularies(self.model)
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        result = {}
        for name, leaf in zip(self._origin().input_names, tensors, strict=True):
            rows = leaf.detach()[torch.arange(samples) % len(leaf)].clone()
            own = min(exact, len(leaf))
            # If all were constant, as examples of zeros are, rounding would decide what a
            # normalisation makes of them, and a ReLU behind it.
            if exact >= samples and _is_constant(leaf):
                own = 0
            rest = rows[own:]
            if rest.is_floating_point():
                spread = 1.0 if _is_constant(leaf) else float(leaf.float().std())
                noise = torch.randn(rest.shape, generator=draw) * spread
                rows[own:] += noise.to(rest.dtype)
            elif name in vocabularies:
                rows[own:] = torch.randint(vocabularies[name], rest.shape, generator=draw).to(
                    rest.dtype
                )
            result[name] = rows.numpy() if rows.dtype != torch.bfloat16 else rows.float().numpy()
        return result

    def _arguments(self, inputs: Arrays, dtype: torch.dtype) -> tuple[Any, Any]:
        """Arguments of the module, of some samples."""
        given = iter(inputs.values())
        leaves = []
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor):
                value = torch.from_numpy(next(given)).clone()
                leaf = value.to(dtype) if value.is_floating_point() else value
            leaves.append(leaf)
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def _outputs(self, side: Side, inputs: Arrays) -> Tensors:
        """What the other side computes in evaluation mode, by the model's names."""
        args, kwargs = self._arguments(inputs, side.dtype)
        with torch.no_grad(), side.prepared(training=False):
            return self._named(side(args, kwargs))

    def _named(self, outputs: Any) -> Tensors:
        """Outputs by the model's names: logits are the first one, others in the module's order."""
        flat, _ = pytree.tree_flatten_with_path(outputs)
        found = [(key_name(path), leaf) for path, leaf in flat if isinstance(leaf, torch.Tensor)]
        found.sort(key=lambda item: item[0] != "logits")
        names = list(self._origin().output_names)
        if len(names) != len(found):
            return {}
        return {name: leaf for name, (_, leaf) in zip(names, found, strict=True)}

    # Gradients.

    def _gradients(self, side: Side, samples: int) -> list[Difference]:
        """Of parameters, in train mode if nothing is drawn at random there; running averages too.

        A loss that weighs every element of the outputs otherwise.
        """
        training = not is_random(self.model.graph)
        inputs = self._inputs(samples, exact=samples if samples > 1 else 0)
        weights = initial_values(self.model.graph, self.model.seed, side.dtype)
        weights = {name: weight.clone() for name, weight in weights.items()}
        trained = [w.name for w in self.model.graph.trained_weights]
        for name in trained:
            weights[name].requires_grad_()
        try:
            args, kwargs = self._arguments(inputs, side.dtype)
            with side.prepared(training):
                outputs = self._named(side(args, kwargs))
                parameters = side.parameters()
                theirs = _gradients_of(outputs, parameters, outputs)
                buffers = {n: b.detach().clone() for n, b in side.buffers().items()}
        except Exception:
            return []  # such as batch normalisation of a single value
        tensors = evaluate(
            self.model.graph,
            self.model.outputs,
            verify.as_inputs(self.model, inputs, side.dtype),
            weights,
            training=training,
            dtype=side.dtype,
        )
        expected = _arrays(outputs)
        mine = verify.as_outputs(self.model, tensors)
        tolerance = self._tolerance(side.dtype)
        mode = "in train mode" if training else "in evaluation mode"
        for name, output in mine.items():
            how = verify.compared(output, expected[name], tolerance)
            if how is not None:
                return [Difference(f"output '{name}'", f"{how}, {mode}")]
        ours = _gradients_of(mine, {name: weights[name] for name in trained}, outputs)
        ours = {name: ours.get(name, torch.zeros_like(w)) for name, w in weights.items()}
        return self._compared_gradients(theirs, ours) or (
            self._compared_averages(buffers, weights, tolerance) if training else []
        )

    def _compared_gradients(self, theirs: Tensors, ours: Tensors) -> list[Difference]:
        origin = self._origin()
        arrays = {name: tensor.numpy() for name, tensor in ours.items()}
        largest = max((float(g.abs().max()) for g in theirs.values() if g.numel()), default=0.0)
        named = {alias: name for name, others in origin.aliases.items() for alias in others}
        found = []
        for name, gradient in theirs.items():
            its = name if name in origin.places else named.get(name, name)
            if its in origin.places:
                mine = torch.from_numpy(origin.parameter(its, arrays)).reshape(gradient.shape)
            else:
                mine = torch.zeros_like(gradient)
            # Sums that cancel leave rounding, of the size of other gradients.
            error = float((mine - gradient).abs().max()) if gradient.numel() else 0.0
            scale = max(float(gradient.abs().max()), 1e-3 * largest) if gradient.numel() else 0.0
            if not error <= 10 * self._tolerance(gradient.dtype) * max(scale, 1e-6):
                at = int((mine - gradient).abs().argmax())
                pair = float(mine.reshape(-1)[at]), float(gradient.reshape(-1)[at])
                how = "is {:.6g} where it should be {:.6g}".format(*pair)
                found.append(Difference(f"the gradient of '{name}'", how))
        return found

    def _compared_averages(
        self, buffers: Tensors, weights: Tensors, tolerance: float
    ) -> list[Difference]:
        origin = self._origin()
        arrays = {name: weight.detach().numpy() for name, weight in weights.items()}
        for name, buffer in buffers.items():
            if name in origin.places and buffer.is_floating_point():
                mine = torch.from_numpy(origin.parameter(name, arrays)).reshape(buffer.shape)
                if (how := verify.compared(mine, buffer, tolerance)) is not None:
                    return [Difference(f"buffer '{name}'", f"{how} after a training step")]
        return []

    # What is to blame.

    def _error(self, side: Side, difference: Difference, at: str | None) -> UserError:
        where = f"; it differs first in {at}" if at else ""
        return UserError(
            f"the imported model does not compute what {side.name} does: {difference.what} "
            f"{difference.how}{where}; this is a fault of the import, so please report it "
            "(verify=False or --no-verify imports it nevertheless)"
        )

    def _check_mode(self, side: Side, expected: Tensors, inputs: Arrays) -> None:
        """Raise `UserError` if what was exported in train mode is not what evaluation computes.

        Dropout and batch normalisation have both modes in the model; code that asks for
        ``self.training`` has one of them in the exported program.
        """
        if not isinstance(self.module, torch.nn.Module):
            return
        try:
            program = self._outputs(ProgramSide(self.exported, side.dtype), inputs)
        except Exception:
            return
        for name, output in program.items():
            how = verify.compared(output, expected[name], self._tolerance(side.dtype))
            if how is not None:
                raise UserError(
                    f"output '{name}' of {side.name} is computed otherwise in evaluation mode than "
                    "in train mode, as by code that asks for self.training; a model computes the "
                    "same in both, but for dropout and batch normalisation"
                )

    def _first_wrong(self, inputs: Arrays) -> str | None:
        """The first operation whose result the model has nowhere, nor what is computed of it.

        Results are compared without their order, as the model stores them in another one. What
        leads to no output, and what is the same for all inputs, the model need not have.
        """
        dtype = torch.float32
        found: dict[int, list[torch.Tensor]] = {}

        def watch(_: Tensor, value: torch.Tensor) -> None:
            found.setdefault(value.numel(), []).append(_sorted(value))

        weights = initial_values(self.model.graph, self.model.seed, dtype)
        given = verify.as_inputs(self.model, inputs, dtype)
        right: dict[torch.fx.Node, bool] = {}

        def seen(node: torch.fx.Node, value: Any) -> None:
            if node.op == "call_function":
                leaves = pytree.tree_leaves(value)
                tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
                real = [t for t in tensors if t.is_floating_point()]
                right[node] = all(_occurs(t, found) for t in real)

        program = ProgramSide(self.exported, dtype, seen)
        args, kwargs = self._arguments(inputs, dtype)
        try:
            with torch.no_grad():
                evaluate(
                    self.model.graph, self.model.outputs, given, weights, dtype=dtype, watch=watch
                )
                for value in given.values():
                    found.setdefault(value.numel(), []).append(_sorted(value))
                program(args, kwargs)
        except Exception:
            return None
        varying = _varying(self.exported)
        for node in reversed(list(right)):  # a result may have become a part of the next one's
            right[node] = right[node] or any(right.get(user, False) for user in node.users)
            right[node] = right[node] or node not in varying
        wrong = next((node for node, is_right in right.items() if not is_right), None)
        if wrong is None:
            return None
        path, layer = module_of(wrong)
        what = str(wrong.target).removesuffix(".default")
        at = f"module '{path}' ({layer.rsplit('.', 1)[-1]})" if path else "the module's own code"
        return f"{at}, at {what}"


def _leaves(example: tuple[Any, Any], exported: ExportedProgram) -> tuple[list[Any], Any]:
    """The example's parts in the order of the program's inputs."""
    args, kwargs = example
    spec = exported.call_spec.in_spec
    if kwargs and spec is not None:
        order = spec.children()[1].context
        kwargs = {name: kwargs[name] for name in order}
    leaves, its = pytree.tree_flatten((tuple(args), dict(kwargs)))
    return leaves, its


def _varying(exported: ExportedProgram) -> set[torch.fx.Node]:
    """What depends on inputs or parameters, and what outputs depend on."""
    signature = exported.graph_signature
    sources = {*signature.user_inputs, *signature.inputs_to_parameters}
    nodes = list(exported.graph.nodes)
    moving: set[torch.fx.Node] = set()
    for node in nodes:
        if node.name in sources or moving.intersection(node.all_input_nodes):
            moving.add(node)
    read = {node for node in nodes if node.op == "output"}
    for node in reversed(nodes):
        if read.intersection(node.users):
            read.add(node)
    return moving & read


def _vocabularies(model: Model) -> dict[str, int]:
    """Of the inputs of whole numbers that nothing but embeddings read, how many there may be."""
    result: dict[str, int] = {}
    for tensor in model.graph.inputs:
        readers = [op for op in model.graph.operators if tensor in op.inputs]
        if readers and all(op.kind.type == "embedding" for op in readers):
            result[tensor.name] = min(op.weights[0].shape[0] for op in readers)
    return result


def _is_constant(leaf: torch.Tensor) -> bool:
    flat = leaf.reshape(-1)
    return leaf.numel() == 0 or bool((flat == flat[0]).all())


def _gradients_of(outputs: Tensors, parameters: Tensors, likeness: Tensors) -> Tensors:
    """Gradients of a loss that weighs each element of each output otherwise; zeros for none."""
    draw = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for name, like in likeness.items():
        factors = torch.randn(like.shape, generator=draw, dtype=torch.float64)
        if outputs[name].is_floating_point():
            loss = loss + (outputs[name] * factors).sum() / max(prod(like.shape), 1)
    if not loss.requires_grad or not parameters:
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g.detach()
        for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def _arrays(tensors: Tensors) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def _sorted(value: torch.Tensor) -> torch.Tensor:
    return value.detach().double().reshape(-1).sort().values


def _occurs(value: torch.Tensor, found: dict[int, list[torch.Tensor]]) -> bool:
    """Whether the model has these values, in whatever order."""
    mine = _sorted(value)
    return any(verify.compared(other, mine, 1e-3) is None for other in found.get(len(mine), ()))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
