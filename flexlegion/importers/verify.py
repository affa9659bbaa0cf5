"""An imported model beside what it was imported from: outputs, and gradients where they are cheap.

Our side is `evaluation`, which needs no Legion; the other side is a function, so that modules,
exported programs and ONNX files are compared by the same rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flexlegion.base.errors import UserError
from flexlegion.importers.evaluation import evaluate, initial_values, without_function
from flexlegion.importers.program import Array
from flexlegion.model.model import Model

# Of the largest element: what rounding may differ by. Constants are stored in single precision, so
# double precision does not bring the difference to nothing.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 3e-4}
# Outputs whose elements are all smaller are rounding themselves, or nearly.
_SMALLEST = 1e-3
# What is stored in single precision for an infinity.
_INFINITE = 1e38
# Samples that a check computes: an odd number that examples rarely have, so that what a module
# makes of the number of samples shows.
SAMPLES = 3
# Operations, of our side and the other one together, that a check may take for each operator of the
# graph. Exporting and lowering an operator takes some milliseconds, so the check is a part of that.
THOROUGH = 10**7  # in double precision, with gradients
CHEAP = 2 * 10**7  # of several samples
MOST = 8 * 10**7

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Difference:
    """What a model computes otherwise.

    Parameters
    ----------
    what
        "output 'logits'", or of which parameter it is the gradient.
    how
        By how much, in words.
    """

    what: str
    how: str


def check(
    model: Model,
    run: Callable[[Arrays], Arrays],
    inputs: Arrays,
    *,
    source: str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compare an imported model's outputs with those of what it was imported from.

    Parameters
    ----------
    model
        Imported; its initial weights are used.
    run
        Computes the outputs by name, in evaluation mode, from inputs by name. All arrays are
        arranged as in what was imported.
    inputs
        By name, arranged so; of any number of samples.
    source
        What was imported, for messages: "the ONNX file", say.
    dtype
        What `run` computes in.

    Raises
    ------
    UserError
        If an output differs by more than rounding.
    """
    expected = run(inputs)
    found = differences(model, inputs, expected, dtype)
    if found:
        raise UserError(
            f"the imported model does not compute what {source} does: {found[0].what} "
            f"{found[0].how}; this is a fault of the import, so please report it (verify=False "
            "imports it nevertheless)"
        )


def tolerance(dtype: torch.dtype, tensors: Iterable[torch.Tensor] = ()) -> float:
    """Of the largest element, what rounding may differ by.

    Parameters
    ----------
    dtype
        What both sides compute in.
    tensors
        Of the module: if some are narrower, such as bfloat16, its constants were rounded to that.
    """
    real = [t.dtype for t in tensors if t.is_floating_point()]
    return max([TOLERANCE[dtype], *(2 * torch.finfo(t).eps for t in real if t.itemsize < 4)])


def differences(
    model: Model,
    inputs: Arrays,
    expected: Arrays,
    dtype: torch.dtype,
    most: float | None = None,
) -> list[Difference]:
    """The outputs by which a model in evaluation mode differs from what is expected of it.

    `most` is the `tolerance`, by default that of the type.
    """
    weights = initial_values(model.graph, model.seed, dtype)
    with torch.no_grad():
        tensors = evaluate(
            model.graph, model.outputs, as_inputs(model, inputs, dtype), weights, dtype=dtype
        )
    found = []
    for name, ours in as_outputs(model, tensors).items():
        how = compared(ours, expected[name], TOLERANCE[dtype] if most is None else most)
        if how is not None:
            found.append(Difference(f"output '{name}'", how))
    return found


def samples_for(model: Model, others: tuple[int, ...] = ()) -> int:
    """How many samples to check with: not the model's own number, nor one of `others`.

    One, where a forward pass of several is dear; and for a model of one sample, see `evaluate`.
    """
    if model.batch_size == 1 or cost(model, SAMPLES) > CHEAP:
        return 1
    return next(n for n in (SAMPLES, 2, 4, 5) if n not in (model.batch_size, *others))


def cost(model: Model, samples: int, passes: int = 1, dtype: torch.dtype = torch.float32) -> float:
    """Operations of forward passes on both sides, for each operator of the graph.

    Those in double precision count twice.
    """
    flops = sum(op.kind.flops(op.input_shapes) for op in model.graph.operators)
    both = 2 * passes * flops * samples / model.batch_size
    of_type = both * (2 if dtype is torch.float64 else 1)
    return of_type / max(len(model.graph.operators), 10)


def unchecked(model: Model) -> str | None:
    """Why a model cannot be checked, whatever it was imported from; None: it can."""
    if types := without_function(model.graph):
        return f"PyTorch has no function for {', '.join(types)}"
    if cost(model, 1) > MOST:
        return "a forward pass of one sample would take long beside the import"
    return None


def as_inputs(model: Model, inputs: Arrays, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Inputs as the model takes them, from what is arranged as in what was imported."""
    assert model.origin is not None
    result = {}
    for tensor in model.graph.inputs:
        order = model.origin.inputs[tensor.name]
        array = np.ascontiguousarray(np.asarray(inputs[tensor.name]).transpose(order))
        kind = dtype if tensor.dtype == "float32" else torch.int32
        result[tensor.name] = torch.as_tensor(array).to(kind)
    return result


def as_outputs(model: Model, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The outputs by name, arranged as in what was imported."""
    assert model.origin is not None
    result = {}
    for (name, its), tensor in zip(model.origin.output_names.items(), tensors, strict=True):
        arrangement = model.origin.arrangements[its]
        ours = tensor if arrangement.has_samples else tensor[:1]
        result[name] = ours.permute(arrangement.places).reshape(arrangement.shape(ours.shape))
    return result


def compared(ours: torch.Tensor, expected: Any, tolerance: float) -> str | None:
    """In words, how two tensors differ by more than rounding; None: they do not."""
    theirs = torch.as_tensor(expected).detach().to(torch.float64)
    ours = ours.detach().to(torch.float64)
    if ours.shape != theirs.shape:
        return f"has shape {list(ours.shape)} instead of {list(theirs.shape)}"
    if torch.equal(ours, theirs) or not theirs.numel():
        return None
    for kind, mine, right in (
        ("nan", ours.isnan(), theirs.isnan()),
        ("inf", ours > _INFINITE, theirs > _INFINITE),
        ("-inf", ours < -_INFINITE, theirs < -_INFINITE),
    ):
        if not torch.equal(mine, right):
            count = int((mine != right).sum())
            return f"is {kind} at other places: {count:,} of {ours.numel():,}"
    finite = theirs.abs() <= _INFINITE
    if not finite.any():
        return None
    ours, theirs = ours[finite], theirs[finite]
    error = (ours - theirs).abs()
    scale = max(float(theirs.abs().max()), _SMALLEST)
    if float(error.max()) <= tolerance * scale:
        return None
    at = int(error.argmax())
    return f"is {float(ours[at]):.6g} where it should be {float(theirs[at]):.6g}"


@contextmanager
def quiet() -> Iterator[None]:
    """Random numbers as they were afterwards, and no logs: a check leaves no traces."""
    logging.disable(logging.ERROR)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        logging.disable(logging.NOTSET)
