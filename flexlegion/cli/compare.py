"""``flexlegion compare``: known strategies beside found ones (FlexFlow, figures 7, 8 and 10)."""

from __future__ import annotations

import argparse

from flexlegion.base.quoting import note
from flexlegion.cli.budget import add_budget_options
from flexlegion.cli.command import Commands, add_command, add_report_option, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked,
    asked_on,
)
from flexlegion.cli.outputs import output
from flexlegion.cli.programs import (
    add_most_micro_batches,
    add_runtime_option,
    add_system_option,
    asked_of_programs,
    refuse_for_legion,
    refuse_for_programs,
)
from flexlegion.process.ending import again


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "compare",
        "compare known strategies with the best device placement and the best strategy that "
        "searches find",
        "compare --model lenet --machine p100x4 --budget 3s",
        _run,
    )
    add_setting_options(parser)
    add_runtime_option(parser)
    add_system_option(parser)
    add_most_micro_batches(parser, "with --runtime nccl, ")
    add_budget_options(parser, "; each of the two searches gets all of it")
    parser.add_argument(
        "--out", metavar="FILE", type=output("strategy"), help="write the strategy found as a file"
    )
    add_report_option(parser)
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    if args.runtime == "nccl":
        _run_programs(args)
    else:
        refuse_for_legion(
            {
                "--system": args.system is not None,
                "--most-micro-batches": args.most_micro_batches is not None,
            }
        )
        _run_searches(args)


def _run_programs(args: argparse.Namespace) -> None:
    from flexlegion.analysis.compare_programs import compare_programs

    refuse_for_programs(
        {
            "--budget": args.budget is not None,
            "--proposals": args.proposals is not None,
            "--seed": args.seed != 0,
            "--chains": args.chains is not None,
            "--out": args.out is not None,
            "--report": args.report is not None,
            "--costs measured": args.costs == "measured",
            "--profile-db": args.profile_db is not None,
        }
    )
    found = compare_programs(**asked_on(args), **asked_of_programs(args))
    answer(args, found.facts(), str(found))


def _run_searches(args: argparse.Namespace) -> None:
    from flexlegion.analysis.compare import compare
    from flexlegion.analysis.report import report_of_compared

    result = compare(
        **asked(args),
        budget=args.budget,
        proposals=args.proposals,
        seed=args.seed,
        chains=args.chains,
    )
    for text in result.notes:
        note(text)
    if args.out is not None:
        result.found.save(args.out)
    if args.report is not None:
        report_of_compared(result).save(args.report)
    answer(args, result.facts(), str(result))
    if result.ended_by is not None:
        raise again(result.ended_by, "the best strategies until then are compared")
