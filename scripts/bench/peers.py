"""Our search beside Galvatron's and Alpa's, on the same transformers, machines and costs.

    python scripts/bench/peers.py --galvatron FOLDER --alpa FOLDER --json OUT [--only gpt-h100]

Each chooses how training is divided over 64 GPUs, and in how many micro-batches a batch goes
through; then all choices are simulated by `flexlegion.simulate`. Galvatron and Alpa are run from
their own sources, on this machine's CPUs, with our costs in place of what they would measure:

- Galvatron reads profiles (`common/galvatron_search.py`), and its JSON becomes a strategy of ours
  (`common/galvatron_plan.py`). It searches each number of micro-batches with all layers alike, and
  the best of these numbers again with a choice for every layer.
- Of Alpa it is the integer linear programme that splits operators over a mesh of 8 x 8
  (`common/alpa_solver.py`), for each number of micro-batches. Its choice of a pipeline's stages
  needs measured profiles of all runs of layers, and is left out; so this is Alpa without pipelines.

The folders are their repositories: github.com/PKU-DAIR/Hetu-Galvatron (2.4.1, commit cea12ff), in
which `python setup.py build_ext --inplace` has been run, and github.com/alpa-projects/alpa (commit
b8078a9). They need PyTorch, SciPy and pydantic; pybind11 (3.1), to build; and pulp (3.3), which has
a solver (CBC). What is not named is left out of the table, which says so.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

from common import alpa_solver, galvatron_search
from common.galvatron_plan import plan_of, strategy_of
from common.rows import write_rows
from rich.console import Console
from rich.table import Table

import flexlegion as fl
from flexlegion.analysis.setting import Setting, network_of
from flexlegion.base.documents import read_json
from flexlegion.base.errors import UserError
from flexlegion.known_strategies import named
from flexlegion.networks.network import Network
from flexlegion.searches.budget import seconds_of
from flexlegion.sim.fitting import fitting
from flexlegion.sim.problem import MAX_TIME_NS
from flexlegion.spmd.ways import block_numbers
from flexlegion.strategy.hierarchy import hierarchical
from flexlegion.strategy.strategy import Strategy

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
KNOWN = ("data", "megatron", "3d")
BATCH = 512
GIB = 1 << 30

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is divided over which machine.

    Parameters
    ----------
    name
        For `--only`.
    model, machine
        Names.
    storage
        In which type activations are stored.
    sizes
        Of the model.
    """

    name: str
    model: str
    machine: str
    storage: str
    sizes: Mapping[str, Any] = field(hash=False)

    def network(self, micro_batches: int, samples: int = BATCH, **sizes: Any) -> Network:
        """As it is trained."""
        model = fl.zoo.build(self.model, samples, **(dict(self.sizes) | sizes))
        return network_of(
            model, optimizer="adam", storage=self.storage, micro_batches=micro_batches
        )

    def setting(self, network: Network) -> Setting:
        """A network on the machine."""
        return Setting.of(network, self.machine, costs="analytic")

    def transformer(self) -> galvatron_search.Transformer:
        """For Galvatron's profiles."""

        @cache
        def of_layers(layers: int, samples: int) -> Setting:
            return self.setting(self.network(1, samples, layers=layers))

        graph = self.network(1).graph
        layers = block_numbers(graph.operators)[-1] + 1
        _, steps, hidden = graph.operators[0].output.shape
        return galvatron_search.Transformer(of_layers, layers, hidden, steps, self.storage)


GPT: dict[str, Any] = {"preset": "1.3b", "steps": 2048}
LLAMA: dict[str, Any] = {"preset": "3-8b"}
CASES = (
    Case("gpt-h100", "gpt", "h100x64", "bf16", GPT),
    Case("gpt-v100", "gpt", "v100x64", "fp16", GPT),
    Case("llama-h100", "llama", "h100x64", "bf16", LLAMA),
)


