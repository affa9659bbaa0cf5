"""What users give for a model's inputs and labels: found by position or name, checked, bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described
from flexlegion.data.sources import BatchSource
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrangement import Form
from flexlegion.layers.arrays import (
    array_of,
    check_labels,
    check_rows,
    check_tokens,
    rows_for,
    shaped,
)
from flexlegion.objective.losses import labels_of, near
from flexlegion.ops.losses import CrossEntropy
from flexlegion.plan.plan import Plan
from flexlegion.training.agreement import check_same
from flexlegion.training.feeds import ArrayFeed, Feed, SourceFeed, arrays_for, check_source
from flexlegion.training.loader_feed import LoaderFeed
from flexlegion.training.mapped import MappedArrays
from flexlegion.training.program import PREDICT, TRAIN, Program

Array = npt.NDArray[Any]


class Binding:
    """Between users' data and a program's inputs.

    Parameters
    ----------
    program
        What runs.
    batch_size
        Samples a batch.
    seed
        Of what loaders draw.
    forms
        In which shapes inputs and labels may be given; only in their own where none is said.
    """

    def __init__(
        self,
        program: Program,
        batch_size: int,
        seed: int = 0,
        forms: Mapping[Tensor, Form] | None = None,
    ) -> None:
        self.program, self.batch_size, self.seed = program, batch_size, seed
        self.forms = forms or {}
        self.graph: Graph = program.plan.graph
        self.labels = labels_of(self.graph)
        self.inputs = [t for t in self.graph.inputs if t not in self.labels.values()]
        self._loaded = _loaded(program.plan)
        self._classes = {
            op.inputs[-1]: op.kind
            for op in self.graph.operators
            if isinstance(op.kind, CrossEntropy)
        }

    def arrays(self, x: Any, y: Any = None, labelled: bool = True) -> dict[Tensor, Array]:
        """Arrays by input tensor, checked; without labels only those that prediction needs.

        Raises
        ------
        UserError
            If they do not fit.
        """
        inputs, labels = self._given(x, y, labelled)
        arrays = {t: self._rows(t, value) for t, value in (inputs | labels).items()}
        check_tokens(self.graph, arrays)
        check_rows(arrays)
        return arrays

    def _rows(self, tensor: Tensor, value: Any) -> Array:
        form, its = self.forms.get(tensor), self._classes.get(tensor)
        if its is None:
            return rows_for(tensor, value, form=form)
        return rows_for(tensor, value, its.classes, form, its.ignored)

    def _given(self, x: Any, y: Any, labelled: bool) -> tuple[dict[Tensor, Any], dict[Tensor, Any]]:
        """What a user gave for inputs and labels, by tensor."""
        run = TRAIN if labelled else PREDICT
        return self._inputs_of(x, run), self._labels_of(y) if labelled else {}

    def first(self, x: Any, y: Any, samples: int) -> dict[Tensor, Array]:
        """Arrays by input tensor of whatever `Model.fit` takes; of what is read, the beginning.

        Parameters
        ----------
        x, y
            As `Model.fit` takes them.
        samples
            How many of a source or a loader are enough.

        Raises
        ------
        UserError
            If they do not fit.
        """
        if not is_loader(x, y):
            source = self._source(x, y, True)
            return self.arrays(x, y) if source is None else self._first_of_source(source, samples)
        batches: list[dict[Tensor, Array]] = []
        for batch in x:
            batches.append(self.arrays(*self._parts(batch, True)))
            samples -= len(next(iter(batches[-1].values())))
            if samples <= 0:
                break
        if not batches:
            raise UserError("the loader has no batches")
        return {t: np.concatenate([batch[t] for batch in batches]) for t in batches[0]}

    def _first_of_source(self, source: BatchSource, samples: int) -> dict[Tensor, Array]:
        tensors = [*self._needed(TRAIN), *self.labels.values()]
        check_source(source, tensors)
        number = min(samples, len(source))
        read = arrays_for(source, tensors, number)
        for row in range(number):
            source.read(row, 0, [array[row, ...] for array in read])
        arrays = {
            tensor: array if values is None else values[array]
            for tensor, array, values in zip(tensors, read, source.byte_values, strict=True)
        }
        self._check(source.name)(arrays)
        return arrays

    def bind(self, x: Any, y: Any = None, labelled: bool = True) -> tuple[list[int], int]:
        """Make arrays available to the program: their numbers, and the number of samples."""
        arrays = self.arrays(x, y, labelled)
        if not arrays:
            raise UserError(
                "the model reads no input, so it cannot be told how many samples there are"
            )
        samples = len(next(iter(arrays.values())))
        check_same("the samples or labels", arrays.values(), sampled=True)
        return [self.program.add_data(tensor, array) for tensor, array in arrays.items()], samples

    @contextmanager
    def feeds(self) -> Iterator[Callable[..., Feed]]:
        """What makes feeds (of x, y); at the end they are closed, and their data dropped."""
        feeds: list[Feed] = []

        def make(x: Any, y: Any = None, labelled: bool = True) -> Feed:
            feeds.append(self._feed(x, y, labelled))
            return feeds[-1]

        with self.program.data_of_its_own():
            try:
                yield make
            finally:
                for feed in feeds:
                    feed.close()

    def _feed(self, x: Any, y: Any, labelled: bool) -> Feed:
        if is_loader(x, y):
            if y is not None:
                raise UserError("a loader brings its own labels; leave out y")
            return self._loader_feed(x, labelled)
        source = self._source(x, y, labelled)
        if source is None:
            return ArrayFeed(*self.bind(x, y, labelled), self.batch_size)
        complete = labelled or source is x  # a user's source always writes all that training needs
        inputs = self._needed(TRAIN if complete else PREDICT)
        labels = list(self.labels.values()) if complete else []
        check = self._check(source.name)
        return SourceFeed(self.program, inputs, labels, source, self.batch_size, check)

    def _source(self, x: Any, y: Any, labelled: bool) -> BatchSource | None:
        """What has to be read sample by sample; None: it is in memory."""
        if isinstance(x, BatchSource):
            if y is not None:
                raise UserError(f"{x.name}: this source brings its own labels; leave out y")
            return x
        given = self._given(x, y, labelled)
        if not any(isinstance(value, np.memmap) for part in given for value in part.values()):
            return None
        inputs, labels = (
            {tensor: self._mapped(tensor, value) for tensor, value in part.items()}
            for part in given
        )
        return MappedArrays(inputs, labels)

    def _mapped(self, tensor: Tensor, value: Any) -> Array:
        """What is given beside memory-mapped arrays, or is one: its rows are read later."""
        array = value if isinstance(value, np.memmap) else array_of(tensor.name, value)
        return shaped(tensor, array, self.forms.get(tensor))

    def _loader_feed(self, loader: Any, labelled: bool) -> Feed:
        def arrays_of(batch: Any) -> dict[Tensor, Array]:
            return self.arrays(*self._parts(batch, labelled), labelled=labelled)

        tensors = self._needed(TRAIN if labelled else PREDICT)
        tensors += self.labels.values() if labelled else ()
        return LoaderFeed(self.program, tensors, loader, self.batch_size, arrays_of, self.seed)

    def _parts(self, batch: Any, labelled: bool) -> tuple[Any, Any]:
        """Samples and labels of a loader's batch."""
        if isinstance(batch, Mapping):
            labels = [t.name for t in self.labels.values()] + list(self.labels)
            of_labels = {name: value for name, value in batch.items() if name in labels}
            x = {name: value for name, value in batch.items() if name not in of_labels}
            return x, of_labels or None
        if not isinstance(batch, list | tuple):
            return batch, None
        inputs = len(self._needed(TRAIN if labelled else PREDICT))
        if len(batch) == 2 and not (inputs == 2 and (not labelled or not self.labels)):
            return tuple(batch)
        # Arrays side by side: inputs, then labels.
        y = list(batch[inputs:])
        return list(batch[:inputs]), (y[0] if len(y) == 1 else y) if y else None

    def _needed(self, run: int) -> list[Tensor]:
        """The inputs that a kind of run reads, without labels."""
        return [t for t in self.inputs if t in self._loaded[run]]

    def _check(self, name: str) -> Callable[[dict[Tensor, Array]], None]:
        """What checks a batch's arrays of a source of that name."""

        def check(arrays: dict[Tensor, Array]) -> None:
            check_tokens(self.graph, arrays)
            for tensor, its in self._classes.items():
                if tensor in arrays:
                    check_labels(name, arrays[tensor], its.classes, its.ignored)

        return check

    def _inputs_of(self, x: Any, run: int) -> dict[Tensor, Any]:
        needed = self._needed(run)
        given: dict[Tensor, Any]
        if isinstance(x, Mapping):
            given = _by_name(x, {t.name: t for t in self.inputs}, "input")
        else:
            # A list of arrays is one array an input; a list of numbers is data itself.
            several = isinstance(x, list | tuple) and all(hasattr(part, "shape") for part in x)
            parts = list(x) if several else [x]
            # Inputs that nothing reads need not be given.
            tensors = needed if len(parts) == len(needed) else self.inputs
            if len(parts) != len(tensors):
                inputs = f"input{'s' * (len(tensors) != 1)}"
                raise UserError(
                    f"the model has {len(tensors)} {inputs}, but {len(parts)} were given"
                )
            given = dict(zip(tensors, parts, strict=True))
        missing = [t.name for t in needed if t not in given]
        if missing:
            raise UserError(
                f"there is no input '{missing[0]}' among the data; the model needs "
                f"{', '.join(t.name for t in needed)}"
            )
        return {t: given[t] for t in needed}

    def _labels_of(self, y: Any) -> dict[Tensor, Any]:
        if not self.labels:
            if y is not None:
                raise UserError("the model's loss takes no labels; leave out y")
            return {}
        if y is None:
            raise UserError("there are no labels; give them as y")
        names = list(self.labels)
        given: Mapping[Tensor, Any]
        if isinstance(y, Mapping):
            # As the inputs are called, or as their outputs.
            full = {tensor.name: tensor for tensor in self.labels.values()}
            given = _by_name(y, self.labels | (full if y.keys() & full.keys() else {}), "labels")
            for name, tensor in self.labels.items():
                if tensor not in given:
                    raise UserError(
                        f"there are no labels '{name}' in y; the model needs {', '.join(names)}"
                    )
        elif len(names) == 1:
            given = {self.labels[names[0]]: y}
        else:
            if not isinstance(y, list | tuple) or len(y) != len(names):
                count = f"a list of {len(y)}" if isinstance(y, list | tuple) else "one array"
                raise UserError(
                    f"the model needs labels of {', '.join(names)}, as a list or by these names, "
                    f"but y is {count}"
                )
            given = dict(zip(self.labels.values(), y, strict=True))
        return {t: given[t] for t in self.labels.values()}


