"""Random strategies of the zoo as programs for DTensor and JAX: a table.

    python tests/long/exports.py [--strategies 1000] [--run 50] [--modules 3] [--seed 0]

Of each network of tests/support/zoo_cases.py in turn, on four devices, a strategy that is random in
everything, or one that is random within what the target can express. Each is written as a program
for one of the targets; each operator is divided as the strategy says, or named with a reason. Some
of the programs run, three steps in four processes or on four host devices: losses, outputs,
gradients and weights beside the program of one device, in double precision.

Then each imported module of tests/support/arranged_modules.py, whose data, outputs and labels are
arranged as the module's, runs under several such strategies: first loss, outputs and gradients
beside PyTorch's. Exits with 1 if anything differs. A quarter of an hour.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from arranged_modules import cases
from arranged_programs import imported, write, wrong
from exported import (
    ZOO_CASE,
    differences,
    give,
    network_named,
    random_allowed,
    result,
    run,
    setting_of,
)
from zoo_cases import CASES

from flexlegion.analysis.export import Exported, program_of
from flexlegion.analysis.setting import Given
from flexlegion.base.errors import UserError
from flexlegion.console.text import table
from flexlegion.exporters.targets import TARGETS
from flexlegion.known_strategies import named

DEVICES = 4
TOLERANCE = 1e-7  # in double precision


def exported(name: str, to: str, seed: int) -> Exported:
    """One program; every other strategy is within what the target can express."""
    network = network_named(name)
    setting = setting_of(network, DEVICES)
    allowed = seed // len(TARGETS) % 2 == 1
    strategy = (
        random_allowed(network, DEVICES, to, seed)
        if allowed
        else named(f"random:{seed}", setting.problem)
    )
    done = program_of(Given.inside(setting, strategy), to)
    ast.parse(done.text)
    replaced = {operator for each in done.replaced for operator in each.operators}
    if allowed and replaced:
        raise AssertionError(f"{name}, seed {seed}: {replaced} need not be replaced")
    for operator in strategy:
        if done.strategy[operator] != strategy[operator] and operator not in replaced:
            raise AssertionError(f"{name}, seed {seed}: {operator} is replaced without a word")
    return done


def modules(strategies: int, first: int) -> tuple[int, list[str]]:
    """How many programs of imported modules ran, each under so many strategies; what differs."""
    failures, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for to in TARGETS:
            programs = []
            for name, case in cases().items():
                model = imported(case)
                for seed in range(first, first + strategies):
                    at = Path(folder) / f"{to}_{len(programs)}"
                    write(model, case, at, to, DEVICES, seed)
                    programs.append((name, model, case, at))
            run(to, DEVICES, Path(folder), [at.name for *_, at in programs])
            for name, model, case, at in programs:
                failures += [f"{name}, {to}: {difference}" for difference in wrong(model, case, at)]
            count += len(programs)
    return count, failures


def main() -> None:
    """Write them, run some, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategies", type=int, default=1000, help="default: 1000")
    parser.add_argument("--run", type=int, default=50, help="of these, run; default: 50")
    parser.add_argument("--modules", type=int, default=3, help="strategies of each; default: 3")
    parser.add_argument("--seed", type=int, default=0, help="the first; default: 0")
    args = parser.parse_args()
    names = [f"{ZOO_CASE}{name}" for name in CASES]
    counts: dict[tuple[str, str], Counter[str]] = {}
    failures: list[str] = []
    chosen: dict[str, list[tuple[str, str]]] = {to: [] for to in TARGETS}
    every = max(1, args.strategies // args.run)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for seed in range(args.seed, args.seed + args.strategies):
            to = TARGETS[seed % len(TARGETS)]
            name = names[seed // len(TARGETS) % len(names)]
            its = counts.setdefault((name, to), Counter())
            try:
                done = exported(name, to, seed)
            except UserError as e:
                its["refused"] += 1
                print(f"{name}, {to}: {e}")
                continue
            its["written"] += 1
            its["operators"] += len(done.strategy)
            its["replaced"] += sum(len(each.operators) for each in done.replaced)
            if seed // len(TARGETS) % every == 0:
                label = f"{name}.{to}.{seed}"
                give(at, label, name, done.text, double=True)
                chosen[to].append((name, label))
        for to, its_programs in chosen.items():
            ones = sorted({name for name, _ in its_programs})
            for name in ones:
                its_setting = setting_of(network_named(name), 1)
                one = program_of(Given.inside(its_setting, "single"), to).text
                give(at, f"{name}.{to}.one", name, one, double=True)
            run(to, 1, at, [f"{name}.{to}.one" for name in ones])
            run(to, DEVICES, at, [label for _, label in its_programs])
            for name, label in its_programs:
                found = differences(result(at, label), result(at, f"{name}.{to}.one"), TOLERANCE)
                counts[name, to]["run"] += 1
                counts[name, to]["differ"] += bool(found)
                failures += [f"{label}: {difference}" for difference in found[:3]]
    columns = ("network", "target", "written", "refused", "operators", "replaced", "run", "differ")
    rows = [
        (name.removeprefix(ZOO_CASE), to, *(f"{its[column]:,}" for column in columns[2:]))
        for (name, to), its in sorted(counts.items())
    ]
    print(table(columns, rows, (0, 1)))
    print("\n".join(failures))
    total = sum((its for its in counts.values()), Counter())
    print(
        f"{total['written']:,} written, {total['refused']:,} refused; of {total['operators']:,} "
        f"operators {total['replaced']:,} are divided otherwise; {total['run']} run, "
        f"{total['differ']} differ"
    )
    count, different = modules(args.modules, args.seed)
    print("\n".join(different))
    print(f"{count} programs of imported modules run, {len(different)} differences")
    failures += different
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
