"""One side of a benchmark: PyTorch trains a module of pytorch/full.py.

Reads ``round N`` lines, answers samples/s as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common.workloads import LEARNING_RATE
from imports_case import called, loss_of, samples_of, targets_of, trained_outputs
from pytorch.full import FULL


def training(args: argparse.Namespace) -> Callable[[], float]:
    """A function that trains for one round and returns samples/s."""
    module, example = FULL[args.model]()
    module.train()
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    # PyTorch documents this call, but its stubs lack the overload.
    module = module.to(memory_format=layout)  # type: ignore[call-overload]
    if isinstance(example, torch.Tensor) and example.ndim == 4:
        example = example.contiguous(memory_format=layout)
    run: Any = torch.compile(module) if args.compiled else module
    with torch.no_grad():
        targets = targets_of(trained_outputs(called(module, example)), 0)
    samples: int = args.iterations * samples_of(example)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, fused=True)

    def one_round() -> float:
        started = time.perf_counter()
        for _ in range(args.iterations):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.storage == "bf16"):
                loss = loss_of(trained_outputs(called(run, example)), targets)
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's stubs
            optimizer.step()
        loss.item()
        return samples / (time.perf_counter() - started)

    return one_round


def main() -> None:
    """Serve rounds until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--storage", default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    one_round = training(args)
    one_round()  # warm
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"samples_per_second": one_round()}), flush=True)


if __name__ == "__main__":
    main()
