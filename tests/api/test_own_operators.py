"""An operator from outside the package, as docs/adding-an-operator.md has it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from launch import ROOT, legate_environment, run_checked

BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$",
    (ROOT / "docs" / "adding-an-operator.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
OPERATOR, *_, NETWORK, _ = (text for kind, text in BLOCKS if kind == "python")
KERNEL = next(text for kind, text in BLOCKS if kind == "cpp")
BUILD = next(text for kind, text in BLOCKS if kind == "sh")
CHECK = """
import numpy as np
data = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
z = net.dense(y, 3)
net.compile(fl.SGD(0.1), "mean_squared_error", strategy="random:1", output=y)
assert np.allclose(net.predict(data), np.cumsum(data, -1) / 2, rtol=1e-5, atol=1e-6)
net.compile(fl.SGD(0.1), "mean_squared_error", strategy="random:2")
before = net.evaluate(data, data[:, :3])["loss"]
net.fit(data, data[:, :3], epochs=20, progress=False)
assert net.evaluate(data, data[:, :3])["loss"] < before / 2
print("trained")
"""


def run(folder: Path, line: str, status: int = 0) -> str:
    """What a line prints in a shell there, errors included."""
    environment = legate_environment()
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    command = ["bash", "-c", f"cd {folder} && {line} 2>&1"]
    return run_checked(command, environment=environment, timeout=300, status=status).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the operator, and its library of kernels."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "cumulative_sum.py").write_text(OPERATOR)
    (folder / "cumulative_sum.cc").write_text(KERNEL)
    (folder / "native").symlink_to(ROOT / "native")
    run(folder, BUILD.replace("\n", " && ", 1))
    return folder


@pytest.mark.legion
def test_it_trains(folder: Path) -> None:
    (folder / "script.py").write_text(NETWORK + CHECK)
    assert "trained" in run(folder, "legate --cpus 2 --gpus 0 script.py")


def test_it_is_searched_without_a_kernel(folder: Path) -> None:
    lines = [line for line in NETWORK.splitlines() if "load_kernels" not in line]
    lines += [
        'found = fl.search(net, "p100x4", proposals=20, loss="mean_squared_error")',
        'print("fits", found.fits)',
    ]
    (folder / "search.py").write_text("\n".join(lines))
    assert "fits True" in run(folder, "python search.py")


@pytest.mark.legion
@pytest.mark.parametrize(
    ("library", "text"),
    [
        ("none.so", "UserError: none.so: no such library of kernels"),
        ("cumulative_sum.cc", "cumulative_sum.cc: no shared library; give the .so that a"),
        ("libtwice.so", "UserError: two kernels are registered under the name 'cumulative_sum'"),
    ],
)
def test_mistakes(folder: Path, library: str, text: str) -> None:
    run(folder, "cp libcumulative_sum.so libtwice.so")
    (folder / "wrong.py").write_text(f'{NETWORK}fl.load_kernels("{library}")\n{CHECK}')
    assert text in run(folder, "legate --cpus 1 --gpus 0 wrong.py", status=1)
