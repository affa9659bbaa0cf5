"""A PyTorch model: searched by commands; trained here, and given back."""

import torch
from torch import nn

import flexlegion as fl
from flexlegion.data import load_digits


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (samples, channels, height, width)."""
        y: torch.Tensor = self.conv2(torch.relu(self.norm(self.conv1(x))))
        return x + y


def module(width: int = 16) -> nn.Module:
    """The PyTorch model."""
    first = nn.Conv2d(1, width, 3, padding=1)
    dense = nn.Linear(16 * width, 10)
    pool = nn.AdaptiveAvgPool2d(4)
    return nn.Sequential(first, Residual(width), pool, nn.Flatten(), dense)


def model(batch_size: int = 64, width: int = 16) -> fl.Model:
    """What the commands call."""
    return imported(module(width), batch_size)


def imported(network: nn.Module, batch_size: int) -> fl.Model:
    """The same model for flexlegion, with the same weights."""
    images = torch.zeros(batch_size, 1, 8, 8)
    net = fl.from_torch(network, (images,))
    net.loss = "sparse_categorical_crossentropy"  # of logits
    return net


def main() -> None:
    """Train, and use the weights in PyTorch."""
    digits = load_digits((8, 8))  # (samples, height, width, channel)
    network = module()
    net = imported(network, batch_size=64)
    net.compile("adam", metrics=["accuracy"], strategy="data")
    net.fit(digits.x, digits.y, epochs=4)
    fl.to_torch(net, network)
    images = torch.from_numpy(digits.x).permute(0, 3, 1, 2)
    right = network.eval()(images).argmax(1) == torch.from_numpy(digits.y)
    print(f"in PyTorch  accuracy {right.float().mean():.2%}")


if __name__ == "__main__":
    main()
