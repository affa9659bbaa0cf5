"""Several ranks before they start: who runs where, what is refused, what each sets for itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from launch import ROOT

from flexlegion.base.errors import UserError
from flexlegion.cli.ranks import Ranks, chosen_ranks, launcher_options
from flexlegion.process import ranks, together


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher and no Slurm around this process; what it sets is forgotten."""
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Eight cores of two sockets, those of each in every second place; which ones are taken."""
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(ranks, "cores", lambda: [0, 2, 4, 6, 1, 3, 5, 7])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: taken.append(set(cpus)))
    monkeypatch.setattr(ranks, "memory_bytes", lambda: 10 << 30)
    monkeypatch.setattr(ranks, "visible_gpus", list)
    return taken


def rank_of(number: int, each: int, index: int, **environment: str) -> None:
    """Make this the process that mpirun started as rank `index`."""
    os.environ |= {
        "OMPI_COMM_WORLD_SIZE": str(number),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
        "LEGATE_LOCAL_RANK": str(index),
        "LEGATE_GLOBAL_RANK": str(index),
        **environment,
    }


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("a slots=2\nb slots=2 # the other\n\n# c slots=7\n", (2, 2)),
        ("a slots = 3 max_slots=4\n", (1, 3)),
        ("10.0.0.1  max_slots=8 slots=1", (1, 1)),
    ],
)
def test_hosts(text: str, ranks: tuple[int, int], tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    assert chosen_ranks(None, str(file)) == Ranks(*ranks, file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no hosts in it; write lines like 'node1 slots=2'"),
        ("# nothing\n", "there are no hosts in it"),
        ("a\n", "'a' is not a host with slots, as in 'node1 slots=2'"),
        ("a slots=0\n", "'a slots=0' is not a host with slots"),
        ("a slots=9999999999\n", "is not a host with slots"),
        ("\x1b[2J\n", r"'.x1b.2J' is not a host with slots"),
        ("a slots=x\n", "'a slots=x' is not a host with slots"),
        ("a slots=1\na slots=1\n", "the host a is there twice"),
        ("a slots=1\nb slots=2\n", "same number of slots, but there are a 1, b 2"),
    ],
)
def test_wrong_hosts(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        chosen_ranks(None, str(file))


def test_no_hosts(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "it is a folder")):
        with pytest.raises(UserError, match=f"{path}: the hosts cannot be read .{reason}"):
            chosen_ranks(None, str(path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="it is not text"):
        chosen_ranks(None, str(binary))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="it is a pipe, not a file"):
        chosen_ranks(None, str(tmp_path / "pipe"))
    os.truncate(binary, 1 << 30)
    with pytest.raises(UserError, match="too large for a file of hosts"):
        chosen_ranks(None, str(binary))


def test_number_of_ranks() -> None:
    assert chosen_ranks(None, None) == Ranks(1, 1)
    assert chosen_ranks(3, None) == Ranks(1, 3)
    with pytest.raises(UserError, match="--ranks has to be at least 1, but is 0"):
        chosen_ranks(0, None)
    os.environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    assert chosen_ranks(None, None) == Ranks(1, 1)
    assert chosen_ranks(4, None) == Ranks(2, 2)
    with pytest.raises(UserError, match="3 cannot be spread evenly over the 2 machines of Slurm"):
        chosen_ranks(3, None)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_started_several_times(name: str) -> None:
    os.environ[name] = "2"
    with pytest.raises(UserError, match=r"one of 2 processes .* start it once, with --ranks 2"):
        chosen_ranks(None, None)


def test_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    environment = {"HOME": "/", "FLEXLEGION_RANKS": "2", "TERM": "dumb"}
    assert launcher_options(Ranks(1, 1), environment) == ["--nodes", "1", "--ranks-per-node", "1"]
    assert launcher_options(Ranks(1, 2), environment) == [
        *("--nodes", "1", "--ranks-per-node", "2", "--launcher", "mpirun"),
        "--launcher-extra=--quiet --oversubscribe -x FLEXLEGION_RANKS -x TERM",
    ]
    options = launcher_options(Ranks(3, 2, tmp_path / "my hosts"), environment)
    assert options[:4] == ["--nodes", "3", "--ranks-per-node", "2"]
    hosts = f"--hostfile '{tmp_path}/my hosts'"
    assert options[-1] == f"--launcher-extra=--quiet {hosts} -x FLEXLEGION_RANKS -x TERM"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="started by mpirun, which is not on the path; install"):
        launcher_options(Ranks(1, 2), environment)
    assert launcher_options(Ranks(1, 1), environment)  # needs none


@pytest.mark.parametrize("listed", ["pmix pmi2", "none pmi2"])
def test_slurm(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job srun starts the ranks, if it knows PMIx; else mpirun does, which asks Slurm."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout="", stderr=f"types are\n\t{listed}\n")

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    os.environ |= {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}
    for given, cores in ((None, "4"), ("3", "3")):
        if given:
            os.environ["SLURM_CPUS_PER_TASK"] = given
        options = launcher_options(Ranks(2, 2), {})
        if "pmix" in listed:
            assert options[4:6] == ["--launcher", "srun"]
            assert f"--mpi=pmix --cpus-per-task={cores} --kill-on-bad-exit=1" in options[-1]
        else:
            assert options[4:6] == ["--launcher", "mpirun"]


def test_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    install_info = pytest.importorskip("legate.install_info")
    monkeypatch.setattr(install_info, "networks", [])
    with pytest.raises(UserError, match="2 ranks need a network, for which the installed legate"):
        launcher_options(Ranks(1, 2), {})


def test_shares_are_apart_where_they_can_be() -> None:
    for things, number, shares in (
        ("abcdefgh", 3, ["ab", "cde", "fgh"]),
        ("ab", 2, ["a", "b"]),
        ("ab", 3, ["a", "a", "b"]),
        ("ab", 4, ["a", "a", "b", "b"]),
        ("", 2, ["", ""]),
    ):
        assert [ranks.share_of(things, i, number) for i in range(number)] == shares


def test_a_rank_takes_its_share(cores: list[set[int]], capfd: pytest.CaptureFixture[str]) -> None:
    rank_of(4, 2, 1)
    ranks.prepare()
    assert cores == [{1, 3, 5, 7}]  # the second socket
    assert os.environ["LEGATE_CONFIG"].split() == (
        ["--gpus", "0", "--cpus", "3", "--utility", "1", "--sysmem", "4096"]
    )
    assert os.environ["LEGION_DEFAULT_ARGS"] == "-ll:bgwork 1 -level threads=5,gpu=6"
    assert os.environ["UCX_WARN_UNUSED_ENV_VARS"] == "n"
    assert capfd.readouterr().err == ""


def test_what_is_given_stays(cores: list[set[int]], capfd: pytest.CaptureFixture[str]) -> None:
    config = "--cpus 8 --gpus 0 --utility 2 --sysmem 100"
    rank_of(2, 2, 0, LEGATE_CONFIG=config, UCX_TLS="tcp")
    os.environ["LEGION_DEFAULT_ARGS"] = "-level 3 -ll:bgwork 2"
    ranks.prepare()
    assert cores == [{0, 2, 4, 6}]
    assert os.environ["LEGATE_CONFIG"] == config
    assert os.environ["LEGION_DEFAULT_ARGS"] == "-level 3 -ll:bgwork 2"
    assert "UCX_WARN_UNUSED_ENV_VARS" not in os.environ
    assert capfd.readouterr().err == (
        "warning: 2 ranks on 8 cores, where 18 would be needed (one for each processor, and one a "
        "rank for the threads of Legion and the network): threads take turns\n"
    )


def test_who_is_bound_stays_there(cores: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """By mpirun, say; but not where it is the container or job that has fewer cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    rank_of(2, 2, 0)
    ranks.prepare()
    assert cores == []
    os.environ[together.RANKS] = "2"
    ranks.prepare()
    assert cores == [{0, 2, 4, 6}]


