"""Options of commands that train: the model and its data, and how the learning rate changes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.phase import phase
from flexlegion.base.quoting import printable
from flexlegion.base.suggestions import unknown
from flexlegion.cli.how_trained import (
    add_hyperparameter_options,
    add_training_options,
    training_from,
)
from flexlegion.cli.network import add_verify_option
from flexlegion.cli.sizes import add_size_option, batch_size, found_for, found_sizes, given_sizes
from flexlegion.data.dataset import HELD_OUT, Dataset, Splits
from flexlegion.data.images import ImageFolder
from flexlegion.data.named import load_named
from flexlegion.data.synthetic import NAME as SYNTHETIC
from flexlegion.data.synthetic import made_up
from flexlegion.data.tasks import SAMPLE, Request, load_for, network_sizes
from flexlegion.graph.fingerprint import difference
from flexlegion.graph.graph import Graph, Operator
from flexlegion.networks.network import Network
from flexlegion.networks.references import HELP, load_model, target_of
from flexlegion.objective.losses import losses_of
from flexlegion.objective.schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    inverse_sqrt,
    step_decay,
    with_warmup,
)
from flexlegion.objective.training import TrainingSpec
from flexlegion.ops.losses import CrossEntropy, LossOperator
from flexlegion.strategy.strategy import Strategy
from flexlegion.zoo import ZOO, ZooEntry

BATCH_SIZE = 32
SYNTHETIC_BATCHES = 4
SCHEDULES = ("constant", "step", "exponential", "cosine", "inverse-sqrt")
DECAY = 0.1
LANGUAGES = ("en", "de")


def metrics_for(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Metrics that are of interest beside each loss of a graph, by the outputs' names."""
    return {name: tuple(_metrics_for(loss)) for name, loss in losses_of(graph).items()}


def _metrics_for(loss: Operator) -> Iterator[str]:
    assert isinstance(loss.kind, LossOperator)
    kind = loss.kind
    classes = kind.classes if isinstance(kind, CrossEntropy) else loss.inputs[0].shape[-1]
    sequences = len(loss.output.shape) > 1
    for metric in kind.metrics:
        fits = {"perplexity": sequences, "top_5_accuracy": not sequences and classes > 5}
        if fits.get(metric, metric != kind.type):
            yield metric


@dataclass(frozen=True)
class Samples:
    """Samples as `Model.fit` takes them, and how many there are."""

    x: Any
    y: Any
    number: int

    @classmethod
    def of(cls, data: Dataset | ImageFolder) -> Samples:
        """Those of a data set."""
        x, y = (data.x, data.y) if isinstance(data, Dataset) else (data, None)
        return cls(x, y, len(data))


@dataclass(frozen=True)
class Prepared:
    """What is to be trained, and on what.

    Parameters
    ----------
    network
        With the sizes that the data need.
    train, test
        What to train on, and to test with.
    test_set
        Where the latter came from, if it was a data set.
    """

    network: Network
    train: Samples
    test: Samples
    test_set: Dataset | ImageFolder | None = None


def prepared(args: argparse.Namespace, strategy: str | Strategy | None = None) -> Prepared:
    """The network and the data that the options say.

    Where neither options nor data say the sizes, the batch size, or how the network is trained,
    they are what the strategy was found for, if that was the same model.

    Parameters
    ----------
    args
        Of `add_model_options` and `add_hyperparameter_options`.
    strategy
        As it was read, if there is one.

    Raises
    ------
    UserError
        If there is no such model, size, loss or data, or they do not go together.
    """
    target = target_of(args.model)
    sizes = given_sizes(args.size, target)
    source = args.data or (SAMPLE if args.model in ZOO else SYNTHETIC)
    _check_data_options(args, source)
    found = found_for(target, strategy)
    where = strategy.source if isinstance(strategy, Strategy) else ""
    training = training_from(args, found, where)
    if args.model in ZOO and source != SYNTHETIC:
        ready = _prepared_for(source, ZOO[args.model], sizes, args, training)
        _check_found_for(strategy, ready.network, source)
        return ready
    if args.augment:
        raise UserError("--augment goes with folders of images")
    batch_size = found.get("batch_size") if args.batch_size is None else args.batch_size
    phase(f"building the model {printable(target.name)}")
    sizes = found_sizes(found, target, where) | sizes
    model = target.load(batch_size, sizes, args.seed, not args.no_verify)
    network = Network.of(model, training)
    if source != SYNTHETIC:
        sets = load_named(source, network.graph, args.held_out, args.seed)
        train, test = (Samples(part.x, part.y, part.samples) for part in sets)
        return Prepared(network, train, test)
    number = SYNTHETIC_BATCHES * model.batch_size if args.samples is None else args.samples
    train, test = (
        Samples(*made_up(network.graph, samples, seed), samples)
        for samples, seed in ((number, args.seed), (min(number, model.batch_size), args.seed + 1))
    )
    return Prepared(network, train, test)


