"""``flexlegion checkpoint show|verify``, and the options of commands that write checkpoints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import add_json_option
from flexlegion.console.text import memory, names, pairs, table
from flexlegion.objective.groups import ParameterGroup
from flexlegion.training.checkpoints.files import MANIFEST, Checkpoint, DamagedError, folders

EVERY, KEEP = "10m", 3


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    checkpoint = add_command(
        commands,
        "checkpoint",
        "show or verify the checkpoints of a training",
        "checkpoint verify runs/lenet",
        _show,
    )
    actions = checkpoint.add_subparsers(dest="action", required=True)
    for name, what, run in (
        ("show", "list the checkpoints in a folder, or tell what one consists of", _show),
        ("verify", "read checkpoints, and compare them with their checksums", _verify),
    ):
        action = add_command(actions, name, what, f"checkpoint {name} runs/lenet", run)
        action.add_argument(
            "folder", metavar="DIR", help="the folder of --checkpoint, or a checkpoint in it"
        )
        add_json_option(action)


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """``--checkpoint``, ``--every``, ``--keep``, ``--resume``, ``--weights``."""
    group = parser.add_argument_group("checkpoints, from which training can be resumed")
    group.add_argument("--checkpoint", metavar="DIR", help="write them into this folder")
    group.add_argument(
        "--every",
        metavar="INTERVAL",
        help=f"iterations from one to the next (500), or a time (90s, 10m, 2h); default: {EVERY}",
    )
    group.add_argument("--keep", type=int, help=f"how many to keep; default: {KEEP}")
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest one in the folder; if there is none, begin",
    )
    group.add_argument(
        "--weights",
        metavar="FILE",
        help="begin with the weights of an .npz or .safetensors file or of a checkpoint; of an "
        "imported model also with PyTorch's or Hugging Face's in a .safetensors file",
    )


def check_checkpoint_options(args: argparse.Namespace) -> None:
    """Raise `UserError` if they make no sense, or the files are not there."""
    from flexlegion.training.checkpoints.callback import Checkpoints

    if args.checkpoint is None:
        for option in ("every", "keep", "resume"):
            if getattr(args, option) not in (None, False):
                raise UserError(f"--{option} goes with --checkpoint, which names the folder")
    else:
        chosen = Checkpoints(args.checkpoint, *_interval_and_number(args), args.resume)
        chosen.check_directory()
    if args.weights is not None:
        if not os.path.exists(args.weights):
            raise UserError(f"{printable(args.weights)}: there is no such file of weights")
        if args.resume:
            raise UserError("--resume has its weights from the checkpoint; leave --weights out")


def checkpoints_from(args: argparse.Namespace) -> Any:
    """The `Checkpoints` that are asked for, or None."""
    from flexlegion.training.checkpoints.callback import Checkpoints

    if args.checkpoint is None:
        return None
    return Checkpoints(args.checkpoint, *_interval_and_number(args), args.resume)


def _interval_and_number(args: argparse.Namespace) -> tuple[str, int]:
    return args.every or EVERY, KEEP if args.keep is None else args.keep


def _chosen(folder: str) -> list[Path]:
    path = Path(folder)
    if os.path.exists(path / MANIFEST):
        return [path]
    found = folders(path)
    if not found:
        raise UserError(
            f"{printable(folder)}: there are no checkpoints; give the folder of --checkpoint"
        )
    return found


def _show(args: argparse.Namespace) -> None:
    found = _chosen(args.folder)
    if found == [Path(args.folder)]:
        checkpoint = Checkpoint(args.folder)
        facts = _facts(checkpoint) | {"tensors": len(list(checkpoint))}
        answer(args, facts | {"state": checkpoint.state}, _described(checkpoint, facts))
        return
    listed = []
    for folder in found:
        try:
            listed.append(_facts(Checkpoint(folder)))
        except DamagedError as e:
            listed.append({"checkpoint": folder.name, "damage": str(e)})
    rows = [_row(facts) for facts in listed]
    answer(
        args,
        {"checkpoints": listed},
        table(("checkpoint", "written", "size", "epoch", "step", "loss"), rows, (0, 1)),
    )


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    training = checkpoint.state["training"]
    written = (checkpoint.folder / MANIFEST).stat().st_mtime
    history = training["history"]
    return {
        "checkpoint": checkpoint.folder.name,
        "written": datetime.fromtimestamp(written).isoformat(" ", "seconds"),
        "bytes": checkpoint.bytes,
        **training["position"],
        "loss": history[-1].get("loss") if history else None,
    }


def _row(facts: Mapping[str, Any]) -> list[str]:
    if "damage" in facts:
        return [facts["checkpoint"], "damaged", "", "", "", ""]
    loss = "" if facts["loss"] is None else f"{facts['loss']:.4f}"
    return [
        facts["checkpoint"],
        facts["written"],
        memory(facts["bytes"]),
        str(facts["epoch"]),
        str(facts["step"]),
        loss,
    ]


def _described(checkpoint: Checkpoint, facts: Mapping[str, Any]) -> str:
    state = checkpoint.state
    numbers = dict(state["optimizer"])
    if groups := numbers.pop("groups", ()):
        where = str(checkpoint.folder)
        read = [ParameterGroup.of_document(group, where) for group in groups]
        numbers["groups"] = "; ".join(group.text for group in read)
    optimizer = ", ".join(f"{key} {value}" for key, value in numbers.items() if value)
    versions = ", ".join(f"{name} {version}" for name, version in state["versions"].items())
    ranks, devices = state["ranks"], names(state["devices"])
    return pairs(
        [
            ("written", facts["written"]),
            ("model", printable(str(state.get("model") or "of a script"))),
            ("position", f"epoch {facts['epoch']}, iteration {facts['batch']} of it"),
            ("iterations", str(facts["step"])),
            ("batch size", str(state["batch_size"])),
            ("optimizer", optimizer),
            ("learning rate", f"{state['learning_rate']:.6g}"),
            ("seed", str(state["seed"])),
            ("trained on", f"{devices}; ranks: {ranks}"),
            ("files", f"{len(checkpoint.files)}, {memory(checkpoint.bytes)}"),
            ("tensors", str(facts["tensors"])),
            ("versions", versions),
        ]
    )


def _verify(args: argparse.Namespace) -> None:
    results: list[dict[str, Any]] = []
    for folder in _chosen(args.folder):
        try:
            checkpoint = Checkpoint(folder)
            checkpoint.check_all()
            results.append({"checkpoint": folder.name, "bytes": checkpoint.bytes, "damage": None})
        except DamagedError as e:
            results.append({"checkpoint": folder.name, "bytes": None, "damage": str(e)})
    rows = [
        [its["checkpoint"], f"whole, {memory(its['bytes'])}" if its["bytes"] else its["damage"]]
        for its in results
    ]
    answer(args, {"checkpoints": results}, table(("checkpoint", ""), rows, (0, 1)))
    if any(its["damage"] for its in results):
        sys.exit(1)
