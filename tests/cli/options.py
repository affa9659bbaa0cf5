"""Every option of every command, and where what it asked for shows in what the command says it did.

A command's *base* is what it is run with; a row changes one option to a value that is not the
default. Where the result states what was in force, the row says under which key, and with which
value; `told` reads a key as in ``hyperparameters.clip_norm``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flexlegion.cli.search import SWITCHES

Given = Mapping[str, Any]  # options by their names; None: not given, True: a switch


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Parameters
    ----------
    facts
        Its JSON object; empty without ``--json``.
    out, err
        What it printed.
    status
        Its exit status.
    folder
        Where it may write.
    """

    facts: Mapping[str, Any]
    out: str
    err: str
    status: int
    folder: Path

    def told(self, key: str) -> Any:
        """What the JSON object says under a key with dots."""
        value: Any = self.facts
        for part in key.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        return value


@dataclass(frozen=True)
class Row:
    """An option that is given, and what shows that it arrived.

    Parameters
    ----------
    given
        Options in place of the base's.
    told
        What the JSON object says, by key.
    shows
        Whether something else shows it.
    moves
        Whether simulated figures differ from the base's.
    status
        The exit status that it leads to.
    """

    given: Given
    told: Mapping[str, Any] = field(default_factory=dict)
    shows: Callable[[Outcome], bool] = lambda _: True
    moves: bool = False
    status: int = 0


def written(name: str) -> Callable[[Outcome], bool]:
    return lambda outcome: (outcome.folder / name).stat().st_size > 0


def says(text: str) -> Callable[[Outcome], bool]:
    return lambda outcome: text in outcome.out + outcome.err


def _file(option: str, name: str) -> Row:
    """An option that names a file to write."""
    return Row({option: f"FOLDER/{name}"}, shows=written(name))


NETWORK = {
    "model": Row({"--model": "lenet", "--size": None}, {"model": "lenet"}, moves=True),
    "size": Row({"--size": "hidden=48x32"}, {"sizes.hidden": [48, 32]}, moves=True),
    "no_verify": Row(
        {"--model": "FOLDER/verifying.py:build", "--size": None, "--no-verify": True},
        shows=says("a build without a check"),
        status=2,  # as it is not imported
    ),
    "no_kept_import": Row(
        {"--model": "FOLDER/verifying.py:build", "--size": None, "--no-kept-import": True},
        shows=says("a build that nobody watches"),
    ),
    "batch_size": Row({"--batch-size": "32"}, {"batch_size": 32}, moves=True),
    "optimizer": Row({"--optimizer": "adam"}, {"optimizer": "adam"}, moves=True),
    "clip_norm": Row({"--clip-norm": "0.5"}, {"hyperparameters.clip_norm": 0.5}, moves=True),
    "ema": Row({"--ema": "0.9"}, {"hyperparameters.ema": 0.9}, moves=True),
    "loss": Row({"--loss": "huber:delta=0.5"}, {"loss": "huber:delta=0.5"}, moves=True),
    "precision": Row({"--precision": "tf32"}, {"precision": "tf32"}, moves=True),
    "storage": Row({"--storage": "bf16"}, {"storage": "bf16"}, moves=True),
    "micro_batches": Row({"--micro-batches": "2"}, {"micro_batches": 2}, moves=True),
}
_NO_DATA_BASE = Row(
    {"--profile-db": "FOLDER/nosuch.db"}, shows=says("nosuch.db: no such profile"), status=2
)
MACHINE = {
    "machine": Row({"--machine": "a100x4"}, {"machine": "a100x4"}, moves=True),
    "costs": Row({"--costs": "analytic"}, {"costs": "analytic"}),
    "profile_db": _NO_DATA_BASE,
}
BUDGET = {
    "budget": Row({"--budget": "50ms"}, {"budget.seconds": 0.05}),
    "proposals": Row({"--proposals": "30"}, {"budget.proposals": 30}),
    "seed": Row({"--seed": "7"}, {"seed": 7}),
    "chains": Row({"--chains": "3"}, {"chains": 3}),
}
# Without the options of searches.
OF_PROGRAMS = {"--runtime": "nccl", "--proposals": None, "--chains": None}
JSON = {"json": Row({"--json": None}, shows=lambda outcome: not outcome.out.startswith("{"))}
STRATEGY = {"strategy": Row({"--strategy": "model"}, {"strategy": "model"}, moves=True)}
POSITIONAL = {"strategy": Row({"": "model"}, {"strategy": "model"}, moves=True)}

