r"""Which kernels a network's iteration takes on a GPU, and how long: runs under legate.

    legate --gpus 1 --fbmem 40000 scripts/bench/workers/kernels_worker.py \
        --workload '{"network": "resnet101", "batch_size": 64, "iterations": 5, "samples": 256}' \
        --precision tf32 --storage bf16

PyTorch's profiler sees all kernels of a process, whoever started them. Answers in one JSON line:
the time of an iteration, how long the GPU computed, and the time and number of each kernel, of an
iteration.
"""

from __future__ import annotations

import argparse
import json
import re

from common.processes import turn
from common.rounds import seconds_of_round
from common.workloads import LEARNING_RATE, Workload

from flexlegion import SGD, set_threads
from flexlegion.zoo import ZOO


def short(kernel: str) -> str:
    """A kernel's name, without its types; of our own loops, the function whose body it runs."""
    ours = re.search(r"run_(each|teams)<.*?flexlegion::gpu::(.*)", kernel)
    if ours:
        inside = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", ours[2])
        return f"{ours[1]} {inside[:110]}"
    return kernel.removeprefix("void ")[:110]


def main() -> None:
    """Train a round without and one with the profiler."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--strategy", default="data")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--storage", default="fp32")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU processor; default: 1")
    parser.add_argument("--turn", metavar="FILE", help="compute when others who know it do not")
    args = parser.parse_args()
    set_threads(args.threads)
    work: Workload = args.workload
    model = work.model()
    how = {"precision": args.precision, "storage": args.storage}
    model.compile(SGD(LEARNING_RATE), ZOO[work.network].loss, strategy=args.strategy, **how)
    program = model.program
    data, _ = model.bind(*work.data())

    def one_round(number: int) -> float:
        return seconds_of_round(program, work, data, number)

    with turn(args.turn):
        one_round(0)  # warm
    import torch  # after our own libraries, whose versions of cuBLAS and cuDNN it shares

    with turn(args.turn):
        one_round(1)
        seconds = one_round(2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            profiled = one_round(3)
    kernels: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type.name != "CUDA":
            continue
        its = kernels.setdefault(short(event.name), [0.0, 0])
        its[0] += event.device_time / work.iterations
        its[1] += 1 / work.iterations
    listed = sorted(((us, n, name) for name, (us, n) in kernels.items()), reverse=True)
    result = {
        "network": work.network,
        "precision": args.precision,
        "storage": args.storage,
        "iteration_us": 1e6 * seconds / work.iterations,
        "profiled_iteration_us": 1e6 * profiled / work.iterations,
        "kernels_us": sum(us for us, _, _ in listed),
        "kernels": listed,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
