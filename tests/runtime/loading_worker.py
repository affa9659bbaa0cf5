"""Run under legate on one or several ranks: trains from each kind of data, counts what is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flexlegion import SGD, Model, ParallelConfig, Strategy
from flexlegion.base.errors import UserError
from flexlegion.data import images, load_images
from flexlegion.data.sources import BatchSource
from flexlegion.machine.running import running_machine
from flexlegion.training.binding import Binding
from flexlegion.transforms.losses import add_loss

BATCH, EPOCHS = 6, 3
SHAPE, CLASSES = (8, 8, 1), 3
LOSS = "sparse_categorical_crossentropy"

Array = np.ndarray


class Counted(BatchSource):
    """Samples of a function of row and epoch; counts which of them, and which labels, are read."""

    name = "counted"
    shapes = (SHAPE, ())

    def __init__(self, samples: int, bad: int = -1) -> None:
        self.samples, self.bad = samples, bad
        self.rows: list[int] = []
        self.labels: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def read(self, row: int, epoch: int, out: Sequence[Array]) -> None:
        self.rows.append(row)
        if row == self.bad:
            raise UserError(f"sample {row} cannot be read")
        out[0][...] = np.random.default_rng([row, epoch]).standard_normal(SHAPE)
        out[1][...] = row % CLASSES

    def read_labels(self, row: int, _epoch: int, out: Sequence[Array]) -> None:
        self.labels.append(row)
        out[1][...] = row % CLASSES


def network(strategy: str) -> Model:
    """A small network under "data", or in two halves on the first and the last processor."""
    model = Model(BATCH, seed=4)
    x = model.conv2d(model.input(SHAPE), 4, 3, activation="relu")
    model.softmax(model.dense(model.flatten(x), CLASSES))
    chosen: Any = strategy
    if strategy == "halves":
        graph = add_loss(model.graph, model.outputs[0], LOSS)
        names = running_machine().devices.names
        chosen = Strategy(
            {
                op.name: ParallelConfig(
                    (1,) * len(op.dims),
                    (names[-1 if op.name.startswith(("dense", "soft")) else 0],),
                )
                for op in graph.operators
            },
            "halves",
        )
    model.compile(SGD(0.1, momentum=0.9), LOSS, ["accuracy"], chosen)
    return model


class Watched(np.memmap):
    """Knows which of its rows were read, one by one or otherwise."""

    touched: ClassVar[list[Any]] = []

    def __getitem__(self, key: Any) -> Any:
        if self.ndim == 4:
            self.touched.append(key)
        return super().__getitem__(key)


def mapped(folder: Path, array: Array) -> Array:
    """The array in a file; every rank has its own."""
    path = folder / f"{array.dtype}-{array.ndim}-{running_machine().rank}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r").view(Watched)


def data_of(kind: str, folder: Path, pictures: Path) -> tuple[Any, Any]:
    """x and y for `fit`."""
    rng = np.random.default_rng(5)
    samples = 20
    x = rng.integers(0, 256, (samples, *SHAPE)).astype(np.uint8)
    y = rng.integers(0, CLASSES, samples)
    if kind == "source":
        return Counted(samples), None
    if kind == "pictures":
        return load_images(pictures, SHAPE, augment=True, seed=1).train, None
    if kind == "arrays":
        return x / 255, y
    return (mapped(folder, x if kind == "mapped bytes" else x / 255), mapped(folder, y))


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except UserError as error:
        return str(error)
    return "no error"


def main() -> None:
    folder, pictures, *strategies = sys.argv[1:]
    rank = running_machine().rank
    decoded: list[str] = []
    read_image = images.read_image

    def counted(path: Path, shape: tuple[int, ...]) -> Array:
        decoded.append(path.name)
        return read_image(path, shape)

    images.read_image = counted
    summary: dict[str, Any] = {"ranks": running_machine().ranks}
    for strategy in strategies:
        for kind in ("source", "pictures", "arrays", "mapped", "mapped bytes"):
            decoded.clear()
            model = network(strategy)
            x, y = data_of(kind, Path(folder), Path(pictures))
            epochs = model.fit(x, y, epochs=EPOCHS, progress=False).epochs
            its: dict[str, Any] = {"losses": [epoch["loss"] for epoch in epochs]}
            its["evaluated"] = model.evaluate(x, y)
            if kind == "source":
                its |= {"rows": x.rows, "labels": x.labels}
            if kind == "pictures":
                its["decoded"] = list(decoded)
            if kind == "mapped bytes":
                its["rows"] = list(x.touched)
                first = Binding(model.program, BATCH).first(x, y, 7)  # as for tuning
                expected = (np.array(x, np.float32), np.array(y, np.int32))
                pairs = zip(first.values(), expected, strict=True)
                its["first"] = [bool((a == b[:7]).all() and a.dtype == b.dtype) for a, b in pairs]
            Watched.touched.clear()
            summary[f"{strategy} {kind}"] = its
            np.savez(Path(folder) / f"{strategy}-{kind}-{rank}.npz", **model.get_weights())
            model.close()
        model = network(strategy)
        source = Counted(50, bad=17)
        summary[f"{strategy} failed"] = {
            "message": message(lambda m=model, s=source: m.fit(s, shuffle=False, progress=False)),
            "tried": source.bad in source.rows,
        }
        model.close()
    (Path(folder) / f"summary-{rank}.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()
