"""An imported PyTorch network of a size that two cores train in a moment: a small ResNet.

python scripts/bench/accuracy.py --out report.json --model scripts/bench/imported_net.py:model
"""

import torch
from torch import nn

import flexlegion as fl


class Block(nn.Module):
    """Two convolutions of half the pixels and twice the channels, beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, wide, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
            nn.BatchNorm2d(wide),
        )
        self.shortcut = nn.Conv2d(channels, wide, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (samples, channels, height, width)."""
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def model(batch_size: int = 16, pixels: int = 64) -> fl.Model:
    """What the commands call."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *(Block(32 << i) for i in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    net = fl.from_torch(network, (torch.zeros(batch_size, 3, pixels, pixels),))
    net.loss = "sparse_categorical_crossentropy"  # of logits
    return net
