"""What is trained to compare imported models with PyTorch's: data, losses, PyTorch's steps."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Arrays = dict[str, npt.NDArray[Any]]

STEPS = 3
MOMENTUM = 0.9
LOSS_TOLERANCE = 1e-5
CHANGE_TOLERANCE = 1e-3
# A change is not measured finer than single precision rounds the largest one, 1e-7: a bias
# before a batch normalisation, or of attention's keys, has no gradient but rounding.
SMALLEST = 1e-4
ROUNDING = STEPS * 2.0**-24


def learning_rate(module: torch.nn.Module) -> float:
    """Large enough for changes well above the weights' rounding, small for batch normalisation."""
    normalises = any(isinstance(part, torch.nn.BatchNorm2d) for part in module.modules())
    return 5e-4 if normalises else 0.2


def batches(example: Any) -> Iterator[Any]:
    """As many batches as steps: the example, and others of the same kind."""
    for step in range(STEPS):
        yield _rolled(example, step)


def _rolled(value: Any, by: int) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.roll(value, by, -1)
    if isinstance(value, dict):
        return {name: _rolled(part, by) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_rolled(part, by) for part in value)
    return value


def losses(outputs: Sequence[str]) -> list[str | None]:
    """Cross-entropy of logits; the squared error of a single output; other ones are not trained."""
    crossentropy = "sparse_categorical_crossentropy"
    if any("logits" in name for name in outputs):
        return [crossentropy if "logits" in name else None for name in outputs]
    return ["mean_squared_error", *(None for _ in outputs[1:])]


def labels(step: int, shapes: Sequence[Sequence[int]], kinds: Sequence[str]) -> list[Any]:
    """Random labels for outputs of these shapes."""
    rng = np.random.default_rng(step)
    result: list[Any] = []
    for shape, kind in zip(shapes, kinds, strict=True):
        if kind == "mean_squared_error":
            result.append(rng.standard_normal(shape).astype(np.float32))
        else:
            result.append(rng.integers(0, shape[-1], shape[:-1]).astype(np.int32))
    return result


def outputs_of(result: Any) -> dict[str, torch.Tensor]:
    """A module's outputs by name, as the importer names them."""
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if hasattr(result, "_asdict"):
        result = result._asdict()
    if hasattr(result, "items"):
        named = dict(result.items())
    else:
        named = {f"output_{i}": value for i, value in enumerate(result)}
    found = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    return dict(sorted(found.items(), key=lambda item: item[0] != "logits"))


def reference(
    module: torch.nn.Module, example: Any, orders: dict[str, list[int]], double: bool = True
) -> Arrays:
    """The same steps by PyTorch, in double precision or single: losses, each parameter's change."""
    module = copy.deepcopy(module).train()
    module = module.double() if double else module
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), learning_rate(module), MOMENTUM)
    chosen = losses(list(orders))
    values = []
    for step, batch in enumerate(batches(example)):
        optimizer.zero_grad()
        outputs = outputs_of(_called(module, _doubles(batch) if double else batch))
        given = [
            (outputs[name].permute(order), loss)
            for (name, order), loss in zip(orders.items(), chosen, strict=True)
            if loss is not None
        ]
        y = labels(step, [o.shape for o, _ in given], [kind for _, kind in given])
        loss = torch.zeros((), dtype=torch.float64 if double else torch.float32)
        for (output, kind), label in zip(given, y, strict=True):
            target = torch.from_numpy(label)
            if kind == "mean_squared_error":
                loss = loss + F.mse_loss(output, target.to(output.dtype))
            else:
                classes = output.shape[-1]
                loss = loss + F.cross_entropy(
                    output.reshape(-1, classes), target.long().reshape(-1)
                )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(loss.item())
    arrays: Arrays = {"losses": np.array(values)}
    for name, parameter in module.named_parameters():
        arrays[f"before/{name}"] = before[name].numpy()
        arrays[f"change/{name}"] = (parameter.detach() - before[name]).numpy()
    for name, buffer in module.named_buffers():
        arrays[f"buffer/{name}"] = buffer.numpy()
    return arrays


def own_precision(single: Arrays, expected: Arrays) -> float:
    """The largest error of a parameter's change that PyTorch has in single precision itself.

    In deep networks of ReLUs, rounding decides which way some of them go, and no single precision
    comes nearer.
    """
    own = {
        f"torch/weight/{k.removeprefix('change/')}": v for k, v in single.items() if "change/" in k
    }
    for name in list(own):
        own[name] = own[name] + expected[f"before/{name.removeprefix('torch/weight/')}"]
    own = {name: value.reshape(-1) for name, value in own.items()} | {
        "torch/losses": single["losses"]
    }
    return differences(own, "torch", expected)[1]


def rounding_share(expected: Arrays) -> float:
    """The allowance for rounded weights as a share of a parameter's change: the median."""
    changes = {k: v for k, v in expected.items() if k.startswith("change/")}
    largest = max(float(np.linalg.norm(change)) for change in changes.values())
    shares = [
        ROUNDING
        * float(np.linalg.norm(expected[f"before/{name.removeprefix('change/')}"]))
        / max(float(np.linalg.norm(change)), SMALLEST * largest)
        for name, change in changes.items()
    ]
    return float(np.median(shares))


def differences(saved: Arrays, strategy: str, expected: Arrays) -> tuple[float, float, list[str]]:
    """The largest error of a loss and of a parameter's change; what is beyond the bounds."""
    mine = saved[f"{strategy}/losses"]
    loss_error = float(np.max(np.abs(mine - expected["losses"]) / np.abs(expected["losses"])))
    failures = [f"losses {mine}, PyTorch's {expected['losses']}"] * (loss_error > LOSS_TOLERANCE)
    prefix = f"{strategy}/weight/"
    changes = {k.removeprefix("change/"): v for k, v in expected.items() if k.startswith("change/")}
    largest = max(float(np.linalg.norm(change)) for change in changes.values())
    worst = 0.0
    for name, change in changes.items():
        if prefix + name not in saved:
            if np.linalg.norm(change) > 0:
                failures.append(f"{name} is missing")
            continue
        actual = saved[prefix + name].astype(np.float64) - expected[f"before/{name}"].reshape(-1)
        error = float(np.linalg.norm(actual - change.reshape(-1)))
        size = max(float(np.linalg.norm(change)), SMALLEST * largest)
        # Single precision rounds the weight itself in each step.
        error = max(0.0, error - ROUNDING * float(np.linalg.norm(expected[f"before/{name}"])))
        relative = error / size if size else error
        worst = max(worst, relative)
        if relative > CHANGE_TOLERANCE:
            failures.append(f"{name} {list(change.shape)}: {relative:.1e} of its change {size:.1e}")
    for name, value in expected.items():
        key = prefix + name.removeprefix("buffer/")
        if name.startswith("buffer/") and key in saved:
            error = float(np.linalg.norm(saved[key] - value.reshape(-1)))
            if error > CHANGE_TOLERANCE * np.linalg.norm(value):
                failures.append(f"{name}: {error:.1e}")
    return loss_error, worst, failures


def _called(module: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, list | tuple) else module(inputs)


def _doubles(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _doubles(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_doubles(part) for part in value)
    return value
