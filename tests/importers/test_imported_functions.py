"""Functions that are formulas, reductions, products or moves here: the import compares each.

An import that differs from PyTorch in a value or a gradient raises, so what returns is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flexlegion as fl

Function = Callable[[Tensor], Tensor]


class Each(nn.Module):
    """Functions of the input times a parameter of ones, so that corners are met exactly."""

    def __init__(self, functions: Mapping[str, Function], *shape: int) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(*shape))
        self.functions = functions

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x * self.ones
        return {name: function(y) for name, function in self.functions.items()}


def _unit(x: Tensor) -> Tensor:
    return 0.9 * x.tanh()


def _positive(x: Tensor) -> Tensor:
    return x.sigmoid() + 0.1


ELEMENTS: dict[str, Function] = {
    "round": lambda x: x.round() + x,
    "trunc": lambda x: x.trunc() + x,
    "frac": torch.frac,
    "sgn": lambda x: x.sgn() * x,
    "tan": lambda x: torch.tan(_unit(x)),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "erfc": torch.erfc,
    "asinh": torch.asinh,
    "atanh": lambda x: torch.atanh(_unit(x)),
    "acosh": lambda x: torch.acosh(1.5 + _positive(x)),
    "atan": lambda x: torch.atan(x) + torch.arctan(10 * x) * torch.arcsinh(x),
    "asin": lambda x: torch.asin(_unit(x)) + torch.arcsin(0.3 * _unit(x)),
    "acos": lambda x: torch.acos(_unit(x)) * torch.arccos(-_unit(x)),
    "atan2": lambda x: torch.atan2(x, x.roll(1, -1) - 0.1) + torch.arctan2(x + 0.1, -x),
    "log2": lambda x: torch.log2(_positive(x)),
    "log10": lambda x: torch.log10(_positive(x)),
    "exp2": lambda x: torch.exp2(x) + torch.special.exp2(x),
    "sinc": torch.sinc,
    "degrees": lambda x: torch.rad2deg(x) + torch.deg2rad(+x),
    "logit": lambda x: torch.logit(x.sigmoid()),
    "hypot": lambda x: torch.hypot(x, x + 5),
    "logaddexp": lambda x: torch.logaddexp(x, x * x) + torch.logaddexp2(x, 1 - x),
    "xlogy": lambda x: torch.xlogy(x, _positive(x)),
    "remainder": lambda x: torch.remainder(x, 0.5) + torch.fmod(x, 2) + x % 4,
    "nan_to_num": lambda x: torch.nan_to_num(x, nan=2.0),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "special": torch.special.expit,
}
SEQUENCES: dict[str, Function] = {
    "var_mean": lambda x: torch.cat(torch.var_mean(x, -1, keepdim=True), -1),
    "std_mean": lambda x: torch.cat(torch.std_mean(x, (1, 2), correction=0, keepdim=True), -1),
    "aminmax": lambda x: torch.cat(torch.aminmax(x, dim=-1, keepdim=True), -1),
    "prod": lambda x: x.prod(1) + x.prod(-1, keepdim=True)[:, 0],
    "cdist": lambda x: torch.cdist(x, x[:, :2] + 1) + torch.cdist(x, x[:, :2] - 1, p=1.0),
    "norms": lambda x: x.norm(1, -1) + x.norm(3, -1) + x.norm(float("inf"), -1),
    "nansum": lambda x: torch.nansum(x, -1),
    "any_and_all": lambda x: x * (x > 0).any(-1, True) + x * (x > -1).all(1, True),
    "stacked": lambda x: torch.hstack([x, torch.column_stack([x, x])]),
    "deep": lambda x: torch.dstack([x, 2 * x]),
    "inner": lambda x: torch.inner(x, torch.arange(4.0)) + x @ torch.ones(4),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 1:]),
    "scattered": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
    "slices": lambda x: torch.slice_scatter(x, x[:, :2] * 3, 1, 1, 3),
    "windows": lambda x: x.unfold(1, 3, 2),
    "diagonal": lambda x: x[:, :4].diagonal(1, 1, 2) * x[:, :4].diagonal(-1, 2, 1),
    "gathered": lambda x: x.gather(2, torch.tensor([3, 0]).expand(x.shape[0], 5, 2)),
    "cut_off_diagonal": lambda x: _without_diagonal(x[:, :4]),
    "places": lambda x: x * x.argmax(1, keepdim=True) + x.detach().argmin(-1, keepdim=True),
    "of_each": lambda x: x[torch.arange(x.shape[0]), (x[:, :, 0] > 0).sum(1) - 1],
    "products": lambda x: x.cumprod(1) + x.cumprod(-1).exp(),
    "largest_so_far": lambda x: _so_far(x.cummax(1)) * _so_far(x.relu().cummin(-1)),
    "largest": lambda x: _largest(x, 1, True) * _largest(x, -1, False)[..., None],
    "sorted": lambda x: x.sort(-1).values * x.sort(-1, descending=True).values,
    "in_order": lambda x: x.sort(1).values + x.sort(1).indices * x,
    "places_in_order": lambda x: x * x.argsort(-1, descending=True) + x.argsort(1),
    "top": lambda x: torch.cat([*x.topk(2, -1), x.topk(3, -1, largest=False)[0]], -1),
    "top_rows": lambda x: x.topk(2, 1)[0] * x.topk(2, 1)[1],
    "taken": lambda x: x.gather(1, x.argsort(1)[:, 1:3]) * x.gather(-1, x.argsort(-1))[:, :2],
    "shifted": lambda x: x.gather(2, _BANDS.expand(x.shape[0], 5, 3)),
    "shifted_down": lambda x: x[..., :3].gather(1, _BANDS.expand(x.shape[0], 5, 3)),
    "framed": lambda x: F.pad(x, (1, 2, 0, 1), value=-2.0),
}
IMAGES: dict[str, Function] = {
    "unfold": lambda x: F.unfold(x, (2, 3), padding=1, stride=(1, 2)),
    "fold": lambda x: F.fold(2 * F.unfold(x, 3, padding=1, stride=2), (8, 6), 3, 1, 1, 2),
    "odd_average": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "area": lambda x: F.interpolate(x, size=(5, 6), mode="area"),
    "wider": lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"),
    "corners": lambda x: F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=(0.7, 1.6), mode="nearest"),
    "exact": lambda x: F.interpolate(x, size=(5, 9), mode="nearest-exact"),
    "cubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "local": lambda x: F.local_response_norm(x, 2),
    "line": lambda x: F.interpolate(x.flatten(2), size=31, mode="linear"),
    "volume": lambda x: F.avg_pool3d(x[:, None], (2, 3, 2), 2, 1, count_include_pad=False),
}


# Other numbers in each row.
_BANDS = (torch.arange(5)[:, None] + torch.arange(3)) % 4


def _so_far(both: tuple[Tensor, Tensor]) -> Tensor:
    """Values times their places."""
    values, places = both
    return values * (places + 1)


def _largest(x: Tensor, d: int, kept: bool) -> Tensor:
    """The largest and smallest elements, and where these are."""
    values, places = x.max(d, keepdim=kept)
    least, there = x.min(d, keepdim=kept)
    return values * (places + 1) + least * there


def _without_diagonal(x: Tensor) -> Tensor:
    z = x * 1
    z.diagonal(dim1=1, dim2=2).fill_(0.0)
    return z


@pytest.mark.parametrize(
    ("functions", "shape"),
    [(ELEMENTS, (5, 4)), (SEQUENCES, (5, 4)), (IMAGES, (3, 8, 6))],
    ids=["elements", "sequences", "images"],
)
def test_functions_and_their_gradients_are_pytorchs(
    functions: dict[str, Function], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, *shape)
    if functions is ELEMENTS:  # corners; at 0 and halves, many of these have two branches
        x[:2] = torch.arange(-10, 10).reshape(5, 4) / 4
        x[2:, 0] = torch.tensor([0.5, 1.5, 2.5, -0.5])
    model = fl.from_torch(Each(functions, *shape), (x,))
    assert set(model.origin.output_names) == set(functions)
    assert not [note for note in model.origin.notes if "not checked" in note]


@pytest.mark.parametrize("padding", [None, 1])
def test_rows_by_numbers_that_are_computed(padding: int | None) -> None:
    """Positions among what is no padding, as RoBERTa has them; and ones among zeros."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(9, 4), nn.Embedding(8, 4, padding)
            nn.init.normal_(self.places.weight)

        def forward(self, tokens: Tensor) -> Tensor:
            there = tokens.ne(1).int()
            places = (torch.cumsum(there, 1).type_as(there) * there).long() + 1
            ones = F.one_hot(tokens, 9)[..., :4].float()
            return self.words(tokens) + self.places(places) * ones

    tokens = torch.tensor([[2, 3, 4, 1, 1], [5, 1, 1, 1, 1], [2, 0, 2, 8, 2]])
    model = fl.from_torch(Counted(), (tokens,))
    types = {op.name: op.kind.type for op in model.graph.operators}
    assert types["words"] == "embedding"
    assert types["places"] == ("dense" if padding is None else "given_weights")
    assert not model.origin.notes