# Of commands that take processors in place of a machine.
DEVICES = {
    "cpus": Row({"--machine": None, "--cpus": "3"}, moves=True),
    "gpus": Row({"--machine": None, "--gpus": "1"}, moves=True),
    "costs": Row(
        {"--costs": "analytic", "--profile-db": "FOLDER/nosuch.db"},
        shows=says("not with analytic"),
        status=2,
    ),
    "profile_db": _NO_DATA_BASE,
}

_BASE = {"--model": "mlp", "--size": "hidden=64x32", "--machine": "a100x2"}
_SEARCH = _BASE | {"--proposals": "20", "--chains": "1", "--json": True}

# What each command is run with.
BASES: dict[str, Given] = {
    "models": {"--json": True},
    "machine list": {"--json": True},
    "machine show": {"": "p100x2", "--json": True},
    "simulate": _BASE | {"--json": True},
    "explain": {"": "random:1"} | _BASE | {"--json": True},
    "report": {"": "random:1"} | _BASE | {"--out": "FOLDER/report.html", "--json": True},
    "export": {"": "random:1"}
    | _BASE
    | {"--to": "dtensor", "--out": "FOLDER/program.py", "--json": True},
    "search": _SEARCH | {"--out": "FOLDER/found.json"},
    "compare": _SEARCH,
    "divide": _BASE | {"--batch-size": "64", "--json": True},
    "fits": _BASE | {"--batch-size": "64", "--json": True},
    "what-if": _SEARCH | {"--vary": "memory=x1,x2"},
    "plan": _BASE,
    "strategy": _BASE | {"--out": "FOLDER/strategy.json"},
    "completion": {"": "bash"},
}

