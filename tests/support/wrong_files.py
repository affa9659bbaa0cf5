"""A folder of files that are wrong in many ways, for mistakes of a command's users."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion.machine.files import PLATFORMS

GARBAGE = bytes(range(256)) * 8
SMALL = """import flexlegion as fl


def model(batch_size: int = 8):
    m = fl.Model(batch_size)
    x = m.dense(m.input((4,), name="x"), 8, name="hidden")
    m.softmax(m.dense(x, 3, name="out"), name="soft")
    return m
"""
TEXTS = {
    "small.py": SMALL,
    "syntax.py": "def model(:\n",
    "raises.py": "def model():\n    raise KeyError('no')\n",
    "none.py": "def model():\n    pass\n",
    "number.py": "def model():\n    return 3\n",
    "nofunction.py": "x = 1\n",
    "two.py": "def a(): pass\ndef b(): pass\n",
    "needs.py": "def model(width): pass\n",
    "exits.py": "import sys; sys.exit(0)\n",
    "tops.py": "1/0\n",
    "imports.py": "import tensorflow_not_here\n",
    "recursion.py": "def model():\n    return model()\n",
    "system.py": "def model():\n    raise SystemError('x')\n",
    "nolayers.py": "import flexlegion as fl\ndef model(batch_size: int = 4):\n"
    "    return fl.Model(batch_size)\n",
    "wrongcall.py": "import flexlegion as fl\ndef model(batch_size: int = 4):\n"
    "    m = fl.Model(batch_size)\n    m.dense(m.input((3,)))\n    return m\n",
    "empty.py": "",
    "empty.json": "",
    "empty.csv": "",
    "empty.npz": "",
    "list.json": "[]",
    "null.json": "null",
    "cut.json": '{"schema_version": 2, "oper',
    "there.json": "{}",
}


def write_wrong_files(folder: Path) -> None:
    """Write them."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    for ending in ("json", "py", "onnx", "pt2", "npz", "h5", "csv", "tsv", "safetensors"):
        (folder / f"g.{ending}").write_bytes(GARBAGE)
    (folder / "latin.csv").write_bytes("a,b\n\xe9,1\n".encode("latin-1"))
    for name in ("folder", "images/a", "noimages/a"):
        (folder / name).mkdir(parents=True)
    (folder / "images/a/x.png").write_bytes(GARBAGE)
    (folder / "noimages/a/notes.txt").write_text("x")
    for ending in ("", ".py", ".json", ".onnx", ".pt2", ".npz"):
        os.mkfifo(folder / f"pipe{ending}")
        (folder / f"zero{ending}").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    _write_arrays(folder)
    _write_strategies(folder)
    _write_machines(folder)


def _write_arrays(folder: Path) -> None:
    x, y = np.zeros((6, 4), "f"), np.zeros(6, int)
    np.savez(folder / "short.npz", x=x, y=y[:5])
    np.savez(folder / "xonly.npz", x=x)
    np.savez(folder / "chw.npz", x=np.zeros((8, 3, 32, 32), "f"), y=np.zeros(8, int))
    np.savez(folder / "objects.npz", x=np.array([{}] * 6, object), y=y)
    np.savez(folder / "none.npz", x=x[:0], y=y[:0])
    np.save(folder / "x.npy", np.zeros((6, 28, 28), "f"))


def _write_strategies(folder: Path) -> None:
    whole = {"degrees": [1, 1], "devices": ["gpu:0"]}

    def write(name: str, change: Callable[[dict[str, Any]], object]) -> None:
        operators = {name: dict(whole) for name in ("hidden", "out", "soft")}
        operators["loss"] = {"degrees": [1], "devices": ["gpu:0"]}
        document = {"schema_version": 2, "operators": operators}
        change(document)
        (folder / f"s_{name}.json").write_text(json.dumps(document))

    write("text", lambda d: d["operators"].update(hidden="data"))
    write("negative", lambda d: d["operators"]["hidden"].update(degrees=[-1, 1]))
    write("device", lambda d: d["operators"]["hidden"].update(devices=["gpu:9"]))
    write("key", lambda d: d.update(foo=1))
    write("found", lambda d: d.update(found=3))
    write("granularity", lambda d: d.update(granularity={"x": 1}))


def _write_machines(folder: Path) -> None:
    text = (PLATFORMS / "p100.json").read_text()

    def write(name: str, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
        document = json.loads(text) | {"nodes": 1}
        change(document, document["device_types"]["P100"])
        (folder / f"m_{name}.json").write_text(json.dumps(document))

    write("negative", lambda _, device: device.update(memory_bandwidth=-1))
    write("text", lambda _, device: device.update(memory_bandwidth="fast"))
    write("missing", lambda _, device: device.pop("memory_bandwidth"))
    write("nan", lambda _, device: device.update(memory_bandwidth=float("nan")))
    write("nodes", lambda d, _: d.update(nodes=0))
    write("key", lambda d, _: d.update(colour="red"))
    write("node", lambda d, _: d.update(node=[]))
