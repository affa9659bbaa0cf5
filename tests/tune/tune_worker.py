"""A user's script: tune on data of one's own, then train with what came of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import own_net

import flexlegion as fl
from flexlegion.data.sources import BatchSource
from flexlegion.training.binding import Binding

rng = np.random.default_rng(0)
samples = 64
x = {
    "words": rng.integers(50, size=(samples, 6), dtype=np.int32),
    "numbers": rng.standard_normal((samples, 3), np.float32),
}
y = x["numbers"].sum(1, keepdims=True)

model = own_net.model()
result = fl.tune(
    model, x, y, optimizer="adam", budget="500ms", max_rounds=8, profile_db=sys.argv[1]
)
print(result.to_json())
print(result)
model.compile("adam", "mean_squared_error", strategy=result.strategy)
history = model.fit(x, y, epochs=20, progress=False)
assert history.epochs[-1]["loss"] < history.epochs[0]["loss"]
assert dict(model.strategy) == dict(result.strategy)

# Of what is read while training runs, the beginning is enough to try strategies on.


class Source(BatchSource):
    """The same samples, one by one."""

    name = "source"
    shapes = ((6,), (3,), (1,))

    def __len__(self) -> int:
        return samples

    def read(self, row: int, epoch: int, out: Sequence[npt.NDArray[Any]]) -> None:
        assert epoch == 0
        for array, values in zip(out, (x["words"], x["numbers"], y), strict=True):
            array[...] = values[row]


loader = [((x["words"][i : i + 9], x["numbers"][i : i + 9]), y[i : i + 9]) for i in (0, 9, 18)]
for data, rows in ((loader, 18), (Source(), 10)):
    first = Binding(model.program, model.batch_size).first(data, None, 10)
    for tensor, array in first.items():
        assert np.array_equal(array, (x | {"labels": y})[tensor.name][:rows]), tensor.name

message = ""
try:
    fl.tune(model, x, None, budget="500ms", profile_db=sys.argv[1])
except fl.UserError as e:
    message = str(e)
assert "there are no labels; give them as y" in message, message
