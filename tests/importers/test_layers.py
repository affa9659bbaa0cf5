"""Layers of torch.nn, beside PyTorch: outputs and gradients; what has no operator is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_torch import assert_same
from torch import Tensor, nn

import flexlegion as fl
from flexlegion.base.errors import UserError

Case = tuple[nn.Module, tuple[int, ...]]  # a module, and its input's shape


def fixed(layer: nn.Module) -> nn.Module:
    """A layer in evaluation mode, whose running statistics are not those of a new one."""
    for name, buffer in layer.named_buffers():
        if name.startswith("running"):
            buffer.uniform_(0.5, 2)
    layer.training = False
    return layer


def drawn(layer: nn.Module) -> nn.Module:
    """A layer whose parameters are not zeros and ones."""
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return layer


class Frames(nn.Module):
    """A layer for each frame of a video."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.flatten(0, 1))
        return y.reshape(x.shape)


def behind(first: nn.Module, *layers: nn.Module) -> nn.Module:
    """Layers behind one that has parameters, so that their own gradients are compared."""
    return nn.Sequential(first, *layers)


CASES: dict[str, Callable[[], Case]] = {
    "instance norm": lambda: (behind(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)), (2, 3, 7, 6)),
    "instance norm, affine": lambda: (
        behind(nn.Conv2d(3, 4, 3), drawn(nn.InstanceNorm2d(4, affine=True, eps=0.1)), nn.ReLU()),
        (2, 3, 7, 6),
    ),
    "instance norm of sequences": lambda: (
        behind(nn.Conv1d(3, 4, 3), drawn(nn.InstanceNorm1d(4, affine=True))),
        (2, 3, 7),
    ),
    "batch norm by fixed statistics": lambda: (
        behind(nn.Conv2d(3, 4, 3), fixed(drawn(nn.BatchNorm2d(4))), nn.ReLU()),
        (2, 3, 7, 6),
    ),
    "instance norm by fixed statistics": lambda: (
        behind(
            nn.Conv2d(3, 4, 3),
            fixed(drawn(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))),
        ),
        (2, 3, 7, 6),
    ),
    "convolution of sequences in groups": lambda: (
        behind(nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), nn.ReLU()),
        (2, 4, 9),
    ),
    "convolution of sequences, by channels": lambda: (
        behind(nn.Conv1d(4, 4, 4, padding="same", groups=4, bias=False), nn.Conv1d(4, 3, 2)),
        (2, 4, 9),
    ),
    "convolution of sequences with dilation": lambda: (
        behind(nn.Conv1d(4, 6, 3, padding=4, dilation=3), nn.Flatten(), nn.Linear(66, 2)),
        (2, 4, 9),
    ),
    "convolution of sequences, causal": lambda: (
        behind(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(4, 4, 3, dilation=2), nn.BatchNorm1d(4)),
        (2, 4, 9),
    ),
    "largest of a single element": lambda: (
        behind(nn.Conv1d(3, 4, 1), nn.MaxPool1d(2, 2, ceil_mode=True), nn.Conv1d(4, 2, 1)),
        (2, 3, 1),
    ),
    "sums of windows": lambda: (
        behind(nn.Conv2d(3, 4, 1), nn.AvgPool2d(2, 1, divisor_override=3)),
        (2, 3, 5, 6),
    ),
    "averages of windows that reach beyond the end, by a divisor": lambda: (
        behind(nn.Conv2d(3, 4, 1), nn.AvgPool2d(2, 3, 1, ceil_mode=True, divisor_override=3)),
        (2, 3, 7, 6),
    ),
    "layer norm of images": lambda: (
        behind(nn.Conv2d(3, 3, 3), drawn(nn.LayerNorm((3, 4, 5)))),
        (2, 3, 6, 7),
    ),
    "layer norm of positions": lambda: (
        behind(nn.Conv2d(3, 3, 3), drawn(nn.LayerNorm((4, 5), bias=False)), nn.ReLU()),
        (2, 3, 6, 7),
    ),
    "layer norm of several dimensions, some of extent 1": lambda: (
        behind(nn.Linear(4, 6), nn.Unflatten(2, (1, 2, 3)), drawn(nn.LayerNorm((1, 2, 3)))),
        (2, 3, 4),
    ),
    "layer norm without parameters": lambda: (
        behind(nn.Linear(4, 6), nn.LayerNorm((3, 6), elementwise_affine=False)),
        (2, 3, 4),
    ),
    "RMS norm of images": lambda: (
        behind(nn.Conv2d(3, 3, 3), drawn(nn.RMSNorm((3, 4, 5), eps=0.1))),
        (2, 3, 6, 7),
    ),
    "shuffled channels": lambda: (
        behind(nn.Conv2d(3, 8, 1), nn.ChannelShuffle(4), nn.Conv2d(8, 3, 3)),
        (2, 3, 4, 5),
    ),
    "shuffled channels of an output": lambda: (
        behind(nn.Conv2d(3, 6, 1), nn.ChannelShuffle(2)),
        (2, 3, 4, 5),
    ),
    "blocks of pixels as channels": lambda: (
        nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 3, 1)),
        (2, 3, 4, 6),
    ),
    "transposed convolution of sequences": lambda: (
        behind(nn.ConvTranspose1d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv1d(4, 2, 2)),
        (2, 3, 5),
    ),
    "transposed convolution of sequences, padded": lambda: (
        behind(
            nn.Conv1d(3, 3, 1),
            nn.ConvTranspose1d(3, 4, 3, 3, 1, output_padding=2, dilation=2, bias=False),
        ),
        (2, 3, 5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_pytorch(name: str) -> None:
    torch.manual_seed(0)
    module, shape = CASES[name]()
    assert_same(module, torch.randn(shape))


class Twofold(nn.Module):
    """A bilinear layer of vectors, or of sequences."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.both = nn.Linear(3, 3), nn.Bilinear(3, 4, 5, bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.both(self.first(x), y)
        return result


@pytest.mark.parametrize("shape", [(2,), (2, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_layers_beside_pytorch(bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert_same(Twofold(bias), torch.randn(*shape, 3), torch.randn(*shape, 4))


@pytest.mark.parametrize(
    "module", [nn.Linear(3, 4), nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), nn.GRU(3, 2)]
)
def test_whole_numbers_where_real_ones_are_needed(module: nn.Module) -> None:
    """torch.export lets some of these pass, though the module does not run with them."""
    shape = (2, 2, 3) if isinstance(module, nn.GRU) else (2, 3)
    with pytest.raises(UserError, match=r"takes real numbers, but gets|cannot export"):
        fl.from_torch(module, torch.zeros(shape, dtype=torch.long))


class Shared(nn.Module):
    """A normalisation of an image and of its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm((4, 4)), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.first(x)) + self.norm(x.mT)
        return y


REFUSED: dict[str, tuple[Callable[[], Case], str]] = {
    "instance norm with running statistics": (
        lambda: (nn.InstanceNorm2d(4, track_running_stats=True), (2, 4, 7, 6)),
        r"'instance_norm' \(InstanceNorm2d\): .*track_running_stats",
    ),
    "layer norm with its weight in two layouts": (
        lambda: (Shared(), (2, 3, 4, 4)),
        r"'layer_norm' at 'norm' .*'norm.weight' is used in two ways",
    ),
    "dropout of features of unbatched sequences": (
        lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.3)), (2, 4)),
        r"'feature_dropout' at '1' \(Dropout1d\): its first two dimensions",
    ),
    "dropout of all features": (
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout2d(1.0)), (2, 3, 4, 5)),
        r"'feature_dropout' at '1' \(Dropout2d\): .*below 1, but is 1.0",
    ),
    "dropout of all elements": (
        lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)), (2, 4)),
        r"'dropout' at '1' \(Dropout\): .*below 1, but is 1.0",
    ),
    "transposed convolution of sequences in groups": (
        lambda: (nn.ConvTranspose1d(4, 4, 3, groups=2), (2, 4, 5)),
        "'conv_transpose1d' .*has groups",
    ),
    "instance norm of frames": (
        lambda: (Frames(nn.InstanceNorm1d(4)), (2, 3, 4, 6)),
        "'instance_norm' .*not the samples alone",
    ),
    "group norm of frames": (
        lambda: (Frames(nn.GroupNorm(2, 4)), (2, 3, 4, 6)),
        "'group_norm' .*not the samples alone",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    (module, shape), words = REFUSED[name][0](), REFUSED[name][1]
    with pytest.raises(UserError, match=words):
        fl.from_torch(module, torch.randn(shape))


class Poolings(nn.Module):
    """Poolings whose numbers of windows are rounded up, of a sequence and of an image."""

    def __init__(self, *window: int) -> None:
        super().__init__()
        self.sequences, self.images = nn.Conv1d(2, 3, 1), nn.Conv2d(2, 3, 1)
        self.pool1d = nn.ModuleList(_poolings(nn.MaxPool1d, nn.AvgPool1d, window))
        self.pool2d = nn.ModuleList(_poolings(nn.MaxPool2d, nn.AvgPool2d, window))

    def forward(self, sequences: Tensor, images: Tensor) -> list[Tensor]:
        x, y = self.sequences(sequences), self.images(images)
        return [*(pool(x) for pool in self.pool1d), *(pool(y) for pool in self.pool2d)]


def _poolings(largest: Any, average: Any, window: tuple[int, ...]) -> list[nn.Module]:
    without = average(*window, ceil_mode=True, count_include_pad=False)
    return [largest(*window, ceil_mode=True), average(*window, ceil_mode=True), without]


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (2, 3, 1), (4, 3, 2), (2, 3, 0)])
def test_numbers_of_windows_that_are_rounded_up(window: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    for extent in (6, 7):
        sequences, images = torch.randn(2, 2, extent), torch.randn(2, 2, extent, 13 - extent)
        assert_same(Poolings(*window), sequences, images)


def test_images_do_not_move_for_a_norm_of_all_their_dimensions() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm((4, 5, 6)), nn.Conv2d(4, 2, 1))
    model = fl.from_torch(module, torch.randn(2, 3, 7, 8))
    found = [op.kind.type for op in model.graph.operators]
    assert found == ["conv2d", "reshape", "layer_norm", "reshape", "conv2d"]


def test_the_smallest_number_of_single_precision_is_that_of_a_check() -> None:
    """An RMS norm adds that of its input's type, which a check in double precision has not."""
    torch.manual_seed(0)
    layer = nn.RMSNorm(4)
    nn.init.uniform_(layer.weight, 0.5, 1.5)
    module = nn.Sequential(nn.Linear(4, 4), layer)
    with torch.no_grad():
        module[0].weight.mul_(1e-2)
        module[0].bias.zero_()
    assert fl.from_torch(module, torch.randn(4, 4)).origin.notes == []


def test_dropout_of_features_is_dropout_of_a_number_for_each_channel() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.3), nn.Conv2d(4, 2, 1))
    model = fl.from_torch(module, torch.randn(2, 3, 7, 8))
    (dropout,) = [op for op in model.graph.operators if op.kind.type == "dropout"]
    assert dropout.output.shape == (2, 4)
    assert dropout.kind.attributes()["rate"] == "0.3"
    module[1].p = 0.0
    model = fl.from_torch(module, torch.randn(2, 3, 7, 8))
    assert [op.kind.type for op in model.graph.operators] == ["conv2d", "conv2d"]