def _check_found_for(strategy: str | Strategy | None, network: Network, source: str) -> None:
    """Raise `UserError` if data make another network of a model than was searched."""
    if not isinstance(strategy, Strategy) or strategy.fingerprint is None:
        return
    there, here = strategy.fingerprint, network.fingerprint
    if there.value == here.value or strategy.found.get("model") != network.reference:
        return
    if all(here.operators.get(name, its) == its for name, its in there.operators.items()):
        return  # something else than sizes differs
    sizes = " ".join(f"--size {name}={_written(value)}" for name, value in network.sizes.items())
    raise UserError(
        f"{strategy.source}: it was found for {network.reference} of other sizes than the data "
        f"'{printable(source)}' make it: {difference(there, here)}; train what was searched by "
        f"--data {SYNTHETIC}, or search for what these data make, by --batch-size "
        f"{network.batch_size} {sizes}".rstrip()
    )


def _written(value: Any) -> str:
    """A size as `--size` takes it."""
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _check_data_options(args: argparse.Namespace, source: str) -> None:
    """Raise `UserError` if an option says something of data that these are not."""
    of_zoo = args.model in ZOO and source != SYNTHETIC
    corpus = of_zoo and ZOO[args.model].task == "translation" and source != SAMPLE
    for option, fits, what in (
        ("samples", source == SYNTHETIC, f"--data {SYNTHETIC}"),
        ("held_out", source != SYNTHETIC, "data of which a part can be held out"),
        ("labels", of_zoo, "data for a network of the zoo"),
        ("source_language", corpus, "a parallel corpus"),
        ("target_language", corpus, "a parallel corpus"),
    ):
        if getattr(args, option) is not None and not fits:
            raise UserError(f"--{option.replace('_', '-')} goes with {what}")


def _prepared_for(
    source: str,
    entry: ZooEntry,
    given: Mapping[str, Any],
    args: argparse.Namespace,
    training: TrainingSpec,
) -> Prepared:
    """A network of the zoo of the sizes that data need."""
    languages = (args.source_language or LANGUAGES[0], args.target_language or LANGUAGES[1])
    phase(f"reading the data {printable(source)}")
    request = Request(source, args.labels, args.augment, languages, args.seed)
    splits, sizes = data_and_sizes(entry, given, request)
    train, test = splits.divided(args.held_out, args.seed)
    batch_size = BATCH_SIZE if args.batch_size is None else args.batch_size
    model = load_model(args.model, batch_size, sizes, args.seed, not args.no_verify)
    network = Network.of(model, training)
    return Prepared(network, Samples.of(train), Samples.of(test), test)


def data_and_sizes(
    entry: ZooEntry, given: Mapping[str, Any], request: Request
) -> tuple[Splits[Dataset] | Splits[ImageFolder], dict[str, Any]]:
    """The data that are asked for, and the sizes of a network of the zoo that fits them.

    Parameters
    ----------
    entry
        Of the network.
    given
        Sizes that the user gave.
    request
        Which data.

    Raises
    ------
    UserError
        If there are no such data, or they do not fit.
    """
    defaults = entry.sample_sizes if request.source in (SAMPLE, "digits") else {}
    splits = load_for(entry.task, entry.sizes_with(defaults | dict(given)), request)
    return splits, defaults | network_sizes(entry.task, splits.train, given)


