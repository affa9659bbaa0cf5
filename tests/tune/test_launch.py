"""Where commands that train start legate: what they ask it for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from flexlegion.base.errors import UserError
from flexlegion.cli import launch
from flexlegion.process import ranks, together


class Started(Exception):
    """In place of legate."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of four cores; its GPUs are entries of the folder."""

    def start(command: list[str], environment: dict[str, str], ranks: int) -> None:
        assert ranks == 1
        raise Started(command, environment)

    monkeypatch.delenv("LEGATE_CONFIG", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(launch, "stay_with", start)
    monkeypatch.setattr(ranks, "_GPUS", tmp_path)
    for name in ("RANKS", "RANKS_EACH"):
        monkeypatch.delenv(getattr(together, name), raising=False)
    return tmp_path


def parsed(*options: str) -> Any:
    """The arguments of ``train --epochs 3`` with these options."""
    parser = argparse.ArgumentParser()
    launch.add_launch_options(parser)
    args: Any = parser.parse_args(options)
    args.arguments = ["train", "--epochs", "3"]
    return args


def started(*options: str) -> tuple[list[str], dict[str, str]]:
    """What legate is started with by ``train --epochs 3``: its options, and the environment."""
    args = parsed(*options)
    with pytest.raises(Started) as caught:
        launch.go_under_legate(args)
    command, environment = caught.value.args
    assert Path(command[0]).name == "legate"
    assert Path(command[-4]).parts[-2:] == ("flexlegion", "__main__.py")
    assert command[-3:] == ["train", "--epochs", "3"]
    assert command[1:5] == ["--nodes", "1", "--ranks-per-node", "1"]
    return command[5:-4], environment


def chosen(*options: str) -> list[str]:
    """What Legion is started with by ``train`` with these options: what was asked for, the rest."""
    asked, _ = started(*options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", os.environ | {"LEGATE_CONFIG": " ".join(asked)})
        ranks.prepare()
        return os.environ["LEGATE_CONFIG"].split()


def test_processors(machine: Path) -> None:
    """One thread runs Legion, unless two cores have nothing else to do."""
    assert started()[0] == []
    assert chosen() == ["--gpus", "0", "--cpus", "4", "--utility", "1"]
    assert chosen("--cpus", "2") == ["--cpus", "2", "--gpus", "0"]
    assert chosen("--cpus", "3") == ["--cpus", "3", "--gpus", "0", "--utility", "1"]
    assert chosen("--cpus", "2", "--legate", "--sysmem 400 --fbmem 5") == (
        ["--cpus", "2", "--sysmem", "400", "--fbmem", "5", "--gpus", "0"]
    )
    assert chosen("--legate", "--utility 3") == ["--utility", "3", "--gpus", "0", "--cpus", "4"]
    assert chosen("--legate", "--omps 2 --ompthreads 1") == (
        ["--omps", "2", "--ompthreads", "1", "--gpus", "0", "--cpus", "1"]
    )
    for number in range(3):
        (machine / f"0000:0{number}").mkdir()
    assert chosen() == ["--gpus", "3", "--cpus", "1", "--utility", "1"]
    assert chosen("--gpus", "0") == ["--gpus", "0", "--cpus", "4", "--utility", "1"]
    assert chosen("--gpus", "1", "--cpus", "0") == ["--cpus", "0", "--gpus", "1"]


def test_no_processor(machine: Path) -> None:
    for options, said in (
        (["--cpus", "0"], "--cpus 0 leaves"),
        (["--cpus", "0", "--gpus", "0"], "--cpus 0 and --gpus 0 leave"),
        (["--gpus", "-1"], "--gpus -1 leaves"),
    ):
        with pytest.raises(UserError, match=f"^{said} no processor to run on$"):
            started(*options)
    assert launch._asked(0, None, alone=False) == ["--cpus", "0"]  # GPUs are elsewhere
    (machine / "0000:00").mkdir()
    assert started("--cpus", "0")[0] == ["--cpus", "0"]


def test_threads(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of several threads: fewer of them; and a thread that runs Legion, if none is left.

    What they are is handed on on the command line; legate knows nothing of it.
    """
    assert not list(machine.iterdir())
    monkeypatch.setattr(ranks._Chosen, "threads", None)
    alone = ["--utility", "1"]
    assert started("--threads", "2")[0] == []
    assert chosen("--threads", "2") == ["--gpus", "0", "--cpus", "2", *alone]
    assert chosen("--threads", "3") == ["--gpus", "0", "--cpus", "1", *alone]
    assert chosen("--threads", "9") == ["--gpus", "0", "--cpus", "1", *alone]
    assert chosen("--threads", "1,2") == ["--gpus", "0", "--cpus", "2", *alone]
    assert chosen("--threads", "1,1") == ["--gpus", "0", "--cpus", "2"]
    assert chosen("--threads", "1,2,1") == ["--gpus", "0", "--cpus", "3", *alone]
    assert chosen("--threads", "2", "--cpus", "1") == ["--cpus", "1", "--gpus", "0"]
    for wrong, said in (("0", "1 to 1024 threads, not 0"), ("2,", "not a number"), ("x", "number")):
        with pytest.raises(UserError, match=said):
            launch.go_under_legate(parsed("--threads", wrong))


def test_default_threads(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large machine has a processor for each NUMA node; one core is left to Legion's threads."""
    assert not list(machine.iterdir())
    monkeypatch.setattr(ranks._Chosen, "threads", None)
    assert ranks.threads() == [1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)))
    for cpu in range(128):
        (machine / f"cpu{cpu}" / f"node{cpu // 64}").mkdir(parents=True)
    monkeypatch.setattr(ranks, "_CPUS", machine)
    monkeypatch.setattr(ranks, "_GPUS", machine / "none")
    assert ranks.numa_nodes() == 2
    assert chosen() == ["--gpus", "0", "--cpus", "2"]
    for config, threads in (("--cpus 2 --gpus 0", 63), ("--cpus 200", 1), ("--cpus 1 --gpus 2", 1)):
        monkeypatch.setenv("LEGATE_CONFIG", config)
        assert ranks.threads() == [threads]
    monkeypatch.setenv("LEGATE_CONFIG", "--cpus 1 --omps 2 --ompthreads 8")
    assert ranks.threads() == [0]  # Realm knows how many a group has


def test_only_visible_gpus(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (machine / f"0000:0{number}").mkdir()
    for visible, number in (("0,2", "2"), ("", "0"), ("-1", "0"), ("0,1,2,3", "3")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert chosen()[:2] == ["--gpus", number]


def test_legate_finds_this_python(machine: Path) -> None:
    assert not list(machine.iterdir())
    _, environment = started()
    assert (Path(environment["PATH"].split(os.pathsep)[0]) / "legate").exists()
    package = Path(launch.__file__).parents[1]
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(package.parent)


def test_under_legate_nothing_starts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(machine.iterdir())
    monkeypatch.setenv("LEGATE_CONFIG", "--cpus 2")
    for options, named in ((["--cpus", "2"], "--cpus"), (["--ranks", "2"], "--ranks")):
        with pytest.raises(UserError, match=f"{named} says how to start legate"):
            launch.go_under_legate(parsed(*options))
    launch.go_under_legate(parsed())
    monkeypatch.setenv(together.RANKS, "1")
    launch.go_under_legate(parsed("--cpus", "2"))


@pytest.mark.usefixtures("machine")
def test_more_processors_than_legion_takes() -> None:
    """Realm would end in a backtrace; with 63 it starts."""
    options, _ = started("--cpus", "63")
    assert options[options.index("--cpus") + 1] == "63"
    with pytest.raises(UserError, match="--cpus 64: Legion takes at most 63 CPU processors a rank"):
        launch.go_under_legate(parsed("--cpus", "64"))
