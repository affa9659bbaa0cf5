"""The zoo's networks for click-through rates in PyTorch; the sizes are those of flexlegion.zoo."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from pytorch.weights import Link, Twin, links_of, table_of


class WideDeep(Twin):
    """A linear model and a network of dense layers over numbers and embedded categories."""

    def __init__(
        self,
        *,
        numbers: int,
        fields: int,
        rows: int,
        tables: int,
        wide_fields: int | None,
        wide_rows: int | None,
        embedding: int,
        layers: int,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.each = fields // tables
        wide_rows = rows if wide_rows is None else wide_rows
        wide_tables = tables
        self.wide_each = self.each
        if wide_fields is not None:
            wide_tables = 1 if tables == 1 else wide_fields
            self.wide_each = wide_fields // wide_tables
        self.wide = nn.ModuleList(table_of(wide_rows, 1) for _ in range(wide_tables))
        self.deep = nn.ModuleList(table_of(rows, embedding) for _ in range(tables))
        self.linear = nn.Linear(numbers, 1, bias=False)
        widths = [fields * embedding + numbers, *[hidden] * layers]
        self.dense = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.output = nn.Linear(hidden, 1)
        self.links = [
            *(
                link
                for part, embeds in (("wide", self.wide), ("deep", self.deep))
                for i, table in enumerate(embeds, 1)
                for link in links_of(f"{part}.embed{i}", table)
            ),
            *links_of("wide.numbers", self.linear),
            *(link for i, x in enumerate(self.dense, 1) for link in links_of(f"deep{i}", x)),
            *links_of("deep.output", self.output),
        ]

    def forward(
        self,
        numbers: torch.Tensor,
        categories: torch.Tensor,
        crosses: torch.Tensor | None = None,
    ) -> torch.Tensor:
        of_wide = categories if crosses is None else crosses
        wide = _looked_up(self.wide, torch.split(of_wide, self.wide_each, 1))
        x = _looked_up(self.deep, torch.split(categories, self.each, 1))
        x = torch.cat([x.flatten(1), numbers], 1)
        for layer in self.dense:
            x = self.dropout(F.relu(layer(x)))
        return wide.sum(1) + self.linear(numbers) + self.output(x)  # type: ignore[no-any-return]


class DLRM(Twin):
    """Vectors of numbers and categories, products of their pairs, and dense layers."""

    def __init__(
        self,
        *,
        numbers: int,
        fields: int,
        rows: int,
        tables: tuple[int, ...] | None,
        bottom: tuple[int, ...],
        top: tuple[int, ...],
    ) -> None:
        super().__init__()
        counts = (rows,) * fields if tables is None else tables
        self.tables = nn.ModuleList(table_of(count, bottom[-1]) for count in counts)
        pairs = fields * (fields + 1) // 2
        widths = (pairs + bottom[-1], *top)
        self.bottom, self.top = (
            nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(these))
            for these in ((numbers, *bottom), widths)
        )
        self.output = nn.Linear(widths[-1], 1)
        self.row, self.column = torch.tril_indices(fields + 1, fields + 1, -1).unbind()
        # What flexlegion picks the products by.
        self.numbers, self.order, self.starts = (
            nn.Parameter(torch.empty(shape), requires_grad=False)
            for shape in ((1, pairs), (1, pairs), (1, (fields + 1) ** 2 + 1))
        )
        self.links = [
            *(Link(f"pairs.{part}", self, part) for part in ("numbers", "order", "starts")),
            *(link for i, x in enumerate(self.tables, 1) for link in links_of(f"embed{i}", x)),
            *(
                link
                for part, layers in (("bottom", self.bottom), ("top", self.top))
                for i, layer in enumerate(layers, 1)
                for link in links_of(f"{part}{i}", layer)
            ),
            *links_of("output", self.output),
        ]

    def forward(self, x: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        for layer in self.bottom:
            x = F.relu(layer(x))
        vectors = torch.cat([x[:, None], _looked_up(self.tables, torch.split(categories, 1, 1))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        x = torch.cat([x, products[:, self.row, self.column]], 1)
        for layer in self.top:
            x = F.relu(layer(x))
        return self.output(x)  # type: ignore[no-any-return]


def _looked_up(tables: nn.ModuleList, fields: Iterable[torch.Tensor]) -> torch.Tensor:
    """Each table's rows of its own fields, (n, fields, columns)."""
    return torch.cat([table(part) for table, part in zip(tables, fields, strict=True)], 1)