def check_model(args: argparse.Namespace) -> None:
    """Raise `UserError` if ``--model`` and ``--size`` are wrong, as far as can be said early.

    A user's code is not run for it: that is done where it trains, once.
    """
    if ":" not in args.model and Path(args.model).suffix not in (".py", ".pt2", ".onnx"):
        given_sizes(args.size, target_of(args.model))


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--size``, ``--batch-size``, ``--data``, and how it is trained."""
    parser.add_argument("--model", default="lenet", help=f"{HELP}; default: lenet")
    add_size_option(parser)
    add_verify_option(parser)
    parser.add_argument(
        "--data",
        help="sample: small real data that come along, the default for networks of the zoo; "
        "synthetic: random ones of the model's own sizes, the default for a model of your own; or "
        "a path: for such a model an .npz file with arrays by the names of inputs and outputs, or "
        "x and y; otherwise a folder of images or of MNIST's IDX files, .npz, .npy (with "
        "--labels), .h5; texts, .tsv, .csv; a parallel corpus's name",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument("--samples", type=int, help="how many synthetic samples to train on")
    parser.add_argument(
        "--augment", action="store_true", help="crop and mirror images of folders at random"
    )
    for language, default in zip(("source", "target"), LANGUAGES, strict=True):
        parser.add_argument(
            f"--{language}-language", help=f"a parallel corpus's ending; default: {default}"
        )
    parser.add_argument(
        "--held-out",
        type=float,
        help=f"share of the samples to test on, if the data bring no test set; default: {HELD_OUT}",
    )
    parser.add_argument(
        "--batch-size",
        type=batch_size,
        help=f"over all devices; default: the model's own, but {BATCH_SIZE} with the data of a "
        "network of the zoo",
    )
    add_training_options(parser)
    add_hyperparameter_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="default: 0")


def add_schedule_options(parser: argparse.ArgumentParser) -> None:
    """``--schedule`` and what goes with it."""
    parser.add_argument(
        "--schedule",
        default="constant",
        help=f"how the learning rate changes: one of {', '.join(SCHEDULES)} (default: constant)",
    )
    parser.add_argument(
        "--warmup", type=int, metavar="STEPS", help="steps over which the rate rises from 0"
    )
    parser.add_argument(
        "--decay",
        type=float,
        metavar="FACTOR",
        help=f"for step and exponential: what an epoch's decay multiplies with; default: {DECAY}",
    )
    parser.add_argument(
        "--decay-after", type=int, metavar="EPOCHS", help="for step: before the first; default: 1"
    )
    parser.add_argument(
        "--decay-every", type=int, metavar="EPOCHS", help="for step: between two; default: 1"
    )


def schedule_from(args: argparse.Namespace, steps_per_epoch: int) -> Schedule:
    """The schedule that the options say; it ends with the last of ``--epochs``.

    Raises
    ------
    UserError
        If there is no such schedule, or an option does not go with it.
    """
    kind, warmup = args.schedule, args.warmup
    if kind not in SCHEDULES:
        raise unknown("schedule", kind, SCHEDULES)
    for option, kinds in (
        ("decay", ("step", "exponential")),
        ("decay_after", ("step",)),
        ("decay_every", ("step",)),
    ):
        if getattr(args, option) is not None and kind not in kinds:
            raise UserError(
                f"--{option.replace('_', '-')} goes with --schedule {' or '.join(kinds)}, "
                f"not {kind}"
            )
    if kind == "inverse-sqrt":
        if warmup is None:
            raise UserError("--schedule inverse-sqrt needs --warmup STEPS")
        return inverse_sqrt(warmup)
    factor = DECAY if args.decay is None else args.decay
    schedule: Schedule = constant
    if kind == "step":
        after = 1 if args.decay_after is None else args.decay_after
        every = 1 if args.decay_every is None else args.decay_every
        schedule = step_decay(steps_per_epoch, factor, after=after, every=every)
    elif kind == "exponential":
        schedule = exponential(steps_per_epoch, factor)
    elif kind == "cosine":
        schedule = cosine(max(1, args.epochs * steps_per_epoch - (warmup or 0)))
    return schedule if warmup is None else with_warmup(schedule, warmup)