@dataclass(frozen=True)
class Took:
    """How long something took, in s: by the clock, and of all cores, solvers' processes included.

    Where others use the machine as well, the latter says more.
    """

    clock: float
    cores: float

    @classmethod
    def now(cls) -> Took:
        """Since some moment."""
        its = os.times()
        return cls(its.elapsed, its.user + its.system + its.children_user + its.children_system)

    def until_now(self) -> Took:
        """Since this one."""
        now = Took.now()
        return Took(now.clock - self.clock, now.cores - self.cores)

    def and_then(self, other: Took) -> Took:
        """One after the other."""
        return Took(self.clock + other.clock, self.cores + other.cores)


@dataclass(frozen=True)
class Choice:
    """What somebody chose.

    Parameters
    ----------
    who
        Who.
    took
        How long that took.
    micro_batches
        In how many parts a batch goes through.
    strategy
        How it is divided.
    expected_ns
        What it takes by the chooser's own reckoning, if that says so.
    note
        What else is to be said.
    """

    who: str
    took: Took
    micro_batches: int
    strategy: Strategy
    expected_ns: float | None = None
    note: str = ""


def ours(case: Case, budget: str) -> Iterator[Choice]:
    """What our search finds."""
    began = Took.now()
    found = fl.search(
        case.network(1),
        case.machine,
        budget,
        costs="analytic",
        most_micro_batches=MICRO_BATCHES[-1],
        progress=False,
    )
    rounds = found.setting.problem.graph.micro_batches
    note = f"from start {found.start}, {found.proposals:,} proposals"
    took = began.until_now()
    yield Choice(f"our search, {budget}", took, rounds, found.strategy, None, note)


def known(case: Case, name: str) -> Iterator[Choice]:
    """A known strategy, with what it takes to fit, in as many micro-batches as sketches choose."""
    began = Took.now()
    best: tuple[int, Choice] | None = None
    for rounds in MICRO_BATCHES:
        try:
            problem = case.setting(case.network(rounds)).problem
            its = fitting(problem, named(name, problem))
        except UserError:
            continue  # fewer samples than devices, or a pipeline of one micro-batch
        if not its.judged.fits:
            continue
        time_ns = its.judged.time_ns or MAX_TIME_NS
        if best is None or time_ns < best[0]:
            who = f"`{name}`" + (f" with {its.added}" if its.added else "")
            best = time_ns, Choice(who, began, rounds, its.strategy)
    if best is None:
        raise UserError("in no number of micro-batches does it fit")
    yield replace(best[1], took=began.until_now())


def galvatron(case: Case, folder: Path, patience: float) -> Iterator[Choice]:
    """What Galvatron finds: all layers alike; then layer by layer, if it is done in time."""
    transformer = case.transformer()
    profiles = galvatron_search.profiles_of(transformer, "model")
    search = partial(galvatron_search.searched, folder, transformer, profiles, BATCH)

    def choice_of(who: str, answer: galvatron_search.Answer, took: Took) -> Choice:
        plan = plan_of(answer.config)
        problem = case.setting(case.network(plan.micro_batches)).problem
        strategy = strategy_of(problem.graph, problem.devices, plan)
        expected_ns = 1e9 * BATCH / answer.samples_a_second
        return Choice(f"Galvatron, {who}", took, plan.micro_batches, strategy, expected_ns)

    began = Took.now()
    answers = [search(rounds, by_layer=False) for rounds in MICRO_BATCHES]
    found = [its for its in answers if its is not None]
    if not found:
        raise UserError("by its own reckoning, nothing fits")
    best = max(found, key=lambda its: its.samples_a_second)
    first = began.until_now()
    yield choice_of("all layers alike", best, first)
    began = Took.now()
    try:
        with time_limit(patience):
            fine = search(plan_of(best.config).micro_batches, by_layer=True)
    except TimeoutError:
        raise UserError(f"layer by layer, it was not done after {patience:,.0f} s") from None
    if fine is not None:
        yield choice_of("layer by layer", fine, first.and_then(began.until_now()))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what is inside, after so long."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def alpa(case: Case, solver: alpa_solver.Solver) -> Iterator[Choice]:
    """What Alpa's solver chooses."""
    found: list[tuple[alpa_solver.Solved, Setting]] = []
    refusals: list[str] = []
    began = Took.now()
    for rounds in MICRO_BATCHES:
        setting = case.setting(case.network(rounds))
        nodes = setting.problem.devices.preferred_by_node
        try:
            found.append(
                (alpa_solver.solve(setting.problem, solver, (len(nodes), len(nodes[0]))), setting)
            )
        except UserError as e:
            refusals.append(f"{rounds}: {e}")
    if not found:
        raise UserError(f"in no number of micro-batches: {'; '.join(refusals)}")
    best, setting = min(found, key=lambda its: its[0].summed_ns)
    problem = setting.problem
    configs = hierarchical(best.strategy, problem.graph, problem.devices)
    size = f"{best.operators:,} operators, {best.choices:,} choices, {best.pairs:,} pairs of them"
    ended = sum(its.ended for its, _ in found)
    size += f"; {ended} of {len(MICRO_BATCHES)} programmes were solved to the end"
    size += f"; {'; '.join(refusals)}" if refusals else ""
    yield Choice(
        "Alpa's solver, no pipeline",
        began.until_now(),
        problem.graph.micro_batches,
        Strategy(configs, best.strategy.source),
        best.summed_ns,
        size,
    )