def is_loader(x: Any, y: Any = None) -> bool:
    """Whether it brings batches: it has a length and can be iterated, but is no array or dict.

    Raises
    ------
    UserError
        If it can be iterated but once.
    """
    if hasattr(x, "__next__"):
        raise UserError(
            "batches have to be gone through once an epoch, which a generator or iterator cannot; "
            "give what has a length and can be iterated anew"
        )
    has = {name: hasattr(x, f"__{name}__") for name in ("iter", "len", "getitem")}
    if hasattr(x, "shape") or isinstance(x, Mapping | list | tuple | str | bytes | BatchSource):
        pass
    elif has["iter"] and not (has["len"] and _has_length(x)):
        raise UserError(
            f"the number of batches of {described(x)} is not known, as it has no length; give its "
            "data set a __len__, or give arrays"
        )
    elif has["len"] and has["getitem"] and not has["iter"]:
        raise UserError(
            f"{described(x)} has samples, but no batches; put it into a PyTorch DataLoader, or "
            "give arrays"
        )
    if isinstance(x, list):
        return y is None and bool(x) and all(isinstance(batch, tuple) for batch in x)
    arrays = isinstance(x, Mapping | tuple | str | BatchSource) or hasattr(x, "shape")
    return not arrays and hasattr(x, "__iter__") and hasattr(x, "__len__")


def _has_length(x: Any) -> bool:
    """Whether its length is known: a loader of a data set without one has the method alone."""
    try:
        len(x)
    except (TypeError, NotImplementedError):
        return False
    return True


def _loaded(plan: Plan) -> dict[int, set[Tensor]]:
    """Of each kind of run, the inputs that it reads."""
    loaded: dict[int, set[Tensor]] = {TRAIN: set(), PREDICT: set()}
    for launch in plan.launches:
        for run, tensors in loaded.items():
            if launch.pass_ == "load" and launch.runs & run:
                tensors.add(launch.written.tensor)
    return loaded


def _by_name(
    given: Mapping[Any, Any], tensors: Mapping[str, Tensor], what: str
) -> dict[Tensor, Any]:
    """Data by tensor instead of name."""
    for name in given:
        if name not in tensors:
            raise UserError(f"the model has no {what} '{name}'; {near(str(name), [*tensors])}")
    return {tensors[name]: value for name, value in given.items()}
