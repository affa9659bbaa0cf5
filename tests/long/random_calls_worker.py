"""Run under legate, in one process or on several ranks: random sequences of public calls.

    random_calls_worker.py OUT FIRST END DEVICES

Of the seeds from FIRST on, before END, writes OUT.RANK.npz, whatever the calls returned, and
OUT.RANK.json: of each seed the calls, and whether each has to come to the same bits on any machine
of DEVICES processors. It has if operators are divided by samples alone: other tiles lie in one
process in the middle of larger tensors, where kernels may round otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from networks import NETWORKS

import flexlegion as fl
from flexlegion.machine.running import running_machine

NAMES = ("sequences", "activations", "tables", "branches", "gated", "several", "normalized")
STRATEGIES = ("data", "fsdp", "model", "single", "random")
EXACT = ("data", "fsdp", "single")
ROWS = 16  # of the networks' batches of 7: two full ones and a short one
# Batch normalisations over the two samples of a short batch enlarge what rounding does a hundred
# times an iteration.
ROWS_OF = {"normalized": 14}
CALLS = 8
MODELS = 2  # alive at a time
TIMES = ("seconds", "samples_per_second", "tokens_per_second")


class Predicting(fl.Callback):
    """Looks at the model while it trains."""

    def __init__(self, model: fl.Model, x: Any, seen: list[Any]) -> None:
        self.model, self.x, self.seen = model, x, seen

    def on_epoch_end(self, training: Any, values: Any) -> None:  # noqa: ARG002
        """Predict, and read the weights."""
        self.seen += [self.model.predict(self.x), self.model.get_weights()]


class Alive:
    """A model and its data."""

    def __init__(self, name: str, strategy: str) -> None:
        self.network = NETWORKS[name]
        self.model = self.network.model()
        self.rows = ROWS_OF.get(name, ROWS)
        self.x, self.y = self.network.data(self.rows)
        self.compile(strategy)

    def compile(self, strategy: str) -> None:
        """Compile it, perhaps anew."""
        network = self.network
        self.model.compile(
            network.optimizer, network.loss, strategy=strategy, loss_weights=network.loss_weights
        )

    def trained(self, **options: Any) -> list[Any]:
        """Losses of epochs, and what a callback saw."""
        seen: list[Any] = []
        if options.pop("looks"):
            options["callbacks"] = [Predicting(self.model, self.x, seen)]
        if options.pop("validates"):
            options["validation_data"] = (self.x, self.y)
        history = self.model.fit(self.x, self.y, progress=False, **options)
        return [history.epochs, *seen]


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    """All arrays and numbers in a result, in the order in which they stand."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in TIMES:
                yield from arrays_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from arrays_of(part)
    elif value is not None:
        yield np.asarray(value)


