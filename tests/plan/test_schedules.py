"""Learning-rate schedules beside PyTorch's, and by their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from flexlegion.base.errors import UserError
from flexlegion.objective.schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    inverse_sqrt,
    step_decay,
    with_warmup,
)

STEPS = 50

CASES: list[tuple[Schedule, Callable[[Any], Any]]] = [
    (constant, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    (step_decay(1, 0.3, after=7, every=7), lambda o: lr_scheduler.StepLR(o, 7, 0.3)),
    (step_decay(10, 0.5), lambda o: lr_scheduler.StepLR(o, 10, 0.5)),
    (exponential(1, 0.9), lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    (exponential(5, 0.9**5), lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    (cosine(STEPS), lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS)),
    (cosine(30, last=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.1)),
    (
        with_warmup(cosine(40), 10),
        lambda o: lr_scheduler.SequentialLR(
            o,
            [
                lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=9),
                lr_scheduler.CosineAnnealingLR(o, 40),
            ],
            [10],
        ),
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_like_pytorch(case: int) -> None:
    schedule, make = CASES[case]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = make(optimizer)
    # PyTorch's cosine starts to rise again after its end, where ours stays.
    for step in range(30 if case == 6 else STEPS):
        assert schedule(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_after_its_end_the_cosine_stays() -> None:
    assert cosine(30, last=0.1)(1000) == pytest.approx(0.1)
    assert cosine(30)(30) == pytest.approx(0)


def test_zaremba() -> None:
    """The medium model's: six epochs at the full rate, then less by 1.2 each."""
    schedule = step_decay(100, 1 / 1.2, after=6)
    assert [schedule(100 * epoch) for epoch in range(7)] == [1] * 6 + [pytest.approx(1 / 1.2)]
    assert schedule(599) == 1
    assert schedule(100 * 38 + 99) == pytest.approx(1.2**-33)


def test_inverse_square_root() -> None:
    """Vaswani et al.'s formula over its value at the peak."""
    warmup, width = 16, 512
    schedule = inverse_sqrt(warmup)

    def formula(step: int) -> float:
        return width**-0.5 * min(step**-0.5, step * warmup**-1.5)

    for step in (0, 3, 15, 16, 100):
        assert schedule(step) == pytest.approx(formula(step + 1) / formula(warmup))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: step_decay(10, 0), "the decay factor has to be above 0 and at most 1, but is 0"),
        (lambda: exponential(10, 1.5), "factor has to be above 0 and at most 1, but is 1.5"),
        (lambda: exponential(10, float("nan")), "factor has to be above 0 and at most 1, but"),
        (
            lambda: step_decay(10, 0.5, every=0),
            "a schedule's 'every' has to be at least 1, but is 0",
        ),
        (lambda: cosine(0), "a schedule's 'steps' has to be at least 1, but is 0"),
        (lambda: cosine(5, last=2), "the last factor of a schedule has to be 0 to 1, but is 2"),
        (lambda: inverse_sqrt(-1), "a schedule's warm-up has to be at least 1 step, but is -1"),
        (lambda: with_warmup(constant, 0), "warm-up has to be at least 1 step, but is 0"),
    ],
)
def test_refuses(make: Callable[[], Schedule], text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()
