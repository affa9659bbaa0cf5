"""Trains an imported module and gives it back; runs under legate.

legate trained_module.py OUT.npz
"""

import sys

import numpy as np
import torch
from torch import nn

import flexlegion as fl


def network() -> nn.Module:
    """A small network with batch normalisation, whose running averages eval mode uses."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, padding=1)
    second = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
    return nn.Sequential(
        *(first, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(second, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)),
    )


def main() -> None:
    """Save what the model predicts, and what the module does before and with its weights."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((32, 8, 8, 3), np.float32) + 1
    labels = rng.integers(0, 5, 32).astype(np.int32)
    module = network()
    model = fl.from_torch(module, (torch.zeros(8, 3, 8, 8),))
    model.compile("adam", loss="sparse_categorical_crossentropy", strategy="data")
    model.fit(images, labels, epochs=2, progress=False)
    predicted = model.predict(images)
    given = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        before = module.eval()(given).numpy()
        averages = module[1].running_mean.clone().numpy()
        fl.to_torch(model, module)
        same = module.eval()(given).numpy()
        other = network()
        fl.to_torch(model, other)
        anew = other.eval()(given).numpy()
    moved = module[1].running_mean.numpy() - averages
    np.savez(sys.argv[1], predicted=predicted, before=before, same=same, anew=anew, moved=moved)


if __name__ == "__main__":
    main()
