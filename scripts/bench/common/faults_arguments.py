"""Complete commands, and values of their options that nobody means: see faults.py."""

from __future__ import annotations

import random
from dataclasses import dataclass

NETWORK = ("--model", "mlp", "--machine", "p100x4")
QUICK = ("--budget", "1s", "--proposals", "20", "--chains", "1")
# What needs Legion ends at its missing hosts, when its other options have been seen.
NOWHERE = ("--hosts", "/nonexistent/hosts")
TEXTS = ("", "-1", "0", "1e9", "9" * 30, "nan", "\x1b[2J", "\u202e", "a" * 5000, "../..", "{}", "é")
NUMBERS = ("1000000000", "0.5", "-0", "1e-400", "no\x07")
SIZES = ("hidden=1000000000", "hidden=-1", "steps=1000000000", "steps=0", "vocabulary=2147483647")
MACHINES = ("p100x1000000000", "p100x0", "p100x-1", "p100x4096", "cpux3", "p100x4x4", "/dev/zero")
FOLDERS = (".", "/", "/proc/self/fd", "/dev/null", "/nonexistent")
POSITIONAL = "_"  # stands for what has no option

_OF_NETWORKS = "batch-size size optimizer loss precision model"
_OF_MACHINES = "machine costs profile-db"
_OF_LAUNCHES = "hosts cpus gpus ranks legate"
_OF_TRAINING = "data labels samples held-out augment seed lr momentum weight-decay clip-norm"
_TRAINING = ("--model", "mlp", "--data", "synthetic", "--samples", "64")


@dataclass(frozen=True)
class Complete:
    """A command that runs as it stands, and the options that get a hostile value."""

    command: tuple[str, ...]
    options: str

    @property
    def kind(self) -> str:
        """Its name, for the table."""
        action = self.command[0] in ("machine", "checkpoint")
        return " ".join(self.command[: 1 + action])


COMPLETE = (
    Complete(
        ("simulate", *NETWORK, "--strategy", "data"),
        f"strategy trace algorithm {_OF_NETWORKS} {_OF_MACHINES}",
    ),
    Complete(
        ("search", *NETWORK, *QUICK, "--out", "/dev/null"),
        f"out budget proposals seed chains start method {_OF_NETWORKS} {_OF_MACHINES}",
    ),
    Complete(
        ("compare", *NETWORK, *QUICK),
        f"out budget proposals seed chains report {_OF_NETWORKS} {_OF_MACHINES}",
    ),
    Complete(("explain", "data", *NETWORK), f"_ top {_OF_NETWORKS} {_OF_MACHINES}"),
    Complete(
        ("report", "data", *NETWORK, "--out", "/dev/null"),
        f"_ out svg measured {_OF_NETWORKS} {_OF_MACHINES}",
    ),
    Complete(("plan", "--model", "mlp"), f"strategy cpus gpus {_OF_NETWORKS}"),
    Complete(
        ("train", *_TRAINING, "--epochs", "1", *NOWHERE),
        "strategy schedule warmup decay decay-after decay-every epochs checkpoint every keep "
        "weights log tensorboard early-stopping best-weights timeline json save-weights "
        f"{_OF_TRAINING} {_OF_NETWORKS} {_OF_LAUNCHES}",
    ),
    Complete(
        ("tune", *_TRAINING, "--out", "/dev/null", *NOWHERE),
        "out budget finalists rounds max-rounds trial-budget gain confidence profile-db report "
        f"{_OF_TRAINING} {_OF_NETWORKS} {_OF_LAUNCHES}",
    ),
    Complete(
        ("accuracy", "--model", "mlp", *NOWHERE),
        f"strategies rounds seed profile-db report {_OF_NETWORKS} {_OF_LAUNCHES}",
    ),
    Complete(("machine", "measure", "--out", "/dev/null", *NOWHERE), f"out nodes {_OF_LAUNCHES}"),
    Complete(("machine", "show", "p100x4"), "_ json nodes"),
    Complete(("checkpoint", "show", "."), "_ json"),
    Complete(("checkpoint", "verify", "."), "_ json"),
)


def hostile_arguments(rng: random.Random) -> tuple[str, list[str]]:
    """A kind of command, and the arguments of one with a value that nobody means."""
    chosen = rng.choice(COMPLETE)
    option = rng.choice(chosen.options.split())
    arguments = list(chosen.command)
    if "--model" in arguments:
        arguments += ["--model", rng.choice(("mlp", "lenet", "rnnlm"))]
    value = rng.choice(_values(chosen, option))
    if option == POSITIONAL:
        # Where there is one, it follows the command's name.
        arguments[len(chosen.kind.split())] = value
    else:
        arguments.append(f"--{option}={value}")
    if chosen.kind != "train" and rng.random() < 0.25:
        arguments.append("--json")
    return chosen.kind, arguments


def _values(chosen: Complete, option: str) -> tuple[str, ...]:
    if option == "size":
        return SIZES
    of_machines = option == "machine" or chosen.command[:2] == ("machine", "show")
    of_folders = option in ("checkpoint", "tensorboard") or chosen.kind.startswith("checkpoint")
    return (*TEXTS, *NUMBERS, *MACHINES * of_machines, *FOLDERS * of_folders)
