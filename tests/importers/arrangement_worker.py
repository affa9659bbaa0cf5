"""Run under legate: imported modules beside PyTorch, in every form of their data; see the test.

`python arrangement_worker.py FILE NAME...`: FILE gets, as JSON, what is wrong, by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from arranged_modules import Arranged, cases

import flexlegion as fl


def wrong(case: Arranged) -> Iterator[str]:
    """Everything that differs."""
    model = fl.from_torch(case.module, case.inputs)
    origin = model.origin
    assert origin is not None
    model.compile(fl.SGD(0.1), case.loss if len(model.outputs) == 1 else "mean_squared_error")
    expected = case.outputs()
    x = origin.arrays(case.inputs)
    forms = [x, case.leaves(), [a.reshape(*a.shape, 1) if a.ndim == 1 else a for a in x]]
    for form in forms:
        predicted = model.predict(form)
        predicted = predicted if isinstance(predicted, list) else [predicted]
        for name, mine, theirs in zip(origin.outputs, predicted, expected, strict=True):
            whole = origin.as_module(name, mine)
            if whole.shape != theirs.shape:
                yield f"{name} has shape {whole.shape}, not {tuple(theirs.shape)}"
            elif not np.allclose(whole, theirs.detach().numpy(), atol=1e-5):
                yield f"{name} differs"
            has_samples = len(theirs.shape) > 0 and len(theirs) == len(case.leaves()[0])
            if has_samples and theirs.ndim <= 5 and mine.shape != (case.predicted or theirs.shape):
                yield f"{name} is predicted in shape {mine.shape}"
    if len(expected) == 1:
        yield from wrong_losses(model, case, x)
    model.close()


def wrong_losses(model: fl.Model, case: Arranged, x: list[np.ndarray]) -> Iterator[str]:
    """The loss by labels of every form, and a step of training."""
    (output,) = case.outputs()
    labels = case.labels(tuple(output.shape))
    forms = {"module's": labels}
    if len(labels) == len(x[0]) and (labels.ndim == 1 or labels.shape[-1] == 1):
        forms["with or without an extent of 1"] = (
            labels[:, None] if labels.ndim == 1 else labels[..., 0]
        )
    if case.predicted is not None and labels.ndim == output.ndim:
        forms["model's"] = np.moveaxis(labels, 1, -1)
    loss = case.torch_loss(output, labels)
    for form, y in forms.items():
        found = model.evaluate(x, y)["loss"]
        if not abs(found - loss.item()) <= 1e-5 * max(1, abs(loss.item())):
            yield f"the loss by the {form} labels is {found}, not {loss.item()}"
    case.module.zero_grad()
    loss.backward()
    history = model.fit(x, labels, shuffle=False, progress=False)
    if not abs(history.epochs[0]["loss"] - loss.item()) <= 1e-5 * max(1, abs(loss.item())):
        yield "the loss of training differs"
    weights = model.get_weights()
    assert model.origin is not None
    for name, parameter in case.module.named_parameters():
        mine = model.origin.parameter(name, weights).reshape(parameter.shape)
        theirs = (parameter - 0.1 * parameter.grad).detach().numpy()
        if not np.allclose(mine, theirs, atol=2e-6):
            yield f"{name} is trained otherwise: {np.abs(mine - theirs).max():.1e}"


if __name__ == "__main__":
    of_name = cases()
    found = {name: list(wrong(of_name[name])) for name in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps(found))
