"""What a search returns is taken by `compile`, with what it knows of its network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import legate_environment, run_checked

MACHINE = {
    "schema_version": 1,
    "description": "",
    "nodes": 1,
    "device_types": {
        "core": {
            "kind": "cpu",
            "memory_bytes": 4e9,
            "peak_flops": {"float32": 50e9},
            "memory_bandwidth": 10e9,
        }
    },
    "link_types": {},
    "node": {"devices": [{"type": "core", "count": 2, "memory": "ram"}]},
}
SCRIPT = """
import numpy as np

import flexlegion as fl
from flexlegion.data import load_digits

digits = load_digits((8, 8))
net = fl.Model(batch_size=64, seed=0)
x = net.input((8, 8, 1))
x = net.conv2d(x, 16, kernel=3, activation="relu")
net.softmax(net.dense(net.flatten(x), 10))
net.compile(fl.Adam(lr=3e-3), metrics=["accuracy"], strategy="data")
history = net.fit(digits.x, digits.y, epochs=5, progress=False)
assert history.epochs[-1]["accuracy"] > 0.9, history.epochs
found = fl.search(net, fl.load_machine("machine.json"), proposals=20, chains=1)
net.compile(strategy=found)
assert dict(net.strategy) == dict(found.strategy)
assert net.strategy.fingerprint is not None
print("strategy in force")
"""


@pytest.mark.legion
def test_it_is_in_force(tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    (tmp_path / "script.py").write_text(SCRIPT)
    line = f"cd {tmp_path} && legate --cpus 2 --gpus 0 --sysmem 2000 script.py"
    printed = run_checked(["bash", "-c", line], environment=legate_environment(), timeout=300)
    assert "strategy in force" in printed.stdout
