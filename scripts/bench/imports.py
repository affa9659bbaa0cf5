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
from imports_case import differences, own_precision, reference, rounding_share
from rich.console import Console
from rich.table import Table
from torch_models import MODELS, OWN_CHOICE

from flexlegion.errors import UserError
from flexlegion.importers import from_torch

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
COLUMNS = (
    "operators",
    "import_s",
    "one_loss_error",
    "one_change_error",
    "torch_change_error",
    "rounding_share",
    "three_loss_error",
    "three_change_error",
    "speedup",
)
STRATEGIES = tuple(f"random:{seed}" for seed in range(3))


def main() -> None:
    """Do what is left, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/imports"))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--machine", default="p100x16")
    parser.add_argument("--budget", default="30s")
    parser.add_argument("--compare-budget", default="5s", help="of each search in compare")
    parser.add_argument("--no-search", action="store_true", help="train alone")
    parser.add_argument("--no-training", action="store_true", help="search alone")
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
    if not {"trained", "missing"} & set(result) and not args.no_training:
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
    result["rounding_share"] = rounding_share(expected)
    result["import_s"] = float(saved["import_s"])
    for key, strategies in (("one", ("single",)), ("three", STRATEGIES)):
        found = [differences(saved, strategy, expected) for strategy in strategies]
        result[f"{key}_loss_error"] = max(loss for loss, _, _ in found)
        result[f"{key}_change_error"] = max(change for _, change, _ in found)
        result[f"{key}_failures"] = [failure for _, _, failures in found for failure in failures]
    return result


def _searched(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A search, and that its strategy can be explained and compared with others."""
    strategy = str(args.out / f"{name}.strategy.json")
    model = ["--model", f"{HERE / 'imported.py'}:{name}"]
    machine = ["--machine", args.machine]
    search = _run("search", *model, *machine, "--budget", args.budget, "--out", strategy)
    if isinstance(search, str):
        return {"search_failed": search}
    for done in (
        _run("explain", strategy, *model),
        _run("compare", *model, *machine, "--budget", args.compare_budget),
    ):
        if isinstance(done, str):
            return {"search_failed": done}
    found, data = search["iteration_time_ns"], search["data_parallel_time_ns"]
    return {"found_ns": found, "data_parallel_ns": data, "speedup": data / found}


def _run(command: str, *args: str) -> dict[str, Any] | str:
    """What a command prints as JSON, or its error."""
    words = [str(BIN / "flexlegion"), command, *args, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{command}: {done.stderr.strip()[-300:]}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def table(results: dict[str, dict[str, Any]]) -> Table:
    """One row a model."""
    result = Table(
        "model", "operators", "import s", "loss", "change", "PyTorch fp32", title="imports"
    )
    for column in ("rounding", "3 processors: loss", "change", "speed-up"):
        result.add_column(column)
    for name, found in results.items():
        label = f"{name} *" if name in OWN_CHOICE else name
        if "missing" in found or "failed" in found:
            why = found.get("missing") or found.get("failed") or ""
            result.add_row(label, f"missing: {why[:110]}")
            continue
        result.add_row(label, *(_number(found.get(column)) for column in COLUMNS))
    return result


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if 0 < abs(value) < 1e-2 else f"{value:.4g}"


if __name__ == "__main__":
    main()
