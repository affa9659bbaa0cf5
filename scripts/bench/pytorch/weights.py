"""Weights and gradients of a PyTorch module by flexlegion's names, in flexlegion's layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Link:
    """Where a weight of flexlegion's is in a module.

    Parameters
    ----------
    name
        Flexlegion's.
    module, attribute
        The parameter or buffer.
    order
        Permutation from PyTorch's dimensions, after `view`, to flexlegion's; all of them unchanged
        unless given.
    view
        Shape of PyTorch's dimensions, if it is not the parameter's own.
    flat
        Whether flexlegion has all dimensions but the first in one.
    rows
        First and last of those rows of the parameter that the weight is; all unless given.
    """

    name: str
    module: nn.Module
    attribute: str
    order: tuple[int, ...] | None = None
    view: tuple[int, ...] | None = None
    flat: bool = False
    rows: tuple[int, int] | None = None

    @property
    def parameter(self) -> torch.Tensor:
        """All of the parameter."""
        parameter = getattr(self.module, self.attribute)
        assert isinstance(parameter, torch.Tensor)
        return parameter

    @property
    def trained(self) -> bool:
        """Whether it has a gradient."""
        return self.parameter.requires_grad

    def laid_out(self, parameter: torch.Tensor) -> torch.Tensor:
        """The weight's part of a tensor like the parameter, in flexlegion's layout."""
        part = self._viewed(parameter)
        return part.flatten(1) if self.flat else part

    def load(self, weight: Array) -> None:
        """Set the weight."""
        with torch.no_grad():
            target = self._viewed(self.parameter)
            target.copy_(torch.from_numpy(np.asarray(weight)).reshape(target.shape))

    def _viewed(self, parameter: torch.Tensor) -> torch.Tensor:
        part = parameter if self.rows is None else parameter[slice(*self.rows)]
        if self.view is not None:
            part = part.view(self.view)
        return part if self.order is None else part.permute(self.order)


def links_of(name: str, module: nn.Module, image: tuple[int, int, int] | None = None) -> list[Link]:
    """The weights of an operator.

    Parameters
    ----------
    name
        The operator's.
    module
        Its counterpart.
    image
        For a dense layer that reads a flattened image: PyTorch's (channel, height, width). What
        flexlegion flattens is (height, width, channel).
    """
    if isinstance(module, nn.Conv2d):
        links = [Link(f"{name}.kernel", module, "weight", order=(0, 2, 3, 1))]
    elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return [
            Link(f"{name}.gamma", module, "weight"),
            Link(f"{name}.beta", module, "bias"),
            Link(f"{name}.moments.running_mean", module, "running_mean"),
            Link(f"{name}.moments.running_variance", module, "running_var"),
        ]
    elif isinstance(module, nn.LayerNorm):
        return [Link(f"{name}.gamma", module, "weight"), Link(f"{name}.beta", module, "bias")]
    elif isinstance(module, nn.Embedding):
        return [Link(f"{name}.table", module, "weight")]
    elif isinstance(module, nn.Linear):
        if image is None:
            links = [Link(f"{name}.kernel", module, "weight")]
        else:
            view = (module.out_features, *image)
            links = [Link(f"{name}.kernel", module, "weight", (0, 2, 3, 1), view, flat=True)]
    else:
        raise TypeError(f"{name}: nothing known about a module {module}")
    return links + ([Link(f"{name}.bias", module, "bias")] if module.bias is not None else [])


def lstm_links(names: Sequence[str], module: nn.LSTM) -> list[Link]:
    """The weights of recurrent layers, by the name of each layer's first operator.

    PyTorch has a second bias. It stays zero: with both trained, a step would go twice as far.
    """
    links = []
    hidden = module.hidden_size
    for layer, name in enumerate(names):
        second = getattr(module, f"bias_hh_l{layer}")
        nn.init.zeros_(second)
        second.requires_grad_(False)
        for ours, theirs in (("kernel", "weight_ih"), ("recurrent_kernel", "weight_hh")):
            attribute = f"{theirs}_l{layer}"
            view = (4, hidden, getattr(module, attribute).shape[1])
            links.append(Link(f"{name}.{ours}", module, attribute, (1, 0, 2), view))
        links.append(Link(f"{name}.bias", module, f"bias_ih_l{layer}", (1, 0), (4, hidden)))
    return links


def joint_links(names: Sequence[str], module: nn.Linear) -> list[Link]:
    """The weights of dense layers that are one in PyTorch, each with as many units."""
    units = module.out_features // len(names)
    return [
        Link(f"{name}.{ours}", module, theirs, rows=(i * units, (i + 1) * units))
        for i, name in enumerate(names)
        for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
    ]


class Dropout(nn.Dropout):
    """Dropout that keeps what it is told to keep, if it is.

    Parameters
    ----------
    rate
        Probability to drop an element.
    image
        As for `links_of`, if its input is a flattened image.
    """

    def __init__(self, rate: float, image: tuple[int, int, int] | None = None) -> None:
        super().__init__(rate)
        self.image = image
        self.kept: torch.Tensor | None = None

    def keep(self, mask: Array) -> None:
        """Keep the elements where `mask`, in flexlegion's layout, is true."""
        kept = torch.from_numpy(mask)
        if self.image is not None:
            c, h, w = self.image
            kept = kept.view(-1, h, w, c).permute(0, 3, 1, 2).flatten(1)
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """While training, some elements are zero, and the others are scaled up."""
        if self.kept is None or not self.training:
            return super().forward(x)
        return x * self.kept / (1 - self.p)


class Twin(nn.Module):
    """A network of the zoo in PyTorch; it returns logits.

    Images are (n, channel, height, width), tokens (n, steps) of an integer type.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.dropouts: dict[str, Dropout] = {}  # by flexlegion's name

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take over flexlegion's weights (`Model.get_weights`).

        Those of running averages may be missing.
        """
        links = {link.name: link for link in self.links}
        missing = {link.name for link in self.links if link.trained} - weights.keys()
        if missing or not links.keys() >= weights.keys():
            raise KeyError(f"weights differ: {sorted(missing)}, {sorted(weights.keys() - links)}")
        for name, weight in weights.items():
            links[name].load(weight)

    def weights(self) -> dict[str, Array]:
        """All weights, running averages included, by flexlegion's names and in its layouts."""
        return {
            link.name: link.laid_out(link.parameter).detach().contiguous().numpy().copy()
            for link in self.links
        }

    def gradients(self) -> dict[str, Array]:
        """Gradients of all trained weights, by flexlegion's names and in its layouts."""
        gradients = {}
        for link in self.links:
            if link.trained:
                gradient = link.parameter.grad
                assert gradient is not None, link.name
                gradients[link.name] = link.laid_out(gradient).contiguous().numpy().copy()
        return gradients


def table_of(rows: int, columns: int) -> nn.Embedding:
    """A table of embeddings, drawn as in GPT-2.

    With PyTorch's default, probabilities are nearly 0 or 1 and gradients denormal, with which
    arithmetic takes several times as long.
    """
    table = nn.Embedding(rows, columns)
    nn.init.normal_(table.weight, std=0.02)
    return table
