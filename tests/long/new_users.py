"""Three users' ways from a fresh clone on a bare system, page by page; and how long it takes.

    python tests/long/new_users.py [--ways student,engineer,extender] [--folder FOLDER]
        [--json OUT]

A Debian system with nothing but git is made (tests/support/bare_system.py; as root, with
debootstrap). Somebody clones this checkout there as it is committed, and follows README up to the
first trained network, by the clock. Then each user goes on in a layer of their own, through the
pages below, block by block (tests/docs/pages.py), with nothing installed but what these pages
install. That includes the blocks that no other test runs, as they install packages. FOLDER keeps
the system for another time, and what was printed: some 15 GB. An hour on two cores. Exits with 1 if
anything failed, and with 2 where no such system can be made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import bare_system
from pages import ROOT, Block, blocks, follow

HERE = "tests/long/new_users.py"
ALSO = (HERE, "tests/docs/test_gallery.py")
CLONE = "/root/flexlegion"
WAYS = {
    # Models of PyTorch and 32 A100: in, searched, looked at, and out again on processes of gloo.
    "student": ["README", "importing", "searching", "report", "exporting", "gallery"],
    # Processors of a cluster: trained, tuned, on ranks, resumed, measured.
    "engineer": ["start", "training", "data", "tuning", "checkpoints", "ranks", "machines"],
    # Own strategies, searches, machines, operators, passes.
    "extender": ["your-own-network", "strategies", "adding-an-operator", "adding-a-pass"],
}
LONGEST = 1800  # seconds for a line
OWN_OPERATOR = """
import numpy as np
data = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
net.compile(fl.SGD(0.1), "mean_squared_error", strategy="data", output=y)
assert np.allclose(net.predict(data), np.cumsum(data, -1) / 2, rtol=1e-5, atol=1e-6)
"""
METHOD = """
import flexlegion as fl
net = fl.Model(batch_size=8)
y = net.cumulative_sum(net.input((5,)), 0.5)
"""


@dataclass
class User:
    """Somebody at a shell of a bare system, and what they met."""

    name: str
    shell_: bare_system.Shell
    log: Path
    folder: str = CLONE
    done: int = 0
    wrongs: list[str] = field(default_factory=list)

    def line(self, where: str, line: str) -> str:
        """Type it in the present folder; what it prints."""
        started = time.monotonic()
        status, said = self.shell_.run(f"cd {self.folder} && {line}", LONGEST)
        took = time.monotonic() - started
        with self.log.open("a") as log:
            log.write(f"=== {where}, {took:.1f} s, status {status}: {line}\n{said}\n")
        self.done += 1
        if status != 0:
            self.wrong(f"{where}: status {status}: {line}\n{said[-1500:]}")
        return said

    def shell(self, block: Block, line: str) -> str:
        """Type a line of a page: what installs in the clone, all else in the page's folder."""
        kept = self.folder
        if block.marked("run by:") == HERE:
            self.folder = CLONE
        said = self.line(block.where, line)
        self.folder = kept
        return said

    def write(self, name: str, text: str) -> None:
        """Save a file in the present folder."""
        self.shell_.write(f"{self.folder}/{name}", text)

    def wrong(self, message: str) -> None:
        """Note what failed; the user goes on."""
        self.wrongs.append(message)
        print(f"{self.name}: {message}", flush=True)

    def read(self, page: str) -> None:
        """Follow a page in a folder of its own."""
        path = ROOT / ("README.md" if page == "README" else f"docs/{page}.md")
        self.folder = f"/root/{page}"
        started, before = time.monotonic(), len(self.wrongs)
        self.shell_.run(f"mkdir -p {self.folder}; export ROOT={CLONE}")
        follow(path, self, ALSO)
        took, failed = time.monotonic() - started, len(self.wrongs) - before
        print(f"{self.name}: {path.name}: {took:.0f} s, {failed} failed", flush=True)


def quickstart(user: User) -> dict[str, float]:
    """README's first block in the clone: seconds by the clock and of processors."""
    first = next(block for block in blocks(ROOT / "README.md") if block.marked("run by:") == HERE)
    found, started = {}, time.monotonic()
    for line in first.commands():
        said = user.line(first.where, f"{{ time {line}; }}" if "quickstart" in line else line)
        for name, minutes, seconds in re.findall(r"^(real|user|sys)\s+(\d+)m([\d.]+)s", said, re.M):
            found[name] = 60 * int(minutes) + float(seconds)
    return found | {"all": time.monotonic() - started}


