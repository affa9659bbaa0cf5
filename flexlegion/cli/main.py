"""The command ``flexlegion`` (also ``python -m flexlegion``): works without Legion.

Each command is a module of ``flexlegion.cli``, whose `add` declares it, and which is imported
when it is asked for: help and mistakes take a moment, and Ctrl-C during the imports ends them
quietly. What a command works with is imported when it runs. Standard output has the result alone;
notes, warnings and progress go to standard error.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing, which has it, takes some milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

# All else is imported within `main`, where an interrupt is expected.

# Commands by what they are for: each one's module in flexlegion.cli, and what it does.
GROUPS = {
    "What there is": {
        "models": ("models", "list the networks that come with flexlegion, and their sizes"),
        "machine": ("machine", "list machines, draw one, or measure this one"),
    },
    "Find a strategy, for any machine, on any machine": {
        "search": ("search", "search for a fast strategy and write it as a file"),
        "compare": ("compare", "compare known strategies with the best that searches find"),
        "divide": ("divide", "data x tensor x pipeline for PyTorch, JAX, Megatron-LM"),
        "fits": ("fits", "the fewest GPUs for a model, and the largest batch"),
        "what-if": ("what_if", "how the best changes on a machine with one thing changed"),
        "strategy": ("plan", "write a built-in strategy as a file, as a start for editing"),
    },
    "Look into a strategy": {
        "simulate": ("simulate", "simulate a training iteration: time, bytes moved, memory, load"),
        "explain": ("explain", "say where it leaves data parallelism, and what that saves"),
        "report": ("report", "write all about it as one page for a browser"),
        "plan": ("plan", "print what it executes: launches, tiles, devices, memory"),
    },
    "Take it elsewhere": {
        "export": ("export", "write a strategy as a program for PyTorch's DTensor, or for JAX"),
    },
    "Train on this machine, or on several": {
        "train": ("train", "train a network with a strategy"),
        "evaluate": ("evaluate", "measure a trained network's loss and metrics on data"),
        "predict": ("predict", "write what a trained network predicts for data"),
        "checkpoint": ("checkpoint", "show or verify what training has kept"),
        "tune": ("tune", "find the strategy that is really the fastest here, by training"),
        "accuracy": ("accuracy", "compare simulated iterations with real ones"),
    },
    "Help": {
        "help": ("help", "say all about a command: flexlegion help search"),
        "completion": ("completion", "print a script with which a shell completes commands"),
    },
}

MODULES = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}

EXAMPLES = (
    "flexlegion search --model lenet --machine p100x4 --budget 5s --out s.json",
    "flexlegion simulate --strategy s.json",
    "flexlegion train --model lenet --strategy data --epochs 2",
)


def _run(argv: Sequence[str] | None) -> None:
    from flexlegion.base.errors import UserError
    from flexlegion.base.phase import begin_phases, phase
    from flexlegion.cli.command import parser_of
    from flexlegion.cli.config import check_config, save_config, with_config
    from flexlegion.cli.outputs import check_given, check_outputs
    from flexlegion.cli.overview import overview, version
    from flexlegion.process.ending import raise_on_signals
    from flexlegion.process.together import rank

    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments in (["help"], ["-h"], ["--help"]):
        print(overview(GROUPS, EXAMPLES))
        return
    if arguments in (["-V"], ["--version"]):
        print(version())
        return
    if arguments[0] == "help":
        if len(arguments) > 2:
            raise UserError(f"help takes one command, not {' '.join(arguments[1:])}")
        arguments = [arguments[1], "--help"]
    if rank() == 0 and arguments[0] in MODULES:
        begin_phases()
        phase(f"{arguments[0]}: starting")
    parser = parser_of(MODULES, arguments[0])
    args = parser.parse_args(with_config(parser, arguments))
    check_config(args, arguments)
    args.arguments = arguments  # to start it elsewhere
    raise_on_signals()
    if rank() == 0:  # of several, the others have the files from it
        check_outputs(args)
    check_given(args)
    if rank() == 0 and getattr(args, "save_config", None) is not None:
        save_config(parser, args)
    args.run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    Parameters
    ----------
    argv
        The arguments; None: those of this process, which is the command's alone.
    """
    if argv is None:
        _end_at_once()
    from flexlegion.cli.outcome import run_command

    return run_command(_run, argv)


def _end_at_once() -> None:
    try:
        from flexlegion.process.ending import end_at_once

        end_at_once()
    except KeyboardInterrupt:  # it came before the handler
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)


def run(*first: str) -> NoReturn:
    """Run the command of this process, and end it; after a failure under legate, with all ranks.

    Parameters
    ----------
    first
        Arguments before those of the process.
    """
    sys.argv[1:1] = first
    status = main()
    if status != 0 and "LEGATE_CONFIG" in os.environ:
        from flexlegion.bindings import native

        native.leave(status)
    if status > 128:  # after a signal; Python's own end would be open to another one
        sys.stdout.flush()
        os._exit(status)
    if "LEGATE_CONFIG" not in os.environ:
        _end_at_once()  # nobody would catch what a signal raises while Python ends
    sys.exit(status)


if __name__ == "__main__":
    run()