def test_srun_binds_by_itself(cores: list[set[int]]) -> None:
    os.environ |= {together.RANKS: "4", together.RANKS_EACH: "4", "SLURM_STEP_NUM_TASKS": "4"}
    ranks.prepare()
    assert cores == []
    assert "--cpus 7 " in os.environ["LEGATE_CONFIG"]
    assert "--sysmem 2048" in os.environ["LEGATE_CONFIG"]  # of all four


def test_gpus_are_shared(cores: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cores
    monkeypatch.setattr(ranks, "visible_gpus", lambda: ["0", "1", "2", "3"])
    rank_of(2, 2, 1)
    ranks.prepare()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert os.environ["LEGATE_CONFIG"].split()[:4] == ["--gpus", "2", "--cpus", "1"]
    assert os.environ["LEGION_DEFAULT_ARGS"].endswith("-level threads=5")


def test_one_process_keeps_the_machine(cores: list[set[int]]) -> None:
    ranks.prepare()
    assert cores == []
    assert os.environ["LEGATE_CONFIG"].split() == ["--gpus", "0", "--cpus", "8", "--utility", "1"]
    assert os.environ["LEGION_DEFAULT_ARGS"] == "-level threads=5,gpu=6"


def test_together() -> None:
    ranks.check_together(1)
    os.environ["OMPI_COMM_WORLD_SIZE"] = "2"
    ranks.check_together(2)
    with pytest.raises(
        UserError, match=r"one of 2 processes .* but Legion runs with 1 rank; start"
    ):
        ranks.check_together(1)


def test_the_batch_script_is_the_documented_one() -> None:
    script = (ROOT / "scripts" / "examples" / "train.sbatch").read_text()
    assert f"```sh\n{script}```" in (ROOT / "docs" / "ranks.md").read_text()
