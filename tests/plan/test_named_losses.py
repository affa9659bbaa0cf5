"""Losses by names with options, as commands and files have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from flexlegion import UserError
from flexlegion.objective import losses
from flexlegion.objective.named_losses import named_loss


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("huber", losses.Huber()),
        ("huber:delta=0.5", losses.Huber(0.5)),
        (
            "sparse_categorical_crossentropy:ignore_index=-1,label_smoothing=0.1,weighted=true",
            losses.SparseCategoricalCrossentropy(0.1, ignore_index=-1, weighted=True),
        ),
        (
            "sparse_categorical_crossentropy:class_weights=1x0.5x2e-1",
            losses.SparseCategoricalCrossentropy(class_weights=[1, 0.5, 0.2]),
        ),
        ("binary_crossentropy:from_logits=false", losses.BinaryCrossentropy(False)),
    ],
)
def test_names_with_options(text: str, loss: losses.Loss) -> None:
    assert named_loss(text) == loss


def test_every_option_of_every_loss_can_be_named() -> None:
    values = {bool: "true", int: "1", float: "0.5", Sequence: "1x0.5"}
    for name, loss in losses.LOSSES.items():
        hints = get_type_hints(loss)
        for field in fields(loss):
            kind = next(k for k in values if k in (hints[field.name], *_origins(hints[field.name])))
            made = named_loss(f"{name}:{field.name}={values[kind]}")
            assert getattr(made, field.name) in (True, 1, 0.5, (1, 0.5))


def _origins(hint: Any) -> list[Any]:
    return [get_origin(one) or one for one in get_args(hint)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hubber:delta=1", r"unknown loss 'hubber' \(did you mean 'huber'"),
        ("huber:", 'loss "huber:": "" is no option; write NAME=VALUE'),
        (
            "huber:detla=1",
            r"huber has no option .detla. \(did you mean 'delta'\?\); it has weighted",
        ),
        ("huber:delta=1,delta=2", "delta is given twice"),
        ("huber:delta=much", 'delta has to be a number, but is "much"'),
        ("huber:delta=-1", "Huber's delta has to be a number above 0, but is -1.0"),
        ("huber:weighted=yes", 'weighted has to be true or false, but is "yes"'),
        (
            "sparse_categorical_crossentropy:ignore_index=1.5",
            'ignore_index has to be a whole number, but is "1.5"',
        ),
        (
            "sparse_categorical_crossentropy:class_weights=1,2",
            '"2" is no option; write NAME=VALUE',
        ),
    ],
)
def test_names_with_options_that_are_none(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        named_loss(text)