ROWS: dict[str, dict[str, Row]] = {
    "models": JSON,
    "machine list": JSON,
    "machine show": JSON | {"machine": Row({"": "p100x4"}, {"name": "p100x4"})},
    "simulate": NETWORK
    | MACHINE
    | STRATEGY
    | JSON
    | {
        "algorithm": Row({"--algorithm": "delta"}, {"algorithm": "delta"}),
        "runtime": Row({"--runtime": "nccl"}, {"runtime": "nccl"}, moves=True),
        "system": Row(
            {"--runtime": "nccl", "--system": "pytorch"}, {"system": "pytorch"}, moves=True
        ),
        "trace": _file("--trace", "trace.json"),
    },
    "explain": NETWORK
    | MACHINE
    | POSITIONAL
    | JSON
    | {"top": Row({"--top": "1", "--json": None}, shows=says("shows all"))},
    "report": NETWORK
    | MACHINE
    | POSITIONAL
    | JSON
    | {
        "out": _file("--out", "other.html"),
        "svg": _file("--svg", "graph.svg"),
        "measured": Row({"--measured": "FOLDER/no.json"}, shows=says("no.json"), status=2),
    },
    "export": NETWORK
    | {
        "ema": Row({"--ema": "0.9"}, shows=says("and so no averages of weights"), status=2),
        "storage": Row(
            {"--storage": "bf16"}, shows=says("in single precision, not in bf16"), status=2
        ),
        "micro_batches": Row({"--micro-batches": "2"}, {"micro_batches": 2}, moves=True),
    }
    | MACHINE
    | POSITIONAL
    | JSON
    | {
        "to": Row({"--to": "jax"}, {"target": "jax"}),
        "out": _file("--out", "other.py"),
        "weights": _file("--weights", "weights.npz"),
    },
    "search": NETWORK
    | MACHINE
    | BUDGET
    | JSON
    | {
        "out": _file("--out", "other.json"),
        "start": Row(
            {"--start": "single,model"},
            shows=lambda outcome: set(outcome.told("start_times_ns")) == {"single", "model"},
        ),
        "dimensions": Row({"--dimensions": "sample"}, {"dimensions": ["sample"]}),
        "space": Row({"--space": "jax"}, {"space": "jax"}),
        "most_micro_batches": Row(
            {"--most-micro-batches": "2"}, shows=says("and the fastest start of each: 1 (")
        ),
        "search": Row({"--search": "placement"}, {"search": "placement"}, moves=True),
        "trace": _file("--trace", "trace.json"),
    }
    | {
        f"no_{name}": Row({f"--no-{name.replace('_', '-')}": True}, {f"options.{name}": False})
        for name in SWITCHES
    },
    "compare": NETWORK
    | MACHINE
    | BUDGET
    | JSON
    | {
        "out": _file("--out", "found.json"),
        "report": _file("--report", "report.html"),
        "runtime": Row({**OF_PROGRAMS}, {"runtime": "nccl"}, moves=True),
        "system": Row({**OF_PROGRAMS, "--system": "pytorch"}, {"system": "pytorch"}, moves=True),
        "most_micro_batches": Row(
            {**OF_PROGRAMS, "--most-micro-batches": "1"},
            shows=lambda outcome: {way["micro_batches"] for way in outcome.told("ways")} == {1},
        ),
    },
    "what-if": NETWORK
    | MACHINE
    | BUDGET
    | JSON
    | {
        "vary": Row({"--vary": "flops=x2"}, {"vary": "flops", "points.1.value": 2}, moves=True),
        "points": Row(
            {"--vary": "memory=x1..x2", "--points": "3"},
            shows=lambda outcome: len(outcome.told("points")) == 3,
        ),
        "start": Row(
            {"--start": "single,model"},
            shows=lambda outcome: (
                set(outcome.told("points.0.known_times_ns")) == {"single", "model"}
            ),
        ),
        "report": _file("--report", "report.html"),
    },
    "divide": NETWORK
    | {"machine": MACHINE["machine"]}
    | JSON
    | {
        "system": Row({"--system": "pytorch"}, {"system": "pytorch"}, moves=True),
        "most_micro_batches": Row(
            {"--most-micro-batches": "1"},
            shows=lambda outcome: {d["micro_batches"] for d in outcome.told("divisions")} == {1},
        ),
    },
    "fits": NETWORK
    | {"machine": MACHINE["machine"]}
    | JSON
    | {
        "system": Row({"--system": "pytorch"}, {"system": "pytorch"}, moves=True),
        "most_micro_batches": Row({"--most-micro-batches": "1"}, {"least_memory.micro_batches": 1}),
    },
    # What it prints is compared as a whole.
    "plan": {name: Row(row.given, moves=True) for name, row in NETWORK.items()}
    | DEVICES
    | {
        "no_verify": NETWORK["no_verify"],
        "no_kept_import": NETWORK["no_kept_import"],
        # Plans are the same in all precisions.
        "precision": Row({"--precision": "fp31"}, shows=says("'fp31'"), status=2),
        "machine": Row({"--machine": "a100x4"}, moves=True),
        "strategy": Row({"--strategy": "model"}, moves=True),
        "sbp": Row({"--sbp": True}, moves=True),
        "check": Row({"--check": True}, shows=says("the plan is in order")),
    },
    # Configurations of data parallelism do not depend on the network; what is said beside does.
    "strategy": {name: replace(row, moves=False) for name, row in NETWORK.items()}
    | DEVICES
    | {
        "machine": Row({"--machine": "a100x4"}, {"machine": "a100x4"}, moves=True),
        "strategy": Row({"--strategy": "model"}, moves=True),
        "out": _file("--out", "other.json"),
    },
    "completion": {"shell": Row({"": "fish"}, shows=says("complete -c flexlegion"))},
}


def words_of(command: str, given: Given, folder: Path) -> list[str]:
    """The command line: what is called "" comes first, by its place."""
    words = command.split()
    for option, value in given.items():
        if value is None:
            continue
        words += [option] if option else []
        words += [] if value is True else [str(value).replace("FOLDER", str(folder))]
    return words
