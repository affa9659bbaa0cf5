"""Modules whose inputs and outputs have every arrangement: extents of 1, (n,), images, nested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

Array = np.ndarray
MSE, BINARY = "mean_squared_error", "binary_crossentropy"
SPARSE, ONE_HOT = "sparse_categorical_crossentropy", "categorical_crossentropy"


class Written(nn.Module):
    """A function of a module's parts and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


@dataclass(frozen=True)
class Arranged:
    """A module, example inputs, and how it is trained.

    Parameters
    ----------
    module
        Made after `torch.manual_seed(0)`.
    inputs
        Of the module.
    loss
        Of its only output; of several outputs, only predictions are compared.
    predicted
        The shape that `predict` returns, where it is not the module's.
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    loss: str = MSE
    predicted: tuple[int, ...] | None = None

    def outputs(self) -> list[torch.Tensor]:
        """All outputs of the module, in order."""
        return [t for t in pytree.tree_flatten(self.module(*self.inputs))[0] if t is not None]

    def leaves(self) -> list[Array]:
        """All inputs, in order."""
        return [t.numpy() for t in pytree.tree_flatten(self.inputs)[0]]

    @property
    def is_image(self) -> bool:
        """Whether the classes of a cross-entropy are in the second dimension."""
        return self.predicted is not None

    def labels(self, shape: tuple[int, ...]) -> Array:
        """Random labels, arranged as an output of that shape in the module."""
        rng = np.random.default_rng(0)
        d = 1 if self.is_image else len(shape) - 1
        if self.loss == SPARSE:
            return rng.integers(0, shape[d], (*shape[:d], *shape[d + 1 :])).astype(np.int32)
        labels = rng.random(shape).astype(np.float32)
        return labels / labels.sum(d, keepdims=True) if self.loss == ONE_HOT else labels

    def torch_loss(self, output: torch.Tensor, labels: Array) -> torch.Tensor:
        """The loss by PyTorch; softmaxes and sigmoids are outputs, not logits."""
        y = torch.from_numpy(labels)
        if self.loss == MSE:
            return F.mse_loss(output, y.to(output.dtype))
        if self.loss == BINARY:
            return F.binary_cross_entropy(output, y.to(output.dtype))
        d = 1 if self.is_image else output.ndim - 1
        logits = output.movedim(d, -1).flatten(0, -2)
        if self.loss == SPARSE:
            return F.cross_entropy(logits, y.flatten().long())
        return F.cross_entropy(logits, y.movedim(d, -1).flatten(0, -2).to(logits.dtype))


def cases() -> dict[str, Arranged]:
    """All of them, by name."""
    torch.manual_seed(0)
    rows, steps, images = torch.randn(4, 6), torch.randn(4, 5, 6), torch.randn(4, 3, 6, 5)

    def dense(classes: int) -> nn.Linear:
        return nn.Linear(6, classes)

    def conv(channels: int) -> nn.Conv2d:
        return nn.Conv2d(3, channels, 3, padding=1)

    def of_rows(function: Callable[..., Any], classes: int, loss: str = MSE) -> Arranged:
        return Arranged(Written(function, a=dense(classes)), (rows,), loss)

    def of_steps(function: Callable[..., Any], classes: int, loss: str = MSE) -> Arranged:
        return Arranged(Written(function, a=dense(classes)), (steps,), loss)

    def of_images(
        function: Callable[..., Any],
        channels: int,
        predicted: tuple[int, ...] | None,
        loss: str = MSE,
    ) -> Arranged:
        return Arranged(Written(function, a=conv(channels)), (images,), loss, predicted)

    sigmoid, softmax = torch.sigmoid, torch.softmax
    return {
        "one number": of_rows(lambda s, x: s.a(x).sum(1), 3),
        "squeezed": of_rows(lambda s, x: s.a(x).squeeze(-1), 1),
        "probability squeezed": of_rows(lambda s, x: sigmoid(s.a(x)).squeeze(-1), 1, BINARY),
        "one number in a row": of_rows(lambda s, x: s.a(x), 1),
        "probability": of_rows(lambda s, x: sigmoid(s.a(x)), 1, BINARY),
        "probability of a formula": of_rows(lambda s, x: sigmoid(s.a(x) * 2 + 1), 2, BINARY),
        "probability expanded": of_rows(lambda s, x: sigmoid(s.a(x)).expand(-1, 5), 1, BINARY),
        "input of one number": Arranged(
            Written(lambda s, x: s.a(x[:, None]), a=nn.Linear(1, 3)), (torch.randn(4),)
        ),
        "image of one channel": of_images(lambda s, x: s.a(x), 1, (4, 6, 5, 1)),
        "mask": of_images(lambda s, x: sigmoid(s.a(x)), 1, (4, 6, 5, 1), BINARY),
        "segmentation": of_images(lambda s, x: s.a(x), 4, (4, 6, 5, 4), SPARSE),
        "segmentation one-hot": of_images(lambda s, x: s.a(x), 4, (4, 6, 5, 4), ONE_HOT),
        "images joined": of_images(lambda s, x: torch.cat([s.a(x), x], 1), 3, (4, 6, 5, 6)),
        "image pooled": of_images(
            lambda s, x: F.adaptive_avg_pool2d(s.a(x), 1), 2, (4, 1, 1, 2), SPARSE
        ),
        "image of one sample": Arranged(
            Written(lambda s, x: s.a(x), a=conv(1)), (images[:1],), MSE, (1, 6, 5, 1)
        ),
        "image, channels last": of_images(lambda s, x: s.a(x).permute(0, 2, 3, 1), 4, None, SPARSE),
        "positions behind channels": of_images(lambda s, x: s.a(x).flatten(2), 2, None, SPARSE),
        "sequence": Arranged(
            Written(lambda s, x: s.a(x), a=nn.Conv1d(5, 2, 3)), (steps,), MSE, (4, 4, 2)
        ),
        "halves of an image": of_images(lambda s, x: s.a(x).chunk(2, 1), 4, (4, 6, 5, 2)),
        "scores transposed": Arranged(
            Written(
                lambda s, x: (s.a(x) @ s.b(x).transpose(1, 2)).transpose(1, 2),
                a=dense(3),
                b=dense(3),
            ),
            (steps,),
            SPARSE,
        ),
        "transposed": of_steps(lambda s, x: s.a(x).transpose(1, 2), 3, SPARSE),
        "probabilities of rank 4": of_steps(lambda s, x: s.a(x)[:, None], 3, SPARSE),
        "heads": of_steps(lambda s, x: s.a(x).view(-1, 5, 2, 4).transpose(1, 2), 8, SPARSE),
        "heads permuted": of_steps(lambda s, x: s.a(x).view(-1, 5, 2, 4).permute(0, 3, 1, 2), 8),
        "softmax over steps": of_steps(lambda s, x: softmax(s.a(x), 1), 3),
        "merged with samples": of_steps(lambda s, x: s.a(x).view(-1, 3), 3, SPARSE),
        "steps first": of_steps(lambda s, x: s.a(x).transpose(0, 1), 3),
        "expanded": of_rows(lambda s, x: s.a(x)[:, None].expand(-1, 5, -1), 3),
        "extents of 1": of_rows(lambda s, x: s.a(x)[:, None, :, None], 3),
        "six dimensions": of_rows(lambda s, x: s.a(x)[:, None, None, :, None, None], 3),
        "nested": of_rows(lambda s, x: {"z": s.a(x), "b": {"c": s.a(x) * 2, "a": s.a(x) + 1}}, 3),
        "twice": of_rows(lambda s, x: (lambda y: (y, y))(s.a(x)), 3),
        "input returned": of_rows(lambda s, x: (s.a(x), x), 3),
        "for all samples": Arranged(
            Written(
                lambda s, x: (s.a(x), s.scale.exp()),
                a=dense(3),
                scale=nn.Parameter(torch.tensor(0.5)),
            ),
            (rows,),
        ),
        "inputs in a dict": Arranged(
            Written(lambda s, d: s.a(d["z"]) + s.a(d["b"]["c"]) * 2, a=dense(3)),
            ({"z": rows, "b": {"c": torch.randn(4, 6)}},),
        ),
        "inputs in a tuple": Arranged(
            Written(lambda s, pair, x: s.a(pair[0]) + s.a(pair[1]) + x, a=dense(3)),
            ((rows, torch.randn(4, 6)), torch.randn(4, 1)),
        ),
    }