def row_of(case: Case, choice: Choice) -> Row:
    """A choice, simulated."""
    network = case.network(choice.micro_batches)
    its = fl.simulate(network, case.machine, choice.strategy, costs="analytic")
    row: Row = {
        "case": case.name,
        "who": choice.who,
        "seconds": round(choice.took.clock, 1),
        "core_seconds": round(choice.took.cores, 1),
        "micro_batches": choice.micro_batches,
        "in_words": its.setting.in_words(its.strategy),
        "iteration_ms": round(its.iteration_time_ns / 1e6, 1),
        "fits": its.fits,
        "memory_gib": round(max(its.timeline.allocated_bytes.values()) / GIB, 1),
        "expected_ms": None if choice.expected_ns is None else round(choice.expected_ns / 1e6, 1),
        "note": choice.note,
    }
    try:
        program = fl.simulate_program(network, case.machine, choice.strategy)
    except UserError as e:
        return row | {"why_no_program": str(e)}
    return row | {
        "program_ms": round(program.iteration_time_ns / 1e6, 1),
        "program_gib": round(program.needed_bytes / GIB, 1),
        "program_fits": program.fits,
    }


def rows_of(case: Case, args: argparse.Namespace, there: list[Row]) -> Iterator[Row]:
    """Everybody's choices for a case, and the reasons of who gave none.

    Those of an earlier run that are `there` are not made again.
    """
    asked: dict[str, Callable[[], Iterator[Choice]]] = {
        f"our search, {args.budget}": partial(ours, case, args.budget)
    }
    asked |= {f"`{name}`": partial(known, case, name) for name in KNOWN}
    if args.alpa:
        solver = alpa_solver.solver_of(args.alpa, seconds_of(args.budget))
        asked["Alpa's solver, no pipeline"] = partial(alpa, case, solver)
    if args.galvatron:
        asked["Galvatron"] = partial(galvatron, case, args.galvatron, args.patience)
    for who, choices in asked.items():
        if its := [row for row in there if row["who"].startswith(who)]:
            yield from its
            continue
        try:
            for choice in choices():
                yield row_of(case, choice)
        except UserError as e:
            yield {"case": case.name, "who": who, "why_not": str(e)}
    for who, folder in (("Galvatron", args.galvatron), ("Alpa", args.alpa)):
        if not folder:
            yield {"case": case.name, "who": who, "why_not": "not run: its sources were not named"}


COLUMNS = (
    "who",
    "to a strategy",
    "of a core",
    "which",
    "micro-batches",
    "simulated",
    "beside ours",
    "on NCCL",
    "expected",
)


