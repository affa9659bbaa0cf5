"""The steps of scripts/gpu_check.sh, each a process with a time limit, and what came of them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from common.guardian import guarded
from common.processes import descendants

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
NATIVE = BUILD / "native"  # where the package finds libraries and headers
RUNTIME_TESTS, SUPPORT = ROOT / "tests" / "runtime", ROOT / "tests" / "support"
SECONDS = 580  # for everything; less than the ten minutes that the script promises
AT_ONCE = 4  # steps that check results, not speed, run beside each other
FBMEM = 12000  # MiB of the GPU's memory for each
TAIL = 12  # lines of a failed step's output to show
GRACE = 5.0  # seconds that a step has to end when it is asked to

TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 2e-2}
MIXED = (
    "lenet",
    "alexnet",
    "inception_v3",
    "resnet101",
    "rnntc",
    "rnntc_pieces",
    "rnnlm",
    "rnnlm_pieces",
    "nmt",
    "nmt_pieces",
    "transformer",
)
TRAINED = ("lenet", "alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt", "transformer")

# What has to be there, as Python and as the package index call it.
PACKAGES = {name: name for name in ("legate", "cffi", "h5py", "numpy", "rich")} | {"PIL": "pillow"}

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass
class Result:
    """What came of a step.

    Parameters
    ----------
    name
        The step's.
    outcome
        "passed", "failed" or "not run".
    seconds
        How long it took.
    note
        Why it failed or was not run.
    output
        The end of what it said.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    note: str = ""
    output: str = ""


@dataclass(frozen=True)
class Step:
    """A command to run.

    Parameters
    ----------
    name
        For the table, and for ``--only``.
    command
        Program and arguments.
    seconds
        Its time limit.
    missing
        Why it cannot run here; empty if it can.
    """

    name: str
    command: Sequence[str]
    seconds: float
    missing: str = ""


class Check:
    """Runs steps until the time is over.

    Parameters
    ----------
    seconds
        For all steps.
    environment
        Of all steps.
    """

    def __init__(self, seconds: float, environment: dict[str, str]) -> None:
        self._deadline = time.monotonic() + seconds
        self._environment = environment

    def run(self, step: Step) -> Result:
        """Run one step to its end, or to its time limit."""
        if step.missing:
            return self._told(Result(step.name, NOT_RUN, note=step.missing))
        limit = min(step.seconds, self._deadline - time.monotonic())
        if limit < 1:
            return self._told(Result(step.name, FAILED, note="the time was over before its turn"))
        started = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            try:
                process = subprocess.Popen(
                    step.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    cwd=ROOT,
                    start_new_session=True,
                )
            except OSError as e:
                return self._told(Result(step.name, FAILED, note=f"cannot be started: {e}"))
            try:
                status = process.wait(limit)
                note = f"exit status {status}" if status else ""
            except subprocess.TimeoutExpired:
                note = f"not done after {limit:.0f} s"
                end(process)
            output.seek(0)
            said = output.read().strip().splitlines()
        seconds = time.monotonic() - started
        outcome = FAILED if note else PASSED
        return self._told(Result(step.name, outcome, seconds, note, "\n".join(said[-TAIL:])))

    def _told(self, result: Result) -> Result:
        note = f": {result.note}" if result.note else ""
        print(f"{result.outcome:<8} {result.seconds:5.0f} s  {result.name}{note}", flush=True)
        if result.outcome == FAILED and result.output:
            print("\n".join(f"    {line}" for line in result.output.splitlines()), flush=True)
        return result


def end(process: subprocess.Popen[bytes]) -> None:
    """End a step and all that it started."""
    pids = descendants(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue


def package_folder(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # of what comes before the last dot
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def commands_folder(folder: Path) -> None:
    """Commands ``python`` and ``legate`` of this interpreter: unpacked wheels bring none."""
    driver = "from legate.driver import main; raise SystemExit(main())"
    for name, code in (("python", ""), ("legate", f" -c '{driver}'")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{code} "$@"\n')
        script.chmod(0o755)


def environment_of(folder: Path) -> dict[str, str]:
    """What all steps find: our commands, packages and native libraries."""
    paths = [str(ROOT), str(SUPPORT), str(ROOT / "scripts" / "bench")]
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    # Legate links NCCL, but does not look where NCCL's wheel puts it.
    nccl = package_folder("nvidia.nccl")
    libraries = [os.environ.get("LD_LIBRARY_PATH", ""), str(nccl / "lib") if nccl else ""]
    return (
        os.environ
        | guarded()
        | {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath), str(cuda)]),
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "FLEXLEGION_NATIVE_ROOT": str(NATIVE),
            "FLEXLEGION_PROFILE_DB": str(folder / "profiles.sqlite"),
        }
    )