class Sequence:
    """The calls of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = np.random.default_rng(seed)
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.files = 0
        self.alive: list[Alive] = []
        self.calls: list[tuple[str, bool]] = []  # and whether their bits are known
        self.results: dict[str, np.ndarray] = {}  # by the numbers of the call and of the array
        self.exact = True

    def strategy(self) -> str:
        """One of the known ones, or a random one."""
        name = str(self.rng.choice(STRATEGIES))
        self.exact &= name in EXACT
        return f"random:{self.rng.integers(1000)}" if name == "random" else name

    def tell(self, name: str, result: Any) -> None:
        """Note a call and what it returned."""
        for i, array in enumerate(arrays_of(result)):
            self.results[f"{len(self.calls)} {i}"] = array
        self.calls.append((name, self.exact))

    def run(self) -> None:
        """All calls."""
        self.begin()
        kinds = ("fit", "fit", "fit", "evaluate", "predict", "read", "write", "file", "resume")
        for _ in range(CALLS):
            kind = str(self.rng.choice((*kinds, "compile", "close", "begin")))
            if kind == "begin" and len(self.alive) == MODELS:
                kind = "fit"
            if kind == "begin":
                self.begin()
                continue
            which = int(self.rng.integers(len(self.alive)))
            result = getattr(self, f"call_{kind}")(self.alive[which])
            self.tell(f"{kind} {which}", result)
        for model in self.alive:
            self.tell("weights", model.model.get_weights())
            model.model.close()

    def begin(self) -> None:
        """A new model."""
        name, strategy = str(self.rng.choice(NAMES)), self.strategy()
        self.alive.append(Alive(name, strategy))
        self.tell(f"{name} {strategy}", None)

    def path(self) -> Path:
        """Of a new file or folder."""
        self.files += 1
        return self.folder / str(self.files)

    def options(self) -> dict[str, Any]:
        """Of `fit`."""
        return {
            "epochs": int(self.rng.integers(1, 3)),
            "shuffle": bool(self.rng.integers(2)),
            "looks": bool(self.rng.integers(4) == 0),
            "validates": bool(self.rng.integers(3) == 0),
        }

    def call_fit(self, model: Alive) -> Any:
        """Train."""
        return model.trained(**self.options())

    def call_evaluate(self, model: Alive) -> Any:
        """Of all samples, or of the first alone, which may have no label that counts."""
        rows = int(self.rng.choice((1, model.rows)))
        y = model.y
        labels = {k: v[:rows] for k, v in y.items()} if isinstance(y, dict) else y[:rows]
        try:
            return model.model.evaluate(model.x[:rows], labels)
        except fl.UserError as e:
            if "no label of the samples counts" not in str(e):
                raise
            return str(e)

    def call_predict(self, model: Alive) -> Any:
        """Of some samples."""
        return model.model.predict(model.x[: int(self.rng.choice((1, 5, model.rows)))])

    def call_read(self, model: Alive) -> Any:
        """All weights."""
        return model.model.get_weights()

    def call_write(self, model: Alive) -> Any:
        """Some weights, changed."""
        for name, value in model.model.get_weights().items():
            if self.rng.integers(2):
                noise = self.rng.normal(size=value.shape).astype(value.dtype)
                model.model.set_weights({name: value + value.dtype.type(0.01) * noise})
        return None

    def call_file(self, model: Alive) -> Any:
        """Weights through a file, after some training between."""
        path = self.path().with_suffix(".npz")
        model.model.save_weights(path)
        trained = model.trained(**self.options()) if self.rng.integers(2) else None
        model.model.load_weights(path)
        return trained, model.model.get_weights()

    def call_resume(self, model: Alive) -> Any:
        """A training that writes checkpoints, in another program gone on with."""
        folder, options = self.path(), self.options()
        points = fl.Checkpoints(folder, every=int(self.rng.integers(1, 5)))
        first = model.trained(**options, checkpoint=points)
        options["epochs"] += 1
        model.compile(self.strategy())
        points = fl.Checkpoints(folder, every=100, resume=True)
        return first, model.trained(**options, checkpoint=points)

    def call_compile(self, model: Alive) -> Any:
        """Anew, perhaps under another strategy; it begins with its first weights."""
        model.compile(self.strategy())
        return model.model.get_weights()

    def call_close(self, model: Alive) -> Any:
        """A model ends while others live on."""
        model.model.close()
        self.alive.remove(model)
        if not self.alive:
            self.begin()
        return None


def main() -> None:
    """All seeds."""
    out, first, end, devices = sys.argv[1], *map(int, sys.argv[2:5])
    machine = running_machine()
    assert len(machine.devices.names) == devices
    calls, results = {}, {}
    for seed in range(first, end):
        sequence = Sequence(seed, Path(f"{out}.{seed}.files"))
        sequence.run()
        calls[seed] = sequence.calls
        results |= {f"{seed} {key}": array for key, array in sequence.results.items()}
    np.savez(f"{out}.{machine.rank}.npz", **results)
    Path(f"{out}.{machine.rank}.json").write_text(
        json.dumps({"ranks": machine.ranks, "owners": machine.owners, "calls": calls})
    )


if __name__ == "__main__":
    main()
