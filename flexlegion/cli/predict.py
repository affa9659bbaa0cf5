"""``flexlegion predict``: the outputs of a trained network for data, as a file."""

from __future__ import annotations

import argparse
import time

from flexlegion.base.errors import UserError
from flexlegion.cli.command import Commands, add_command, answer, logs_on_stderr
from flexlegion.cli.launch import go_under_legate
from flexlegion.cli.outputs import output
from flexlegion.cli.trained import add_trained_options, check_trained, computed_by, trained
from flexlegion.cli.training import Prepared, Samples
from flexlegion.console.text import count, wrapped
from flexlegion.data.predictions import check_format, save_predictions
from flexlegion.objective.losses import check_outputs


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "predict",
        "write what a trained network predicts for data, a row a sample",
        "predict --model lenet --weights runs/lenet --data digits --out p.npy",
        _run,
    )
    add_trained_options(parser, labelled=False)
    parser.add_argument(
        "--part",
        choices=("test", "train"),
        help="of data that bring a test set of their own; others are taken as a whole, in their "
        "order",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        type=output("predictions"),
        help="an .npy file, an .npz file with an array for each output of the model, or a .parquet "
        "file with a column for each (needs pyarrow)",
    )


def _run(args: argparse.Namespace) -> None:
    check_trained(args)
    check_format(args.out)
    go_under_legate(args)
    with logs_on_stderr():
        ready, weights = trained(args, labelled=False)
        model, samples = ready.network.model, _part(ready, args.part)
        names = check_outputs(model.graph, model.outputs)
        check_format(args.out, len(names))
        started = time.perf_counter()
        predicted = model.predict(samples.x)
        seconds = time.perf_counter() - started
        machine, facts = model.machine, computed_by(ready.network)
        model.close()
    if machine.rank > 0:
        return
    arrays = dict(zip(names, [predicted] if len(names) == 1 else predicted, strict=True))
    save_predictions(args.out, arrays)
    del facts["loss"]  # which decides nothing here
    facts |= {
        "weights": args.weights,
        "averages": args.averages,
        "part": args.part,
        "samples": samples.number,
    }
    facts |= {"outputs": {name: list(array.shape) for name, array in arrays.items()}}
    facts |= {"seconds": seconds, "samples_per_second": samples.number / seconds, "out": args.out}
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    head = f"{args.model} with {weights}: {count(samples.number, 'sample')}"
    answer(args, facts, f"{wrapped(head, indent=2)}\nwrote {args.out}: {shapes}")


def _part(ready: Prepared, part: str | None) -> Samples:
    """The samples that ``--part`` names, in the order of the data."""
    if ready.whole is None and part is None:
        raise UserError(
            "the data bring samples to train on and samples to test with; choose --part test or "
            "--part train"
        )
    if ready.whole is None:
        return ready.test if part == "test" else ready.train
    if part is not None:
        raise UserError(
            f"--part {part} goes with data that bring a test set of their own; these are predicted "
            "as a whole, in their order"
        )
    return ready.whole