def has_doctest() -> bool:
    """Whether the tests of kernels can be compiled."""
    given = os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep)
    prefixes = [sys.prefix, "/usr", "/usr/local", *given]
    return any(Path(p, "include", "doctest", "doctest.h").exists() for p in prefixes if p)


def link_native() -> None:
    """Have the package use what is built, as it is: these libraries know where all others lie."""
    NATIVE.mkdir(parents=True, exist_ok=True)
    link = NATIVE / "lib"
    link.unlink(missing_ok=True)
    link.symlink_to(BUILD)


def build_steps() -> list[Step]:
    """Configure and build: one step after the other."""
    legate = package_folder("legate")
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DLEGATE_PACKAGE={legate}",
        f"-DCMAKE_PREFIX_PATH={sys.prefix}",
        f"-DCMAKE_CUDA_ARCHITECTURES={os.environ.get('CUDAARCHS', 'native')}",  # CMake's variable
        f"-DFLEXLEGION_TESTS={'ON' if has_doctest() else 'OFF'}",
    ]
    targets = ["flexlegion_core", "flexlegion_rt", "flexlegion_yield", "flexlegion_cuda"]
    if has_doctest():
        targets.append("cuda_tests")
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *options]
    return [
        Step("configure", configure, 60),
        Step("build", ["cmake", "--build", str(BUILD), "--target", *targets], 300),
    ]


def legate(fbmem: int, script: Path, *args: object, cpus: int = 1) -> list[str]:
    """A command line on one GPU; several of them share it, so each takes a part of its memory."""
    machine = ["--cpus", str(cpus), "--gpus", "1", "--sysmem", "4000", "--zcmem", "512"]
    return ["legate", *machine, "--fbmem", str(fbmem), str(script), *map(str, args)]


def checking_steps(folder: Path, fbmem: int = FBMEM) -> list[Step]:
    """What finds out whether results are right."""
    tests = BUILD / "cuda_tests"
    there = has_doctest() or tests.exists()
    no_tests = "" if there else "doctest is not installed, so it was not built"
    no_torch = "" if package_folder("torch") else "PyTorch is not installed"
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    no_sanitizer = "" if Path(sanitizer).exists() else "compute-sanitizer is not installed"
    steps = [Step("cuda_tests", [str(tests)], 300, no_tests)]
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", str(tests)]
        steps.append(Step(f"compute-sanitizer {tool}", command, 240, no_tests or no_sanitizer))
    for precision, tolerance in TOLERANCES.items():
        script = ROOT / "tests" / "gpu" / "operators.py"
        options = ["--precision", precision, "--tolerance", str(tolerance), "--fbmem", str(fbmem)]
        command = [sys.executable, str(script), *options]
        steps.append(Step(f"operators {precision}", command, 300, no_torch))
    for storage in ("bf16", "fp16"):
        script = ROOT / "tests" / "gpu" / "operators.py"
        command = [sys.executable, str(script), "--storage", storage, "--fbmem", str(fbmem)]
        steps.append(Step(f"operators stored {storage}", command, 300, no_torch))
    for name in MIXED:
        out = folder / f"mixed-{name}.json"
        options = ["--first", "100", "--count", "3", "--reference", "cpu", "--out", str(out)]
        worker = RUNTIME_TESTS / "strategies_worker.py"
        command = legate(fbmem, worker, *options, "--fail", "--zoo", name, cpus=2)
        steps.append(Step(f"mixed {name}", command, 150))
    for name in TRAINED:
        options = ["--model", name, "--data", "synthetic", "--batch-size", "8", "--samples", "32"]
        if name == "transformer":  # whole, it takes 19 GiB
            options += ["--size", "steps=128"]
        command = legate(fbmem, ROOT / "scripts" / "train.py", *options, "--epochs", "2")
        steps.append(Step(f"train {name}", command, 120))
    for precision in ("tf32", "bf16"):
        options = ["--model", "lenet", "--epochs", "3", "--precision", precision]
        command = legate(fbmem, ROOT / "scripts" / "train.py", *options)
        steps.append(Step(f"train lenet {precision}", command, 90))
    for storage in ("bf16", "fp16"):
        options = ["--model", "lenet", "--epochs", "3", "--storage", storage]
        command = legate(fbmem, ROOT / "scripts" / "train.py", *options)
        steps.append(Step(f"train lenet stored {storage}", command, 90))
    return steps