def cells(row: Row, fastest_ms: float) -> list[str]:
    """A row of a table; ours is the fastest, beside which the others are."""
    if "why_not" in row:
        return [row["who"], "", "", row["why_not"], "", "", "", "", ""]
    time_ms, program_ms = row["iteration_ms"], row.get("program_ms")
    return [
        row["who"],
        f"{row['seconds']:,.0f} s",
        "" if row["core_seconds"] is None else f"{row['core_seconds']:,.0f} s",
        row["in_words"].partition(f"; {row['micro_batches']} micro")[0],
        str(row["micro_batches"]),
        time_or_memory(time_ms, row["fits"], row["memory_gib"]),
        f"{time_ms / fastest_ms:.2f}x",
        "" if program_ms is None else time_or_memory(program_ms, *of_program(row)),
        "" if row["expected_ms"] is None else f"{row['expected_ms']:,.0f} ms",
    ]


def of_program(row: Row) -> tuple[bool, float]:
    """Whether a program fits, and what it needs; if a row lacks that, as our runtime, with more."""
    if "program_gib" in row:
        return row["program_fits"], row["program_gib"]
    return row["fits"], row["memory_gib"]


def time_or_memory(time_ms: float, fits: bool, needed_gib: float) -> str:
    """A time; of what does not fit, what it needs."""
    return f"{time_ms:,.0f} ms" + ("" if fits else f", if {needed_gib:g} GiB did fit")


def tables(rows: list[Row]) -> Iterator[tuple[str, list[list[str]]]]:
    """A case's name, and its cells."""
    for name in dict.fromkeys(row["case"] for row in rows):
        its = [row for row in rows if row["case"] == name]
        yield name, [cells(row, its[0].get("iteration_ms", 0)) for row in its]


def markdown(document: Mapping[str, Any], case: str) -> str:
    """The table of a case, from what was written."""
    its = dict(tables(document["rows"]))[case]
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in its)])


def rows_there(file: Path | None) -> list[Row]:
    """What a file has of an earlier run, if there is one.

    Raises
    ------
    UserError
        If it is something else.
    """
    if file is None or not file.exists():
        return []
    like = "as this command writes it"
    found = read_json(file, "report", "name another file", like)
    try:
        rows: list[Row] = [row for row in found["rows"] if row["case"] and row["who"]]
    except (KeyError, TypeError):
        raise UserError(f"{file}: not a report, {like}; name another file") from None
    return rows


def main() -> int:
    """Run the cases, print tables, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(case.name for case in CASES)
    parser.add_argument("--galvatron", type=Path, help="the folder of its sources")
    parser.add_argument("--alpa", type=Path, help="the folder of its sources")
    parser.add_argument(
        "--budget", default="60s", help="of our search, and of each of Alpa's programmes; 60s"
    )
    parser.add_argument(
        "--patience",
        type=seconds_of,
        default="20m",
        help="with Galvatron's search layer by layer; default: 20m",
    )
    parser.add_argument("--only", default="", help=f"cases with this in their names: {names}")
    parser.add_argument(
        "--json", type=Path, help="write all results there; what a file has is not run again"
    )
    args = parser.parse_args()
    rows: list[Row] = []
    try:
        seconds_of(args.budget)
        chosen = [case for case in CASES if args.only in case.name]
        if not chosen:
            raise UserError(f"no case has '{args.only}' in its name; the cases are {names}")
        if args.galvatron:
            galvatron_search.engine_of(args.galvatron)
        if args.alpa:
            alpa_solver.solver_of(args.alpa, seconds_of(args.budget))
        asked = {case.name for case in chosen}
        there = [
            row
            for row in rows_there(args.json)
            if row["case"] not in asked or "why_not" not in row  # which may be another reason now
        ]
        for case in chosen:
            for row in rows_of(case, args, [row for row in there if row["case"] == case.name]):
                rows.append(row)
                print(row, file=sys.stderr)
                if args.json:
                    left = [row for row in there if row not in rows]
                    write_rows(args.json, {"batch": BATCH, "rows": [*rows, *left]})
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.status
    for name, its in tables(rows):
        table = Table(title=name)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("who", "which") else "right")
        for line in its:
            table.add_row(*line)
        Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
