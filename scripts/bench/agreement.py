"""Whether plan, simulator and Legion agree, under strategies that split reductions.

    python scripts/bench/agreement.py [--networks mlp,alexnet] [--ranks 1,2]

A row a strategy: bytes that an iteration moves between memories, bytes that a process holds after
training and prediction, and launches that an iteration issues. In one process, four GPUs in
software train (scripts/test.sh builds them), and what Legion copied is told by its own profiling.
On several ranks, processors train, and what Realm hands to UCX is added up (common/ucx_bytes.cc);
some 25 kB an iteration are for its own purposes. Status 1 if bytes in one process or launches
differ at all, memory by 0.5 %, or bytes between ranks by 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from common.sides import BENCH, ROOT, environment, legate
from common.workloads import Workload

from flexlegion.console.text import table
from flexlegion.zoo import ZOO

SOFT_GPU = ROOT / "build" / "cuda" / "tests" / "soft_gpu"
GPUS = 4
BATCH_SIZE = 8
MEMORY, BETWEEN_RANKS = 0.005, 0.01  # bounds
HELD = ("simulator", "plan")  # both say what memory Legion takes
# Large enough that the data outweighs the messages about it.
SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"input_shape": (512,), "hidden": (2048, 2048), "classes": 512},
    "transformer": {"steps": 64, "layers": 2, "hidden": 512, "heads": 8, "vocabulary": 5000},
}


def workload(name: str) -> Workload:
    """A network at the sizes of the sample that comes along."""
    sizes = SIZES.get(name, ZOO[name].sample_sizes)
    return Workload(name, BATCH_SIZE, 1, sizes, samples=BATCH_SIZE)


def counter(folder: str) -> Path:
    """The library that counts bytes, compiled with the headers of the UCX that Legion uses."""
    library = Path(folder) / "ucx_bytes.so"
    include = Path(import_module("libucx").__path__[0]) / "include"
    source = BENCH / "common" / "ucx_bytes.cc"
    command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{include}", str(source)]
    subprocess.run([*command, "-o", str(library), "-ldl"], check=True)
    return library


def trained(args: argparse.Namespace, ranks: int) -> list[dict[str, Any]]:
    """What workers find; of several ranks, all bytes together."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result"
        works = json.dumps([workload(name).to_json() for name in args.networks.split(",")])
        options = ["--workloads", works, "--strategies", args.strategies, "--out", str(out)]
        gpus = GPUS if ranks == 1 else 0
        variables = {}
        if gpus:
            libraries = f"{SOFT_GPU}:{os.environ.get('LD_LIBRARY_PATH', '')}"
            variables = {"LD_LIBRARY_PATH": libraries, "SOFT_GPUS": str(gpus)}
        else:
            options += ["--counter", str(counter(folder))]
        command = legate("agreement_worker.py", 1, *options, sysmem=3000, gpus=gpus, ranks=ranks)
        memory = ["--fbmem", "1500", "--zcmem", "128"] if gpus else []
        subprocess.run(
            [command[0], *memory, *command[1:]],
            env=environment() | variables,
            check=True,
            stdout=sys.stderr,
        )
        found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]
    results = []
    for one in zip(*found, strict=True):
        first: dict[str, Any] = one[0]
        first["moved"]["legion"] = sum(other["moved"]["legion"] for other in one)
        first["memory"] = {name: held for other in one for name, held in other["memory"].items()}
        results.append(first)
    return results


def off(value: int, truth: int) -> float:
    """By how much, of the truth."""
    return abs(value - truth) / max(truth, 1)


def wrong(result: dict[str, Any], ranks: int) -> list[str]:
    """What is beyond its bound."""
    moved, launches = result["moved"], result["launches"]
    found = []
    if moved["plan"] != moved["simulator"]:
        found.append("bytes of plan and simulator")
    if off(moved["simulator"], moved["legion"]) > (BETWEEN_RANKS if ranks > 1 else 0):
        found.append("bytes moved")
    if len(set(launches.values())) > 1:
        found.append("launches")
    for said in HELD:
        if worst_memory(result, said) > MEMORY:
            found.append(f"memory, {said}")
    return found


def worst_memory(result: dict[str, Any], said: str) -> float:
    """The largest error of a device's memory; those that hold next to nothing do not count."""
    devices = result["memory"].values()
    most = max(held["legion"] for held in devices)
    return max(off(held[said], held["legion"]) for held in devices if held["legion"] > most / 100)


def main() -> int:
    """All networks and strategies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default="mlp,alexnet,transformer,rnnlm")
    parser.add_argument("--strategies", default="megatron,random:1,random:2,random:3")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks; default: 1,2")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    rows, results, failures = [], [], 0
    for ranks in map(int, args.ranks.split(",")):
        for result in trained(args, ranks):
            moved, launches, sums = result["moved"], result["launches"], result["sums"]
            beyond = wrong(result, ranks)
            failures += len(beyond)
            results.append(result | {"ranks": ranks, "wrong": beyond})
            rows.append(
                (
                    f"{ranks} rank{'s' * (ranks > 1)}",
                    result["network"],
                    result["strategy"],
                    f"{sums.count('readers')}, {sums.count('shards')}",
                    *(f"{moved[side]:,}" for side in ("plan", "simulator", "legion")),
                    f"{off(moved['simulator'], moved['legion']):.2%}",
                    *(f"{worst_memory(result, said):.2%}" for said in HELD),
                    ", ".join(map(str, launches.values())),
                    "; ".join(beyond) or "-",
                )
            )
    heads = ("on", "network", "strategy", "sums", "moved: plan", "simulator", "Legion")
    print(
        table(
            (*heads, "off", "held: simulator", "plan", "launches", "beyond"),
            rows,
            (0, 1, 2, 12),
        )
    )
    print("sums: operators with partial values, combined by readers, by shards")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
