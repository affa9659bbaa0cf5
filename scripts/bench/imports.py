"""Imported PyTorch models beside PyTorch, and what a search finds for them.

For each model of pytorch/models.py: the import, and which share of its processor time the check
takes that the model is the module; three steps of training from the same weights on
one processor, and under random strategies on three, beside PyTorch's in double precision (deep
ones with fewer blocks, pytorch/small.py); then ``flexlegion search``, ``explain`` and ``compare``
on a machine of 16 P100. What is missing is said.

    python scripts/bench/imports.py --out build/imports [--models resnet50 bert] [--json]
    python scripts/bench/imports.py --onnx --out build/imports-onnx [...]

With --onnx, torch.onnx.export writes each model to a file, which is what is imported then.

Results are kept in the folder `--out`, a file a model; a second run does what is left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from common.sides import BENCH, WORKERS, environment
from imports_case import (
    CASES,
    Arrays,
    Case,
    differences,
    export_onnx,
    network,
    own_error,
    reference,
    samples_of,
)
from pytorch.models import MODELS, OWN_CHOICE
from rich.console import Console
from rich.table import Table

from flexlegion.base.errors import UserError
from flexlegion.importers import from_onnx, from_torch, torch_reference
from flexlegion.importers.export import export

BIN = Path(sys.executable).parent
COLUMNS = (
    "operators",
    "import_s",
    "check_share",
    "one_loss_error",
    "one_change_error",
    "three_loss_error",
    "three_change_error",
    "torch_change_error",
    "rate",
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
    parser.add_argument("--onnx", action="store_true", help="by files; training alone")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.no_search = args.no_search or args.onnx
    args.out.mkdir(parents=True, exist_ok=True)
    results = {name: _kept(name, args.out) for name in args.models}
    if not args.no_training:
        _train([name for name in results if not {"trained", "missing"} & set(results[name])], args)
    for name in args.models:
        results[name] = _kept(name, args.out)
        if not args.no_search and not {"missing", "speedup"} & set(results[name]):
            results[name] |= _searched(name, args)
            _keep(name, results[name], args.out)
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        Console(width=150).print(table(results))


def _kept(name: str, out: Path) -> dict[str, Any]:
    file = out / f"{name}.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return result


def _keep(name: str, result: dict[str, Any], out: Path) -> None:
    (out / f"{name}.json").write_text(json.dumps(result, indent=2))
    print(f"{name}: {json.dumps(result)[:300]}", file=sys.stderr, flush=True)


def _imported(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """How many operators the import has, how long it takes beyond the exporter, and the check."""
    if args.onnx:
        return _imported_onnx(name, args.out / f"{name}.onnx")
    module, example = MODELS[name]()
    exporting = export(module, example)
    exported, samples = exporting.program, exporting.samples
    started = time.perf_counter()
    try:
        model = from_torch(exported, batch_size=samples)
    except UserError as e:
        return {"missing": str(e)}
    seconds = time.perf_counter() - started
    return {"operators": len(model.graph.operators), "import_s": seconds} | _check(module, example)


def _check(module: Any, example: Any) -> dict[str, Any]:
    """What comparing a model with its module takes of the whole import, in processor time."""
    in_check, check = 0.0, torch_reference.check_torch

    def timed(*args: Any) -> str | None:
        nonlocal in_check
        begun = time.process_time()
        unchecked = check(*args)
        in_check = time.process_time() - begun
        return unchecked

    with mock.patch.object(torch_reference, "check_torch", timed):
        begun = time.process_time()
        model = from_torch(module, example)
        seconds = time.process_time() - begun
    assert model.origin is not None
    notes = [note for note in model.origin.notes if "not checked" in note]
    its = {"import_cpu_s": seconds, "check_cpu_s": in_check, "check_share": in_check / seconds}
    return its | ({"unchecked": notes} if notes else {})


def _imported_onnx(name: str, path: Path) -> dict[str, Any]:
    """The same of a file, which is written by the way."""
    module, example = network(name, CASES.get(name, Case()))
    try:
        export_onnx(module, example, str(path))
    except Exception as e:
        lines = str(e).strip().splitlines() or [type(e).__name__]
        return {"missing": f"torch.onnx.export: {lines[0]}"}
    started = time.perf_counter()
    try:
        model = from_onnx(path, batch_size=samples_of(example))
    except UserError as e:
        return {"missing": str(e)}
    seconds = time.perf_counter() - started
    return {"operators": len(model.graph.operators), "import_s": seconds}


def _train(names: list[str], args: argparse.Namespace) -> None:
    """Train models beside PyTorch, in two runs under legate, which takes time to start."""
    found = {name: _kept(name, args.out) | _imported(name, args) for name in names}
    expected = {}
    for name, result in found.items():
        if "missing" in result:
            continue
        case = CASES.get(name, Case())
        module, example = network(name, case)
        torch.save(module.state_dict(), args.out / f"{name}.pt")
        expected[name] = reference(module, example, case.rate)
        loss, change = own_error(module, example, case.rate, expected[name])
        result |= {"rate": case.rate, "seed": case.seed}
        result |= {"torch_loss_error": loss, "torch_change_error": change}
    for key, cpus, strategies in (("one", 1, ("single",)), ("three", 3, STRATEGIES)):
        if expected:
            machine = ["--cpus", str(cpus), "--gpus", "0", "--sysmem", "6000"]
            form = "onnx:" if args.onnx else ""
            models = ",".join(f"{form}{name}" for name in expected)
            worker = [str(WORKERS / "imports_worker.py"), str(args.out), models]
            legate = [str(BIN / "legate"), *machine, *worker, *strategies]
            subprocess.run(legate, env=environment(), check=True)
        for name, wanted in expected.items():
            file = args.out / f"{name}{'.onnx' if args.onnx else ''}.npz"
            with np.load(file) as saved:
                found[name] |= _compared(key, dict(saved), strategies, wanted)
            file.unlink()
    for name, result in found.items():
        for left in args.out.glob(f"{name}.pt"), args.out.glob(f"{name}.onnx*"):
            for file in left:
                file.unlink()
        _keep(
            name,
            result | ({} if {"missing", "failed"} & set(result) else {"trained": True}),
            args.out,
        )


def _compared(
    key: str, saved: Arrays, strategies: Sequence[str], expected: Arrays
) -> dict[str, Any]:
    if "error" in saved:
        return {"failed": str(saved["error"])}
    found = [differences(saved, strategy, expected) for strategy in strategies]
    return {
        f"{key}_loss_error": max(loss for loss, _, _ in found),
        f"{key}_change_error": max(change for _, change, _ in found),
        f"{key}_failures": [failure for _, _, failures in found for failure in failures],
    }


def _searched(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A search, and that its strategy can be explained and compared with others."""
    strategy = str(args.out / f"{name}.strategy.json")
    model = ["--model", f"{BENCH / 'imported.py'}:{name}"]
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
    result = Table("model", "operators", "import s", "check", "loss", "change", title="imports")
    for column in ("3 processors: loss", "change", "PyTorch fp32", "rate", "speed-up"):
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
