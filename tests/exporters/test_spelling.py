"""Names from files are data in exported programs: literals, comments, identifiers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import flexlegion as fl
from flexlegion.base.quoting import printable
from flexlegion.exporters.spelling import comment, docstring, identifiers, literal

# What an attacker, or chance, puts into names.
HOSTILE = [
    '"+__import__("os").mkdir(RAN)+"',
    "'+__import__('os').mkdir(RAN)+'",
    '"""\n__import__("os").mkdir(RAN)\n"""',
    "x\n    __import__('os').mkdir(RAN)  #",
    "x\r__import__('os').mkdir(RAN)",
    "\\",
    'end with a quote"',
    "{__import__('os').mkdir(RAN)}",
    "</script><script>alert(1)</script>&amp;<b>",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eright to left\u2028line\u0085next",
    "\U0001f600 ümlaut",
    "$(touch ran) `touch ran`; touch ran",
]
SHOWN = [printable(name) for name in HOSTILE]  # as layers can be called
NAMES = ["t", "w", "key", "run", "class", "x.y", "x_y", "1st", "", "forward", "mesh", "step"]
TEXTS = st.text(st.characters(exclude_categories=()), max_size=30)


@given(TEXTS)
@example("'\"\\'\\\"")
def test_literals(text: str) -> None:
    """Each is the value that it is made of, on one line of ASCII."""
    for value in (text, (text,), [text, (text, 1.5)], (), None, 1e300, float("-inf")):
        spelt = literal(value)
        assert eval(spelt) == value  # what literals are for
        assert spelt.isascii()
        assert "\n" not in spelt


@given(TEXTS)
@example('"""')
@example("\\")
@example('\\"')
def test_comments_and_docstrings(text: str) -> None:
    """Neither ends early."""
    tree = ast.parse(f"{docstring(text)}\n# {comment(text)}\nx = 1\n")
    assert [type(node) for node in tree.body] == [ast.Expr, ast.Assign]
    assert isinstance(ast.literal_eval(ast.unparse(tree.body[0])), str)


@given(st.lists(TEXTS | st.sampled_from(NAMES), unique=True))
def test_identifiers(names: list[str]) -> None:
    """All are arguments' names, none twice, none that is taken."""
    given_ = identifiers(names, {"t", "w", "key"})
    assert list(given_) == names
    text = f"def f({', '.join(given_.values())}): pass"
    assert len(compile(text, "f", "exec").co_consts[0].co_varnames) == len(names)
    assert not {"t", "w", "key"}.intersection(given_.values())


def model() -> fl.Model:
    """A network in which every name is hostile."""
    net = fl.Model(4)
    net.loss = "mean_squared_error"
    inputs = [net.input((6,), name=name) for name in [*SHOWN[:6], *NAMES] if name]
    x = net.add(inputs, name="sum")
    for name in SHOWN:
        x = net.dense(x, 6, name=f"{name} ")
    for name in ("names", "training", "modules"):
        x = net.add([x, net.parameter((6,), name=name)])
    return net


RUN = """
import json, sys
RAN = sys.argv[1]
import builtins
builtins.RAN = RAN
namespace = {"__name__": "plan"}
with open(sys.argv[2], encoding="utf-8") as file:
    text = file.read()
with open(sys.argv[3], encoding="utf-8") as file:
    shapes = json.load(file)
exec(compile(text, "plan", "exec"), namespace)
import numpy as np
values = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
inputs = [np.ones((4, 6), np.float32)] * (namespace["forward"].__code__.co_argcount - 1)
if "SOURCES" in namespace:
    import os, torch
    import torch.distributed as dist
    dist.init_process_group("gloo", f"file://{sys.argv[2]}.meeting", rank=0, world_size=1)
    weights = namespace["Weights"](values)
    results = namespace["forward"](weights, *map(torch.from_numpy, inputs))
    loss = namespace["loss"](weights, results, torch.zeros(4, 6))
    print(float(loss))
    dist.destroy_process_group()
else:
    weights = namespace["distributed"](values)
    results = namespace["forward"](weights, *inputs[:-1])
    print(float(namespace["loss"](weights, results, np.zeros((4, 6), np.float32))))
"""


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_hostile_names(to: str, tmp_path: Path) -> None:
    """Programs of a network of hostile names run, and nothing else does."""
    exported = fl.export(model(), "p100x1", "data", to, loss="mean_squared_error")
    (tmp_path / "plan.py").write_text(exported.text, encoding="utf-8")
    shapes = {w.name: w.shape for w in exported.setting.network.graph.weights}
    (tmp_path / "shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    arguments = [str(tmp_path / name) for name in ("ran", "plan.py", "shapes.json")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={"PATH": "", "JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    x = float(len(SHOWN[:6]) + len([name for name in NAMES if name]))
    for _ in SHOWN:
        x = 0.1 * 6 * x + 0.1
    assert float(done.stdout) == pytest.approx((x + 0.3) ** 2, rel=1e-4)
    assert not (tmp_path / "ran").exists()
    assert set(tmp_path.iterdir()) <= {Path(a) for a in arguments} | {tmp_path / "plan.py.meeting"}


@pytest.mark.parametrize("name", ["a\0b", "\ud83d", "a\nb", "\x1b[2J"])
def test_names_that_cannot_be_printed(name: str) -> None:
    """Some would be lines of their own, some the native libraries would cut, or cannot take."""
    with pytest.raises(fl.UserError, match="cannot be printed"):
        fl.Model(4).input((6,), name=name)