def own_operator(user: User) -> None:
    """docs/adding-an-operator.md: outside of the package, then inside."""
    page = blocks(ROOT / "docs" / "adding-an-operator.md")
    kernel, cuda = (block for block in page if block.kind == "cpp")
    build = next(block for block in page if block.kind == "sh" and "g++" in block.text)
    operator, method, network, *_ = (block for block in page if block.kind == "python")
    user.folder = "/root/own"
    user.shell_.run(f"mkdir -p {user.folder} && ln -s {CLONE}/native {user.folder}/native")
    user.write("cumulative_sum.py", operator.text)
    user.write("cumulative_sum.cc", kernel.text)
    user.line(build.where, build.text.strip().replace("\n", " && "))
    user.write("script.py", network.text + OWN_OPERATOR)
    user.line(network.where, "python script.py")
    user.folder = CLONE
    user.write("flexlegion/ops/cumulative_sum.py", operator.text)
    user.write("native/ops/cumulative_sum.cc", kernel.text)
    user.write("native/gpu/cumulative_sum.cu", cuda.text)
    file = "flexlegion/layers/normalization.py"  # a mixin's last method is the file's end
    user.write("method.txt", "\n" + method.text)
    where = "^from flexlegion.ops.normalization"
    new = "from flexlegion.ops.cumulative_sum import CumulativeSum\\n&"
    user.line(method.where, f"sed -i 's/{where}/{new}/' {file} && cat method.txt >> {file}")
    user.line("own operator", "bash scripts/setup.sh")
    user.write("method.py", METHOD + OWN_OPERATOR)
    user.line(method.where, "python method.py")
    user.line("own operator", "git stash -q -u")


def own_pass(user: User) -> None:
    """docs/adding-a-pass.md, with its test, which needs what CONTRIBUTING installs."""
    page = blocks(ROOT / "docs" / "adding-a-pass.md")
    patch = next(block for block in page if block.kind == "sh")
    setup = next(block for block in blocks(ROOT / "CONTRIBUTING.md") if "setup.sh" in block.text)
    for line in [*setup.commands()[:3], *patch.commands(), "bash scripts/setup.sh dev"]:
        user.line(patch.where, line)
    user.line(patch.where, "python -m pytest -q tests/runtime/test_count.py")


def follow_way(name: str, user: User) -> None:
    """All of a user's pages."""
    for page in WAYS[name]:
        if page == "adding-an-operator":
            own_operator(user)
        elif page == "adding-a-pass":
            own_pass(user)
        else:
            user.read(page)


def committed(folder: Path) -> Path:
    """A clone of this checkout, as a new user's."""
    clone = folder / "clone"
    if not clone.exists():
        subprocess.run(["git", "clone", "-q", "--no-local", str(ROOT), str(clone)], check=True)
    return clone


def main() -> int:
    """Make the system, and follow the ways."""
    arguments = argparse.ArgumentParser(description="Three users' ways on a bare system.")
    arguments.add_argument("--ways", default=",".join(WAYS))
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    ways = given.ways.split(",")
    reason = bare_system.why_not()
    if unknown := set(ways) - set(WAYS):
        reason = f"there is no way {', '.join(sorted(unknown))}; the ways are {', '.join(WAYS)}"
    if reason:
        print(f"new_users.py: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        return walk(given.folder or Path(temporary), ways, given.json)


def walk(folder: Path, ways: list[str], out: Path | None) -> int:
    """The first block, then the ways, each on a layer above."""
    folder.mkdir(parents=True, exist_ok=True)
    bare_system.make(folder / "base")
    first = bare_system.Layer((folder / "base",), folder / "first")
    results: dict[str, object] = {"cores": os.cpu_count()}
    wrongs = []
    installed = first.own / "done"
    if not installed.exists():
        first.put(committed(folder), CLONE)
        results["load before"] = os.getloadavg()
        with bare_system.Shell(first) as shell:
            user = User("first", shell, folder / "first.log")
            results["quickstart"] = quickstart(user)
            wrongs += user.wrongs
        results["load after"] = os.getloadavg()
        print(json.dumps(results), flush=True)
        if wrongs:
            return 1
        installed.touch()
    for name in ways:
        layer = first.above(folder / name)
        started = time.monotonic()
        with bare_system.Shell(layer) as shell:
            user = User(name, shell, folder / f"{name}.log")
            user.line("README.md", "source .venv/bin/activate")
            follow_way(name, user)
        wrongs += user.wrongs
        took = round(time.monotonic() - started)
        results[name] = {"lines": user.done, "failed": len(user.wrongs), "seconds": took}
        print(f"{name}: {user.done} lines, {len(user.wrongs)} failed, {took} s", flush=True)
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")
    return int(bool(wrongs))


if __name__ == "__main__":
    sys.exit(main())