def test_layers_that_are_skipped_at_a_rate_of_zero_are_there() -> None:
    class Skipping(nn.Module):
        """A layer that training skips at a rate, as layerdrop does."""

        def __init__(self, rate: float) -> None:
            super().__init__()
            self.layer, self.rate = nn.Linear(4, 4), rate

        def forward(self, x: Tensor) -> Tensor:
            number = torch.rand([])
            return x * 2 if self.training and number < self.rate else self.layer(x)

    x = torch.randn(4, 4)
    model = fl.from_torch(Skipping(0.0), (x,))
    assert [op.kind.type for op in model.graph.operators] == ["dense"]
    with pytest.raises(fl.UserError, match=r"Skipping in train mode: it skips layers at random"):
        fl.from_torch(Skipping(0.5), (x,))


def test_a_constant_for_the_windows_of_each_sample() -> None:
    class Windows(nn.Module):
        """Windows merged with samples, as Swin has them, and what is added to each."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            windows = self.layer(x).flatten(0, 1)
            added = torch.arange(2.0).view(2, 1, 1).repeat(x.shape[0], 1, 3)
            return (windows + added).view(-1, 2, 4, 3)

    model = fl.from_torch(Windows(), (torch.randn(4, 2, 4, 3),))
    assert model.outputs[0].shape == (4, 2, 4, 3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.fmod(x, 0.3), "'fmod' (Each) is not known"),
        (lambda x: x.round(decimals=1), "'round' (Each) is not known"),
        (lambda x: x * x.argmax(), "'argmax' and 'argmin' over all dimensions join samples"),
        (lambda x: torch.slice_scatter(x, x[:, :2], 1, 0, 4, 2), "every other element"),
        (lambda x: x.prod(), "'prod' joins samples"),
        (lambda x: x * float("nan"), "'mul' computes with a constant that is no number (NaN)"),
        (lambda x: x.unfold(0, 1, 1)[..., 0], "it cuts the samples"),
        (lambda x: F.adaptive_max_pool2d(x, 3), "[5, 4] positions to [3, 3]"),
    ],
)
def test_what_is_not_known_is_named(function: Function, message: str) -> None:
    with pytest.raises(fl.UserError, match=re.escape(message)):
        fl.from_torch(Each({"it": function}, 5, 4), (torch.randn(4, 5, 4),))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.sort(0).values, "'sort' joins samples"),
        (lambda x: x.max(0).indices * x, "joins samples"),
        (lambda x: x.gather(1, x.argsort(1)[:, :1, :2]), "numbers that are computed, of a part"),
        (lambda x: F.pad(x, (0, 2100)).topk(2000)[0], "2,104 elements with 2,104; 4,194,304"),
    ],
)
def test_what_cannot_be_picked_is_named(function: Function, message: str) -> None:
    with pytest.raises(fl.UserError, match=message):
        fl.from_torch(Each({"it": function}, 5, 4), (torch.randn(4, 5, 4),))
