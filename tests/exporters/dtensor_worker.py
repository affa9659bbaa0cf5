"""Runs exported programs for DTensor in gloo processes: three steps; rank 0 saves what came out.

`python dtensor_worker.py PROCESSES FOLDER NAME...`: FOLDER has NAME.py and NAME.npz, the weights,
inputs and labels; NAME.out.npz is written.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
STEPS = 3


def steps(plan: object, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Losses, the first step's outputs and gradients, and the weights at the end."""

    def some(prefix: str) -> dict[str, np.ndarray]:
        return {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}

    inputs = [torch.from_numpy(value) for value in some("input/").values()]
    labels = [torch.from_numpy(value) for value in some("label/").values()]
    weights = plan.Weights(some("weight/"), own_share="own_share" in given)
    inputs, labels = (
        [x.chunk(weights.shares)[weights.share] for x in its] for its in (inputs, labels)
    )
    optimizer = torch.optim.SGD(weights.parameters(), 0.1, 0.9)
    result = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        if plan.MICRO_BATCHES > 1 or weights.stages:
            tensors, loss = None, plan.forward_backward(weights, *inputs, *labels)
        else:
            tensors = plan.forward(weights, *inputs)
            loss = plan.loss(weights, tensors, *labels)
            if loss.requires_grad:
                loss.backward()
        if plan.CLIP_NORM is not None:
            result[f"{step} norm"] = plan.clip(weights).numpy()
        result[f"{step} loss"] = np.array(loss.item())
        if step == 0:
            for name in plan.OUTPUTS if tensors else ():
                result[name] = tensors[name].full_tensor().detach().numpy()
            for name in weights.names:
                if weights[name].grad is not None:
                    result[f"{name} gradient"] = weights[name].grad.full_tensor().numpy()
        optimizer.step()
    return result | {name: value.numpy() for name, value in weights.full().items()}


def work(rank: int, processes: int, folder: str, names: list[str]) -> None:
    from exported import loaded

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    meeting = f"file://{folder}/rendezvous-{os.getppid()}"  # a file serves once
    dist.init_process_group("gloo", meeting, rank=rank, world_size=processes)
    for name in names:
        with np.load(f"{folder}/{name}.npz") as saved:
            given = dict(saved)
        result = steps(loaded(Path(folder) / f"{name}.py"), given)
        if rank == 0:
            np.savez(f"{folder}/{name}.out.npz", **result)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1])
    mp.spawn(work, (count, sys.argv[2], sys.argv[3:]), nprocs=count)
