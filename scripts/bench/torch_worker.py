"""One side of a benchmark: PyTorch. Reads ``round N`` lines, answers samples/s as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch
from networks import LEARNING_RATE, WORKLOADS
from torch import nn


def lenet(classes: int) -> nn.Module:
    """The zoo's LeNet."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes)),
    )


def mlp(classes: int) -> nn.Module:
    """Four layers, 4096 wide."""
    hidden = [layer for _ in range(3) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(4096, classes))


def main() -> None:
    """Serve rounds until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--mode", choices=["eager", "channels_last", "compiled"], required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    work = WORKLOADS[args.workload]
    xs, ys = work.data()
    x, y = torch.from_numpy(xs), torch.from_numpy(ys).long()
    model = lenet(work.classes) if args.workload == "lenet" else mlp(work.classes)
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    if args.mode == "channels_last" and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        # PyTorch documents this call, but its stubs lack the overload.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run: Callable[[torch.Tensor], torch.Tensor] = model
    if args.mode == "compiled":
        run = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loss_of = nn.CrossEntropyLoss()

    def one_round(number: int) -> float:
        rows = [torch.from_numpy(r) for r in work.batch_rows(number)]
        started = time.perf_counter()
        for index in rows:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(run(x[index]), y[index])
            loss.backward()
            optimizer.step()
        loss.item()
        return work.batch_size * len(rows) / (time.perf_counter() - started)

    one_round(0)  # warm
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"samples_per_second": one_round(int(line.split()[1]))}), flush=True)


if __name__ == "__main__":
    main()