def timing_steps(folder: Path, bench: Path, fbmem: int = FBMEM) -> list[Step]:
    """What measures: one after the other."""
    out = folder / "tuned.json"
    tune = ["--model", "lenet", "--data", "synthetic", "--batch-size", "64", "--out", str(out)]
    tune += ["--budget", "2", "--rounds", "2", "--max-rounds", "20"]
    options = ["--rounds", "2", "--iterations", "5", "--json", str(bench), "--torch", "eager"]
    networks = ["--networks", "alexnet,resnet101,rnnlm,transformer", "--precisions", "tf32,bf16"]
    script = ROOT / "scripts" / "bench" / "gpu.py"
    no_torch = "" if package_folder("torch") else "PyTorch is not installed"
    return [
        Step("tune_mapper", legate(fbmem, ROOT / "scripts" / "tune_mapper.py", *tune, cpus=2), 120),
        Step("benchmark", [sys.executable, str(script), *options, *networks], 240, no_torch),
    ]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="gpu_check.sh", description="Check everything that needs a GPU."
    )
    parser.add_argument("--python", metavar="PYTHON", help="the interpreter to use")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--only", metavar="STEP,...", help="steps whose names begin so; and builds")
    parser.add_argument(
        "--built", action="store_true", help="build nothing: build/gpu has what is needed"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"for everything; default: {SECONDS}"
    )
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, help=f"steps beside each other; default: {AT_ONCE}"
    )
    parser.add_argument(
        "--fbmem",
        type=int,
        default=FBMEM,
        help=f"MiB of the GPU's memory that each of these takes; default: {FBMEM}",
    )
    return parser.parse_args()


def run_all(
    check: Check, folder: Path, wanted: Callable[[Step], bool], args: argparse.Namespace
) -> list[Result]:
    """All steps, in their order; those that measure run alone."""
    results = []
    link_native()
    for step in [] if args.built else build_steps():
        results.append(check.run(step))
        if results[-1].outcome == FAILED:  # nothing of what follows could run
            return results
    with ThreadPoolExecutor(args.at_once) as pool:
        results += pool.map(check.run, filter(wanted, checking_steps(folder, args.fbmem)))
    bench = folder / "bench.json"
    results += map(check.run, filter(wanted, timing_steps(folder, bench, args.fbmem)))
    return results


def main() -> int:
    """Run everything; the exit status."""
    args = options()
    if args.json and not Path(args.json).resolve().parent.is_dir():
        print(f"gpu_check: {args.json}: its folder does not exist.", file=sys.stderr)
        return 2
    missing = [package for module, package in PACKAGES.items() if not package_folder(module)]
    if missing:
        print(
            f"gpu_check: {sys.executable} lacks {', '.join(missing)}; name an interpreter that has "
            "them with --python.",
            file=sys.stderr,
        )
        return 2
    only = args.only.split(",") if args.only else [""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands_folder(folder)
        check = Check(args.seconds, environment_of(folder))

        def wanted(step: Step) -> bool:
            return step.name.startswith(tuple(only))

        results = run_all(check, folder, wanted, args)
        bench = folder / "bench.json"
        benchmark = json.loads(bench.read_text()) if bench.exists() else None
    width = max(len(result.name) for result in results)
    print(f"\n{'step':<{width}}  {'seconds':>7}  outcome")
    for r in results:
        print(f"{r.name:<{width}}  {r.seconds:7.1f}  {r.outcome}{': ' * bool(r.note)}{r.note}")
    if args.json:
        everything = {"steps": [asdict(result) for result in results], "benchmark": benchmark}
        Path(args.json).write_text(json.dumps(everything, indent=2) + "\n")
    return int(any(result.outcome == FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main())
