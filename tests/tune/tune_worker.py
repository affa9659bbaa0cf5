"""A user's script: tune on data of one's own, then train with what came of it."""

from __future__ import annotations

import sys

import numpy as np
import own_net

import flexlegion as fl

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

message = ""
try:
    fl.tune(model, x, None, budget="500ms", profile_db=sys.argv[1])
except fl.UserError as e:
    message = str(e)
assert "there are no labels; give them as y" in message, message
