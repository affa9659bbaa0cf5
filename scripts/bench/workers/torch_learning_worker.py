"""One side of the comparison of learning: PyTorch. Prints a JSON line a seed.

The same data, initial weights, order of samples and optimizer as flexlegion's; of what is random,
only dropout's masks differ.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from common.learning_tasks import TASKS, LearningTask, order
from pytorch import zoo as torch_zoo
from pytorch.weights import Twin

from flexlegion.data import Dataset
from flexlegion.data.dataset import IGNORED
from flexlegion.objective.optimizers import SGD, Adam

Tensors = list[torch.Tensor]


def tensors(data: Dataset) -> tuple[Tensors, torch.Tensor]:
    """Inputs (images with channels first) and labels."""
    xs = [torch.from_numpy(array) for array in data.inputs]
    xs = [x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x for x in xs]
    return xs, torch.from_numpy(data.y).long()


def optimizer_of(task: LearningTask, model: Twin) -> torch.optim.Optimizer:
    """Flexlegion's, with the same parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours = task.optimizer
    if isinstance(ours, SGD):
        return torch.optim.SGD(
            parameters, ours.lr, momentum=ours.momentum, weight_decay=ours.weight_decay
        )
    assert type(ours) is Adam
    return torch.optim.Adam(
        parameters,
        ours.lr,
        betas=(ours.beta1, ours.beta2),
        eps=ours.epsilon,
        weight_decay=ours.weight_decay,
    )


def sum_of_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropies of all labels that count, summed."""
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def test(task: LearningTask, model: Twin, xs: Tensors, y: torch.Tensor) -> float:
    """The metric."""
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(y), task.batch_size):
            rows = slice(first, first + task.batch_size)
            logits = model(*(x[rows] for x in xs))
            loss += sum_of_losses(logits, y[rows]).item()
            correct += int((logits.argmax(-1) == y[rows]).sum())
    count = int((y != IGNORED).sum())
    return correct / count if task.metric == "accuracy" else math.exp(loss / count)


def run(task: LearningTask, seed: int, to_goal: bool) -> dict[str, Any]:
    """Train and test with one seed; or test after each epoch, until the goal is reached."""
    train_set, test_set, sizes = task.data()
    xs, y = tensors(train_set)
    torch.manual_seed(seed)
    model = torch_zoo.build(task.network, sizes)
    model.load(task.weights(sizes, seed))
    optimizer = optimizer_of(task, model)
    losses = []
    tested: list[tuple[float, float]] = []
    tests = tensors(test_set)
    started = time.perf_counter()
    for epoch in range(task.patience if to_goal else task.epochs):
        model.train()
        rows = order(len(y), seed, epoch)
        total, labels = 0.0, 0
        for first in range(0, len(rows), task.batch_size):
            batch = torch.from_numpy(rows[first : first + task.batch_size])
            count = int((y[batch] != IGNORED).sum())
            optimizer.zero_grad(set_to_none=True)
            loss = sum_of_losses(model(*(x[batch] for x in xs)), y[batch])
            (loss / count).backward()  # type: ignore[no-untyped-call]  # PyTorch's stubs
            optimizer.step()
            total, labels = total + loss.item(), labels + count
        losses.append(total / labels)
        if to_goal:
            tested.append((test(task, model, *tests), time.perf_counter() - started))
            if task.reached(tested[-1][0]):
                break
    if to_goal:
        return {"seed": seed, "search_seconds": 0.0, "chosen": "", "epochs": tested}
    seconds = time.perf_counter() - started
    value = test(task, model, *tests)
    return {"seed": seed, "value": value, "train_losses": losses, "seconds": seconds}


def main() -> None:
    """Train once a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", required=True, choices=TASKS)
    parser.add_argument("--seeds", type=int, required=True, help="how many: 0, 1, ...")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--to-goal", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        print(json.dumps(run(TASKS[args.network], seed, args.to_goal)), flush=True)


if __name__ == "__main__":
    main()
