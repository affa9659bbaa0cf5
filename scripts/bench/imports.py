"""Imported PyTorch models beside PyTorch, and what a search finds for them.

For each model of torch_models.py: the import; three steps of training from the same weights on one
processor, and under random strategies on three, beside PyTorch's in double precision; then
``flexlegion search``, ``explain`` and ``compare`` on a machine of 16 P100. What is missing is said.

    python scripts/bench/imports.py --out build/imports [--models resnet50 bert] [--json]

Results are kept in the folder `--out`, a file a model; a second run does what is left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from imports_case import differences, own_precision, reference
from rich.console import Console
from rich.table import Table
from torch_models import MODELS, OWN_CHOICE

from flexlegion.errors import UserError
from flexlegion.importers import from_torch

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
STRATEGIES = tuple(f"random:{seed}" for seed in range(3))


def main() -> None:
    """Do what is left, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/imports"))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--machine", default="p100x16")
    parser.add_argument("--budget", default="30s")
    parser.add_argument("--no-search", action="store_true", help="train alone")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = {name: _model(name, args) for name in args.models}
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        Console(width=150).print(table(results))


def _model(name: str, args: argparse.Namespace) -> dict[str, Any]:
    file = args.out / f"{name}.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if "trained" not in result and "missing" not in result:
        result |= _trained(name, args.out)
    if "missing" not in result and "speedup" not in result and not args.no_search:
        result |= _searched(name, args)
    file.write_text(json.dumps(result, indent=2))
    print(f"{name}: {json.dumps(result)[:300]}", file=sys.stderr, flush=True)
    return result


def _trained(name: str, out: Path) -> dict[str, Any]:
    module, example = MODELS[name]()
    try:
        operators = len(from_torch(module, example).graph.operators)
    except UserError as e:
        return {"missing": str(e)}
    saved: dict[str, Any] = {}
    for cpus, strategies in ((1, ("single",)), (3, STRATEGIES)):
        file = out / f"{name}.{cpus}.npz"
        machine = ["--cpus", str(cpus), "--gpus", "0", "--sysmem", "6000"]
        worker = [str(HERE / "imports_worker.py"), str(file), name, *strategies]
        environment = os.environ | {"PYTHONPATH": str(HERE)}
        subprocess.run([str(BIN / "legate"), *machine, *worker], env=environment, check=True)
        with np.load(file) as arrays:
            saved |= {key.removeprefix(f"{name}/"): value for key, value in arrays.items()}
        file.unlink()
        if "error" in saved:
            return {"failed": str(saved["error"])}
    orders = {k.removeprefix("order/"): list(v) for k, v in saved.items() if k.startswith("order/")}
    module, example = MODELS[name]()
    expected = reference(module, example, orders)
    module, example = MODELS[name]()
    own = own_precision(reference(module, example, orders, double=False), expected)
    result: dict[str, Any] = {"trained": True, "operators": operators, "torch_change_error": own}
    result["import_s"] = float(saved["import_s"])
    for key, strategies in (("one", ("single",)), ("three", STRATEGIES)):
        found = [differences(saved, strategy, expected) for strategy in strategies]
        result[f"{key}_loss_error"] = max(loss for loss, _, _ in found)
        result[f"{key}_change_error"] = max(change for _, change, _ in found)
        result[f"{key}_failures"] = [failure for _, _, failures in found for failure in failures]
    return result


def _searched(name: str, args: argparse.Namespace) -> dict[str, Any]:
    strategy = args.out / f"{name}.strategy.json"
    model = f"{HERE / 'torch_models.py'}:{name}"
    options = ["--model", model, "--machine", args.machine]
    result: dict[str, Any] = {}
    for command in (
        ["search", *options, "--budget", args.budget, "--out", str(strategy)],
        ["explain", str(strategy), "--model", model],
        ["compare", str(strategy), *options],
    ):
        done = _run([str(BIN / "flexlegion"), *command, "--json"])
        if done.returncode:
            return {"search_failed": f"{command[0]}: {done.stderr.strip()[-300:]}"}
        if command[0] == "search":
            found = json.loads(done.stdout)
            result["search"] = found
    return result | {"speedup": _speedup(result.pop("search"))}


def _speedup(found: dict[str, Any]) -> float | None:
    """Of what was found over data parallelism."""
    times = found.get("baselines_ns", found.get("baselines", {}))
    data = times.get("data")
    best = found.get("iteration_time_ns")
    return data / best if data and best else None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def table(results: dict[str, dict[str, Any]]) -> Table:
    """One row a model."""
    result = Table(
        "model", "operators", "import s", "loss", "change", "PyTorch fp32", title="imports"
    )
    for column in ("3 processors: loss", "change", "speed-up"):
        result.add_column(column)
    for name, found in results.items():
        label = f"{name} *" if name in OWN_CHOICE else name
        if "trained" not in found:
            why = found.get("missing") or found.get("failed") or ""
            result.add_row(label, f"missing: {why[:110]}")
            continue
        numbers = [
            str(found["operators"]),
            f"{found['import_s']:.1f}",
            f"{found['one_loss_error']:.0e}",
            f"{found['one_change_error']:.0e}" + "!" * bool(found["one_failures"]),
            f"{found['torch_change_error']:.0e}",
            f"{found['three_loss_error']:.0e}",
            f"{found['three_change_error']:.0e}" + "!" * bool(found["three_failures"]),
            f"{found['speedup']:.2f}" if found.get("speedup") else found.get("search_failed", ""),
        ]
        result.add_row(label, *numbers)
    return result


if __name__ == "__main__":
    main()
