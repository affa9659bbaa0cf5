"""Trains a program that `flexlegion export` wrote of `llama.py:small`, by plain PyTorch.

torchrun --nproc-per-node 4 train_llama.py
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def main() -> None:
    """Twenty steps: each token is followed by the next number."""
    dist.init_process_group("gloo")  # on GPUs, "nccl"
    plan: Any = importlib.import_module("plan")
    weights = plan.Weights(np.load("first.npz"))
    optimizer = torch.optim.AdamW(weights.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for step in range(20):
        first = torch.randint(0, 64, (8, 1), generator=generator)
        tokens = (first + torch.arange(17)) % 64
        optimizer.zero_grad()
        loss = plan.forward_backward(weights, tokens[:, :-1], tokens[:, 1:])
        optimizer.step()
        if dist.get_rank() == 0 and step in (0, 19):
            print(f"step {step}: loss {loss.item():.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
