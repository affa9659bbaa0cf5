"""Imports modules of special cases, trains them here and in PyTorch; runs under legate.

legate special_modules.py OUT.json
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import flexlegion as fl


class Net(nn.Module):
    """A function of parts and inputs."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def rows(count: int, *values: float) -> Tensor:
    """As many samples, some of whose numbers are equal to others."""
    torch.manual_seed(1)
    x = torch.randn(count, 6)
    x[1, :3] = torch.tensor(values[0])
    x[2] = 0
    return x


def identity(width: int) -> nn.Linear:
    """A layer that leaves its input as it is, so that corners of functions are met exactly."""
    layer = nn.Linear(width, width)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(width))
        layer.bias.zero_()
    return layer


def attended(net: Any, x: Tensor, allowed: Tensor) -> Tensor:
    """Attention, of samples some of whose queries may attend to nothing."""
    q = net.a(x).unsqueeze(1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=allowed[:, None, None].bool())[:, 0]


MASK = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1]])
TOKENS = torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0], [4, 5, 6, 1]])

Case = tuple[nn.Module, tuple[Tensor, ...]]


def cases() -> dict[str, Case]:
    """Modules and their inputs; of all, the loss is the mean squared distance from 1."""
    torch.manual_seed(0)
    far = nn.Linear(6, 6)
    with torch.no_grad():
        far.weight.mul_(300)
    x, ties = rows(4, 0.5), rows(4, 1.0)
    found: dict[str, Case] = {
        "log_softmax": (Net(lambda n, x: F.log_softmax(n.a(x), -1), a=far), (x,)),
        "log_softmax_of_channels": (
            Net(lambda n, x: F.log_softmax(n.a(x).reshape(-1, 3, 2), 1), a=nn.Linear(6, 6)),
            (x,),
        ),
        "lengths": (
            Net(
                lambda n, x: n.a(x) / (n.a(x).norm(dim=-1, keepdim=True) + 1e-3),
                a=nn.Linear(6, 6, bias=False),
            ),
            (x,),
        ),
        "one_number": (Net(lambda n, x: n.a(x).sum(-1), a=nn.Linear(6, 6)), (x,)),
        "attention_to_nothing": (
            Net(attended, a=nn.Linear(4, 4)),
            (torch.randn(4, 3, 4), MASK),
        ),
        "no_running_averages": (
            nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.ReLU()),
            (x,),
        ),
        "padding_of_embeddings": (
            Net(lambda n, t: n.b(n.a(t).flatten(1)), a=nn.Embedding(7, 3, 0), b=nn.Linear(12, 2)),
            (TOKENS,),
        ),
    }
    found |= layers()
    for mode in ("sum", "mean"):
        bag = nn.EmbeddingBag(7, 3, mode=mode, padding_idx=0)
        found[f"padding_of_bags_{mode}"] = (bag, (TOKENS,))
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "amax": lambda x: x.amax(-1, keepdim=True),
        "amin": lambda x: x.amin(-1),
        "max": lambda x: x.max(-1).values,
        "min": lambda x: x.min(1, keepdim=True)[0],
        "clamp": lambda x: x.clamp(0, 1),
        "clamp_min": lambda x: x.clamp(min=0),
        "relu6": F.relu6,
        "hardtanh": lambda x: F.hardtanh(x, 0, 1),
        "elu": lambda x: F.elu(x, 0.7),
        "selu": F.selu,
        "hardswish": F.hardswish,
        "hardsigmoid": F.hardsigmoid,
        "leaky_relu": F.leaky_relu,
        "maximum": lambda x: torch.maximum(x, x.roll(1, -1)),
    }
    for name, function in functions.items():
        net = Net(lambda n, x, f=function: f(n.a(x)), a=identity(6))
        found[f"{name}_at_corners"] = (net, (ties,))
    return found


def layers() -> dict[str, Case]:
    """Layers that are other operators here, or several of them."""
    image, line = torch.randn(4, 3, 7, 6), torch.randn(4, 4, 9)
    images: dict[str, list[nn.Module]] = {
        "instance_norm": [nn.InstanceNorm2d(4, affine=True), nn.Tanh()],
        "largest_rounded_up": [nn.MaxPool2d(3, 2, ceil_mode=True)],
        "averages_rounded_up": [nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)],
        "sums_of_windows": [nn.AvgPool2d(2, divisor_override=3)],
        "layer_norm_of_images": [nn.LayerNorm((4, 7, 6)), nn.Tanh()],
        "shuffled_channels": [nn.ChannelShuffle(2), nn.Conv2d(4, 2, 3)],
    }
    sequences: dict[str, list[nn.Module]] = {
        "groups_and_dilation": [nn.Conv1d(4, 6, 3, padding=2, dilation=2, groups=2), nn.Tanh()],
        "transposed": [nn.ConvTranspose1d(4, 3, 3, 2, 1, output_padding=1), nn.Tanh()],
    }
    found: dict[str, Case] = {}
    for name, parts in images.items():
        found[name] = (nn.Sequential(nn.Conv2d(3, 4, 1), *parts, nn.Flatten()), (image,))
    for name, parts in sequences.items():
        found[name] = (nn.Sequential(*parts, nn.Flatten()), (line,))
    steps = {"lstm_cell": nn.LSTMCell(4, 3), "gru_cell": nn.GRUCell(4, 3)}
    for name, cell in steps.items():
        found[name] = (Net(stepped, cell=cell), (line,))
    found["added_up_and_turned"] = (
        Net(lambda n, x: (n.a(x).cumsum(1) * x.flip(2)).flatten(1), a=nn.Linear(9, 9)),
        (line,),
    )
    return found


