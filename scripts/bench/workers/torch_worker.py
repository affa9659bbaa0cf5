"""One side of a benchmark: PyTorch. Reads ``round N`` lines, answers samples/s as JSON.

With ``--processes``, DistributedDataParallel over gloo: the first process starts the others, and
hands them the lines that it reads.

With ``--device cuda``, samples lie in the GPU's memory, as if a loader took no time; the precision
bf16 is autocast's, which keeps activations in two bytes, and tf32 is that of all products.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from common.processes import turn
from common.workloads import LEARNING_RATE, Workload
from pytorch import zoo as torch_zoo

PRODUCT = 4096  # rows and columns of the matrices that measure the machine's peak


def finish(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def set_precision(precision: str) -> None:
    """How products of float32 on GPUs compute."""
    tf32 = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def peak(device: str, precision: str) -> float:
    """GFLOP/s of large matrix products, with all of the process's threads; the best of three."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.rand(PRODUCT, PRODUCT, device=device, dtype=kind) for _ in range(2))
    out = torch.empty(PRODUCT, PRODUCT, device=device, dtype=kind)
    seconds = []
    for _ in range(3):
        finish(device)
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        finish(device)
        seconds.append(time.perf_counter() - started)
    return 2 * PRODUCT**3 / min(seconds) / 1e9


def training(args: argparse.Namespace) -> Callable[[int], float]:
    """A function that trains for one round and returns this process's samples/s."""
    work: Workload = args.workload
    torch.manual_seed(0)
    inputs, labels = work.data()
    xs, y = [torch.from_numpy(array) for array in inputs], torch.from_numpy(labels).long()
    xs = [x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x for x in xs]
    xs, y = [x.to(args.device) for x in xs], y.to(args.device)
    model: torch.nn.Module = torch_zoo.build(work.network, work.sizes).to(args.device)
    if args.channels_last:
        xs = [x.contiguous(memory_format=torch.channels_last) for x in xs]
        # PyTorch documents this call, but its stubs lack the overload.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if args.processes > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, fused=True)
    mode = "reduce-overhead" if args.device == "cuda" else None  # as CUDA graphs
    run: Callable[..., torch.Tensor] = torch.compile(model, mode=mode) if args.compiled else model

    def one_round(number: int) -> float:
        rows = [
            torch.from_numpy(r[args.rank :: args.processes]).to(args.device)
            for r in work.batch_rows(number)
        ]
        finish(args.device)
        started = time.perf_counter()
        for index in rows:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
                loss = torch_zoo.loss_of(work.network, run(*(x[index] for x in xs)), y[index])
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's stubs
            optimizer.step()
        loss.item()
        return sum(map(len, rows)) / (time.perf_counter() - started)

    return one_round


class Others:
    """The other processes of the first one's group."""

    def __init__(self, args: argparse.Namespace, port: int) -> None:
        command = [sys.executable, *sys.argv, "--port", str(port)]
        self.processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(1, args.processes)
        ]

    def tell(self, line: str) -> None:
        """Hand a line on."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Serve rounds until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of each process")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--turn", metavar="FILE", help="warm up when others who know it do not")
    parser.add_argument("--peak", action="store_true", help="measure only matrix products")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, help="where the first process of a group listens")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    set_precision(args.precision)
    if args.peak:
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"gflops": peak(args.device, args.precision)}), flush=True)
        return
    others = None
    if args.processes > 1:
        port = args.port or free_port()
        if args.rank == 0:
            others = Others(args, port)
        torch.distributed.init_process_group(
            "gloo", f"tcp://127.0.0.1:{port}", rank=args.rank, world_size=args.processes
        )
    one_round = training(args)
    if args.compiled and args.turn:
        one_round(0)  # compile
    with turn(args.turn):
        torch.backends.cudnn.benchmark = True  # cuDNN chooses its algorithms by trying them
        one_round(0)  # warm
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if others is not None:
            others.tell(line)
        rate = one_round(int(line.split()[1])) * args.processes
        print(json.dumps({"samples_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
