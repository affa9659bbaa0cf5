"""Options of commands that train: the model and its data, and how the learning rate changes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from flexlegion.data.named import NamedArrays, load_named
from flexlegion.data.synthetic import NAME as SYNTHETIC
from flexlegion.data.synthetic import made_up
from flexlegion.data.tables import is_table
from flexlegion.data.tasks import SAMPLE, Request, load_for, network_sizes
from flexlegion.graph.fingerprint import difference
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies import read_strategy
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.model.model import Model
from flexlegion.networks.network import Network
from flexlegion.networks.references import HELP, load_model, target_of
from flexlegion.objective.losses import MeanSquaredError, losses_of
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
    def of(cls, data: Dataset | ImageFolder | NamedArrays) -> Samples:
        """Those of a data set."""
        if isinstance(data, NamedArrays):
            return cls(data.x, data.y, data.samples)
        x, y = (data.x, data.y) if isinstance(data, Dataset) else (data, None)
        return cls(x, y, len(data))


@dataclass(frozen=True)
class Prepared:
    """What is to be trained, and on what.

    Parameters
    ----------
    network
        With the sizes that the data need.
    strategy
        What ``--strategy`` names, a file read; "data" where a command has no such option.
    train, test
        What to train on, and to test with.
    whole
        All samples in the data's own order; None: the data bring a test set of their own.
    test_set
        What `test` came from, if it was a data set.
    """

    network: Network
    strategy: str | Strategy
    train: Samples
    test: Samples
    whole: Samples | None
    test_set: Dataset | ImageFolder | None = None


def prepared(args: argparse.Namespace, labelled: bool = True) -> Prepared:
    """The network, the strategy and the data that the options say.

    Where neither options nor data say the sizes, the batch size, or how the network is trained,
    they are what the strategy was found for, if that was the same model.

    Parameters
    ----------
    args
        Of `add_model_options`.
    labelled
        Whether labels are needed; without, data of a model of one's own may lack them.

    Raises
    ------
    UserError
        If there is no such model, strategy, size, loss or data, or they do not go together.
    """
    target = target_of(args.model)  # first, as the model's module may register the strategy
    strategy = read_strategy(getattr(args, "strategy", "data"))
    sizes = given_sizes(args.size, target)
    source = args.data or (SAMPLE if args.model in ZOO else SYNTHETIC)
    _check_data_options(args, source)
    found = found_for(target, strategy)
    where = strategy.source if isinstance(strategy, Strategy) else ""
    training = training_from(args, found, where)
    if args.model in ZOO and source != SYNTHETIC and not is_table(source):
        model, splits = _prepared_for(source, ZOO[args.model], sizes, args)
        network = _network(model, training, labelled)
        _check_found_for(strategy, network, source)
        return _divided(network, strategy, splits, args)
    if args.augment:
        raise UserError("--augment goes with folders of images")
    batch_size = found.get("batch_size") if args.batch_size is None else args.batch_size
    phase(f"building the model {printable(target.name)}")
    sizes = found_sizes(found, target, where) | sizes
    model = target.load(batch_size, sizes, args.seed, not args.no_verify)
    network = _network(model, training, labelled)
    if source != SYNTHETIC:
        splits_by_name = load_named(source, network.graph, labelled, _columns(args.columns))
        return _divided(network, strategy, splits_by_name, args)
    number = SYNTHETIC_BATCHES * model.batch_size if args.samples is None else args.samples
    train, test = (
        Samples(*made_up(network.graph, samples, seed), samples)
        for samples, seed in ((number, args.seed), (min(number, model.batch_size), args.seed + 1))
    )
    return Prepared(network, strategy, train, test, train)


def _network(model: Model, training: TrainingSpec, labelled: bool) -> Network:
    """The model as it is trained; without labels by whatever loss, if nobody says one."""
    if not labelled and training.loss is None and model.loss is None:
        # Predictions are the same with any. This one goes with all outputs.
        training = replace(training, loss=MeanSquaredError.name)
    return Network.of(model, training)


def _divided(
    network: Network,
    strategy: str | Strategy,
    splits: Splits[Dataset] | Splits[ImageFolder] | Splits[NamedArrays],
    args: argparse.Namespace,
) -> Prepared:
    """Data with a part to test with, held out where they bring none."""
    train, test = splits.divided(args.held_out, args.seed)
    whole = Samples.of(splits.train) if splits.test is None else None
    test_set = None if isinstance(test, NamedArrays) else test
    return Prepared(network, strategy, Samples.of(train), Samples.of(test), whole, test_set)


def _check_found_for(strategy: str | Strategy, network: Network, source: str) -> None:
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


def _columns(texts: Sequence[str] | None) -> dict[str, str]:
    """Columns by what they are for, of ``NAME=COLUMN`` with commas between.

    Raises
    ------
    UserError
        If one is no such text, or is there twice.
    """
    columns: dict[str, str] = {}
    for entry in ",".join(texts).split(",") if texts else ():
        name, _, column = (part.strip() for part in entry.partition("="))
        if not name or not column:
            raise UserError(
                f"--columns takes NAME=COLUMN, as in image=pixels, but is '{printable(entry, 60)}'"
            )
        if name in columns:
            raise UserError(f"--columns names '{printable(name)}' twice; name it once")
        columns[name] = column
    return columns


def _written(value: Any) -> str:
    """A size as `--size` takes it."""
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _check_data_options(args: argparse.Namespace, source: str) -> None:
    """Raise `UserError` if an option says something of data that these are not."""
    of_zoo = args.model in ZOO and source != SYNTHETIC and not is_table(source)
    corpus = of_zoo and ZOO[args.model].task == "translation" and source != SAMPLE
    for option, fits, what in (
        ("samples", source == SYNTHETIC, f"--data {SYNTHETIC}"),
        ("held_out", source != SYNTHETIC, "data of which a part can be held out"),
        ("labels", of_zoo, "data for a network of the zoo"),
        ("columns", source != SYNTHETIC and not of_zoo, "data of arrays or columns by name"),
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
) -> tuple[Model, Splits[Dataset] | Splits[ImageFolder]]:
    """A network of the zoo of the sizes that data need, and these."""
    languages = (args.source_language or LANGUAGES[0], args.target_language or LANGUAGES[1])
    phase(f"reading the data {printable(source)}")
    request = Request(source, args.labels, args.augment, languages, args.seed)
    splits, sizes = data_and_sizes(entry, given, request)
    batch_size = BATCH_SIZE if args.batch_size is None else args.batch_size
    model = load_model(args.model, batch_size, sizes, args.seed, not args.no_verify)
    return model, splits


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
    """``--model``, ``--data`` and more of commands that train, and how they do."""
    add_data_options(parser)
    parser.add_argument(
        "--augment", action="store_true", help="crop and mirror images of folders at random"
    )
    add_training_options(parser)
    add_hyperparameter_options(parser)


def add_data_options(parser: argparse.ArgumentParser, divided: bool = True) -> None:
    """``--model``, ``--size``, ``--batch-size``, ``--data`` and what goes with it.

    `divided`: also ``--held-out``, of commands that hold samples out.
    """
    parser.add_argument("--model", default="lenet", help=f"{HELP}; default: lenet")
    add_size_option(parser)
    add_verify_option(parser)
    parser.add_argument(
        "--data",
        help="sample: small real data that come along, the default for networks of the zoo; "
        "synthetic: random ones of the model's own sizes, the default for a model of your own; or "
        "a path: for such a model an .npz file with arrays by the names of inputs and outputs, or "
        "x and y; otherwise a folder of images or of MNIST's IDX files, .npz, .npy (with "
        "--labels), .h5; texts, .tsv, .csv; a parallel corpus's name; for any model .parquet, a "
        "folder of these, a data set of Hugging Face's on disk, a WebDataset's .tar",
    )
    parser.add_argument(
        "--columns",
        action="append",
        metavar="NAME=COLUMN",
        help="which column is for an input or an output, where it is not called so; several with "
        "commas between",
    )
    parser.add_argument("--labels", help="for .npy data: the labels' file")
    parser.add_argument("--samples", type=int, help="how many synthetic samples to make up")
    for language, default in zip(("source", "target"), LANGUAGES, strict=True):
        parser.add_argument(
            f"--{language}-language", help=f"a parallel corpus's ending; default: {default}"
        )
    if divided:
        parser.add_argument(
            "--held-out",
            type=float,
            help="share of the samples to test on, if the data bring no test set; default: "
            f"{HELD_OUT}",
        )
    parser.add_argument(
        "--batch-size",
        type=batch_size,
        help=f"over all devices; default: the model's own, but {BATCH_SIZE} with the data of a "
        "network of the zoo",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")


def add_strategy_option(parser: argparse.ArgumentParser) -> None:
    """``--strategy``."""
    parser.add_argument(
        "--strategy",
        default="data",
        help=f"a strategy file, or one of {strategy_names()} (default: data)",
    )


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