class Computed(nn.Module):
    """Layers whose weights are computed: an adapter merged into what is frozen, a cosine, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(5, 2))
        self.normed = weight_norm(nn.Linear(5, 4))
        self.classes = nn.Parameter(torch.randn(3, 4))
        self.scale, self.shift = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        merged = F.linear(x, self.base.weight + 0.5 * self.up @ self.down, self.base.bias)
        x = torch.relu(self.normed(torch.tanh(merged)))
        x = F.linear(F.normalize(x, dim=-1), F.normalize(self.classes, dim=-1))
        return F.layer_norm(x, (3,), 1 + self.scale, self.shift.exp())


class Filters(nn.Module):
    """Convolutions whose filters are computed, of images and of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv2d(3, 4, 3, padding=1), dim=1)
        self.filters = nn.Parameter(torch.randn(2, 4, 3, 3))
        self.line = weight_norm(nn.Conv1d(2, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.filters.mean((1, 2, 3), keepdim=True)
        standard = (self.filters - mean) / (self.filters.std((1, 2, 3), keepdim=True) + 1e-5)
        x = F.conv2d(torch.tanh(self.first(x)), standard, stride=2)
        return self.line(x.flatten(2)).flatten(1)


def computed() -> dict[str, Case]:
    """Modules whose weights are computed, under several strategies."""
    torch.manual_seed(3)
    found: dict[str, Case] = {}
    for strategy in ("data", "random:1", "random:2", "model"):
        found[f"computed {strategy}"] = (Computed(), (torch.randn(4, 6),))
        found[f"filters {strategy}"] = (Filters(), (torch.randn(4, 3, 6, 5),))
    return found


def stepped(net: Any, x: Tensor) -> Tensor:
    """The last state of a cell."""
    state = None
    for step in range(4):
        state = net.cell(x[:, :, step], state)
    result: Tensor = state[0] if isinstance(state, tuple) else state
    return result


def dropped() -> list[list[float]]:
    """Whether a gradient reached parameters behind a dropout of features: (channel, position)."""

    class Behind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.drop = nn.Parameter(torch.ones(64, 5)), nn.Dropout1d(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(x) * self.scale

    net = fl.from_torch(Behind(), torch.ones(1, 64, 5))
    net.compile(fl.SGD(0.1), "mean_squared_error")
    net.fit(np.ones((1, 64, 5), np.float32), np.zeros((1, 64, 5), np.float32), progress=False)
    module = Behind()
    fl.to_torch(net, module)
    net.close()
    return (module.scale.detach() != 1).float().tolist()


def train(module: nn.Module, inputs: tuple[Tensor, ...], strategy: str = "data") -> dict[str, Any]:
    """Predictions and losses here and in PyTorch."""
    net = fl.from_torch(module, inputs)
    net.compile(fl.SGD(0.1), "mean_squared_error", strategy=strategy)
    arrays = net.origin.arrays(inputs)
    given = arrays if len(arrays) > 1 else arrays[0]
    predicted = torch.from_numpy(net.predict(given))
    module.eval()
    with torch.no_grad():
        expected = module(*inputs)
    module.train()
    labels = torch.ones_like(expected)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    theirs = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(module(*inputs), labels)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    history = net.fit(
        given, torch.ones_like(predicted).numpy(), epochs=3, shuffle=False, progress=False
    )
    net.close()
    return {
        "predicted": predicted.flatten().tolist(),
        "expected": expected.flatten().tolist(),
        "losses": [epoch["loss"] for epoch in history.epochs],
        "theirs": theirs,
    }


def main() -> None:
    """Save what all cases give."""
    results = {name: train(module, inputs) for name, (module, inputs) in cases().items()}
    for name, (module, inputs) in computed().items():
        results[name] = train(module, inputs, name.split()[1])
    Path(sys.argv[1]).write_text(json.dumps({"trained": results, "reached": dropped()}))


if __name__ == "__main__":
    main()
