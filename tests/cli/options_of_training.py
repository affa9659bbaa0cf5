"""Options of the commands that train, and what shows that they arrived; see options.py.

Runs on Legion take seconds, so each run gives many options at once. What is about data is asked of
what `prepared` makes of it, which trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from launch import BFLOAT16
from options import Given, Outcome, Row, says, written

from flexlegion.training.checkpoints.files import folders

STORAGE = "bf16" if BFLOAT16 else "fp32"


@dataclass(frozen=True)
class Run:
    """A command on Legion."""

    command: str
    given: Given


@dataclass(frozen=True)
class Shown:
    """What a run's options lead to: what its JSON object tells, by key, or something else."""

    run: str
    told: Mapping[str, Any] | None = None
    shows: Callable[[Outcome], bool] = lambda _: True


@dataclass(frozen=True)
class Elsewhere:
    """An option that a test of its own is about."""

    test: str


NETWORK = {
    "--model": "mlp",
    "--size": "hidden=16x8",
    "--batch-size": "16",
    "--loss": "mean_squared_error",
    "--storage": STORAGE,
    "--micro-batches": "2",
    "--clip-norm": "0.7",
    "--ema": "0.9",
}
MOMENTUM = {"--optimizer": "sgd", "--lr": "0.02", "--momentum": "0.5", "--weight-decay": "0.01"}
MOMENTUM |= {"--group": "dims<=1:weight_decay=0"}
GROUP = {"names": ["*"], "lr": None, "weight_decay": 0.0, "max_dims": 1}
SYNTHETIC = {"--data": "synthetic", "--samples": "48", "--seed": "3"}

TO_TRAIN = ("--micro-batches", "--clip-norm", "--ema")
COMPUTED = {name: value for name, value in NETWORK.items() if name not in TO_TRAIN}

RUNS = {
    "train": Run(
        "train",
        NETWORK
        | MOMENTUM
        | SYNTHETIC
        | {
            "--strategy": "model",
            "--epochs": "4",
            "--schedule": "step",
            "--warmup": "2",
            "--decay": "0.5",
            "--decay-after": "2",
            "--decay-every": "2",
            "--checkpoint": "FOLDER/kept",
            "--every": "2",
            "--keep": "2",
            "--validate": True,
            "--early-stopping": "9",
            "--best-weights": "FOLDER/best.npz",
            "--log": "FOLDER/log.csv",
            "--save-weights": "FOLDER/weights.npz",
            "--timeline": "FOLDER/timeline.json",
            "--cpus": "2",
            "--json": "FOLDER/train.json",
        },
    ),
    "resumed": Run(
        "train",
        NETWORK
        | MOMENTUM
        | SYNTHETIC
        | {
            "--epochs": "5",
            "--checkpoint": "FOLDER/kept",
            "--every": "2",
            "--keep": "2",
            "--resume": True,
            "--strategy": "model",
            "--cpus": "2",
            "--json": "FOLDER/resumed.json",
        },
    ),
    "from weights": Run(
        "train",
        NETWORK
        | SYNTHETIC
        | {
            "--optimizer": "adamw",
            "--lr": "1e-30",
            "--weights": "FOLDER/weights.npz",
            "--save-weights": "FOLDER/same.npz",
            "--epochs": "1",
            "--cpus": "1",
            "--json": "FOLDER/from weights.json",
        },
    ),
    "diverging": Run(
        "train",
        NETWORK
        | SYNTHETIC
        | {
            "--clip-norm": None,
            "--lr": "1e30",
            "--allow-nan": True,
            "--epochs": "2",
            "--cpus": "1",
            "--json": "FOLDER/diverging.json",
        },
    ),
    "tune": Run(
        "tune",
        NETWORK
        | MOMENTUM
        | SYNTHETIC
        | {
            "--budget": "200ms",
            "--finalists": "1",
            "--rounds": "2",
            "--max-rounds": "3",
            "--trial-budget": "100ms",
            "--gain": "0.2",
            "--confidence": "0.8",
            "--profile-db": "FOLDER/tuned.db",
            "--cpus": "2",
            "--out": "FOLDER/tuned.json",
            "--report": "FOLDER/tuned.html",
            "--json": True,
        },
    ),
    "evaluate": Run(
        "evaluate",
        COMPUTED
        | SYNTHETIC
        | {
            "--weights": "FOLDER/kept",
            "--averages": True,
            "--strategy": "model",
            "--part": "all",
            "--cpus": "2",
            "--json": True,
        },
    ),
    "predict": Run(
        "predict",
        COMPUTED
        | SYNTHETIC
        | {
            "--loss": None,
            "--weights": "FOLDER/kept",
            "--averages": True,
            "--strategy": "model",
            "--out": "FOLDER/predicted.npy",
            "--cpus": "2",
            "--json": True,
        },
    ),
    "accuracy": Run(
        "accuracy",
        NETWORK
        | {
            "--optimizer": "adam",
            "--strategies": "2",
            "--rounds": "2",
            "--trial-budget": "100ms",
            "--seed": "3",
            "--profile-db": "FOLDER/accuracy.db",
            "--cpus": "2",
            "--report": "FOLDER/accuracy.html",
            "--json": True,
        },
    ),
}

_LAUNCH = {
    "ranks": Elsewhere("tests/cli/test_ranks_command.py"),
    "hosts": Elsewhere("tests/cli/test_ranks_command.py"),
    "threads": Elsewhere("tests/tune/test_launch.py"),
    "gpus": Elsewhere("tests/tune/test_launch.py"),
    "legate": Elsewhere("tests/cli/test_ranks_command.py"),
}


def _network(run: str, within: str = "") -> dict[str, Shown | None]:
    told = {
        "model": "mlp",
        "size": [16, 8],
        "batch_size": 16,
        "loss": "mean_squared_error",
        "storage": STORAGE,
        "micro_batches": 2,
        "clip_norm": 0.7,
        "ema": 0.9,
    }
    keys = {"size": "sizes.hidden"}
    keys |= {name: f"hyperparameters.{name}" for name in ("clip_norm", "ema")}
    shown = {
        name: Shown(run, {within + keys.get(name, name): value}) for name, value in told.items()
    }
    return {**shown, "no_verify": None}


def _momentum(run: str, within: str = "") -> dict[str, Shown]:
    told = {"lr": 0.02, "momentum": 0.5, "weight_decay": 0.01, "group": [GROUP]}
    key = {"group": "groups"}
    return {n: Shown(run, {f"{within}hyperparameters.{key.get(n, n)}": v}) for n, v in told.items()}


def _same_weights(outcome: Outcome) -> bool:
    files = [np.load(outcome.folder / name) for name in ("weights.npz", "same.npz")]
    return all(np.array_equal(files[0][name], files[1][name]) for name in files[0])


# What `DATA` shows, of both commands that train on data.
OF_DATA = (
    "data",
    "columns",
    "labels",
    "augment",
    "source_language",
    "target_language",
    "held_out",
    "precision",
)


def _trained(run: str) -> dict[str, Shown | Elsewhere | None]:
    """What the commands share that use a trained model."""
    used = _network(run)
    for option in TO_TRAIN:
        del used[option.removeprefix("--").replace("-", "_")]
    return {
        **used,
        **dict.fromkeys(name for name in OF_DATA if name not in ("augment", "held_out")),
        **_LAUNCH,
        "samples": Shown(run, {"samples": 48}),
        "seed": Shown(run, {"seed": 3}),
        "strategy": Shown(run, {"strategy": "strategy 'model'"}),
        "weights": Shown(run, shows=lambda its: its.told("weights").startswith(str(its.folder))),
        "averages": Shown(run, {"averages": True}),
        "cpus": Shown(run, {"devices": ["cpu:0", "cpu:1"]}),
        "json": Shown(run, {"model": "mlp"}),
    }


# Of each option what shows it; None: `DATA` does.
TRAINING: dict[str, dict[str, Shown | Elsewhere | None]] = {
    "train": _network("train", "ran.")
    | _momentum("train", "ran.")
    | dict.fromkeys(OF_DATA)
    | _LAUNCH
    | {
        "optimizer": Shown("from weights", {"ran.optimizer": "adamw"}),
        "samples": Shown("train", {"ran.samples": 48}),
        "seed": Shown("train", {"ran.seed": 3}),
        "strategy": Shown("train", {"ran.strategy": "strategy 'model'"}),
        "epochs": Shown("train", {"ran.iterations": 12}),
        # Epochs of three iterations: the rate halves after the second, and after the fourth.
        "schedule": Shown("train", {"ran.learning_rates.last": 0.01}),
        "decay": Shown("train", {"ran.learning_rates.last": 0.01}),
        "decay_after": Shown("train", {"ran.learning_rates.last": 0.01}),
        "decay_every": Shown("train", {"ran.learning_rates.last": 0.01}),
        "warmup": Shown("train", {"ran.learning_rates.first": 0.01}),
        "checkpoint": Shown("train", shows=lambda its: bool(folders(its.folder / "kept"))),
        "every": Shown("train", shows=lambda its: len(folders(its.folder / "kept")) == 2),
        "keep": Shown("train", shows=lambda its: len(folders(its.folder / "kept")) == 2),
        "resume": Shown("resumed", {"ran.iterations": 15}),
        "weights": Shown("from weights", shows=_same_weights),
        "validate": Shown("train", shows=lambda its: "val_loss" in its.told("epochs.0")),
        "early_stopping": Elsewhere("tests/cli/test_train.py"),
        "best_weights": Shown("train", shows=written("best.npz")),
        "log": Shown("train", shows=written("log.csv")),
        "tensorboard": Elsewhere("tests/cli/test_train.py"),
        "wandb": Elsewhere("tests/cli/test_train.py"),
        "allow_nan": Shown("diverging", shows=says("nan")),
        "bleu": Elsewhere("tests/cli/test_errors.py"),
        "json": Shown("train", {"ranks": 1}),
        "save_weights": Shown("train", shows=written("weights.npz")),
        "timeline": Shown("train", shows=written("timeline.json")),
        "cpus": Shown("train", {"ran.devices": ["cpu:0", "cpu:1"]}),
    },
    "tune": _network("tune")
    | _momentum("tune")
    | dict.fromkeys(OF_DATA)
    | _LAUNCH
    | {
        "optimizer": Shown("tune", {"optimizer": "sgd"}),
        "samples": None,
        "seed": Shown("tune", {"seed": 3}),
        "out": Shown("tune", shows=written("tuned.json")),
        "budget": Shown("tune", {"budget.seconds": 0.2}),
        "start": Elsewhere("tests/tune/test_tune_command.py"),
        "finalists": Shown("tune", shows=lambda its: len(its.told("finalists")) <= 2),
        "rounds": Shown("tune", {"rules.rounds": 2}),
        "max_rounds": Shown("tune", {"rules.max_rounds": 3}),
        "trial_budget": Shown("tune", {"rules.seconds": 0.1}),
        "gain": Shown("tune", {"rules.gain": 0.2}),
        "confidence": Shown("tune", {"rules.confidence": 0.8}),
        "profile_db": Shown("tune", shows=written("tuned.db")),
        "cpus": Shown("tune", {"machine": "cpu:0, cpu:1"}),
        "report": Shown("tune", shows=written("tuned.html")),
        "json": Shown("tune", {"model": "mlp"}),
    },
    "evaluate": _trained("evaluate")
    | {
        "held_out": Elsewhere("tests/cli/test_evaluate.py"),
        "part": Shown("evaluate", {"samples": 48, "part": "all"}),
    },
    "predict": {name: shown for name, shown in _trained("predict").items() if name != "loss"}
    | {
        "part": Elsewhere("tests/cli/test_evaluate.py"),
        "out": Shown("predict", shows=written("predicted.npy")),
    },
    "accuracy": _network("accuracy")
    | _LAUNCH
    | {
        "precision": Elsewhere("tests/cli/test_errors_legion.py"),  # CPU processors have but one
        "optimizer": Shown("accuracy", {"optimizer": "adam"}),
        "strategies": Shown("accuracy", shows=lambda its: len(its.told("strategies")) == 1),
        "rounds": Shown("accuracy", {"options.rounds": 2}),
        "trial_budget": Shown("accuracy", {"options.trial_budget": "100ms"}),
        "seed": Shown("accuracy", {"seed": 3}),
        "profile_db": Shown("accuracy", shows=written("accuracy.db")),
        "cpus": Shown("accuracy", {"machine": "cpu:0, cpu:1"}),
        "report": Shown("accuracy", shows=written("accuracy.html")),
        "json": Shown("accuracy", {"model": "mlp"}),
    },
    "machine measure": _LAUNCH
    | {
        "cpus": Elsewhere("tests/runtime/test_measure.py"),
        "nodes": Elsewhere("tests/runtime/test_measure.py"),
        "out": Elsewhere("tests/runtime/test_measure.py"),
        "json": Elsewhere("tests/runtime/test_measure.py"),
    },
    "checkpoint show": {
        "folder": Elsewhere("tests/runtime/test_checkpoints.py"),
        "json": Elsewhere("tests/runtime/test_checkpoints.py"),
    },
    "checkpoint verify": {
        "folder": Elsewhere("tests/runtime/test_checkpoints.py"),
        "json": Elsewhere("tests/runtime/test_checkpoints.py"),
    },
}

_MLP = {"--model": "mlp"}
_NMT = {"--model": "nmt"}
# What `prepared` makes of options of data: how many samples to train on, or why it refuses them.
DATA: dict[str, list[Row]] = {
    "samples": [
        Row(_MLP | {"--data": "synthetic", "--samples": "96"}, {"samples": 96}),
        Row(
            _MLP | {"--data": "FOLDER/arrays.npz", "--samples": "96"},
            shows=says("--samples goes with --data synthetic"),
            status=2,
        ),
    ],
    "precision": [Row(_MLP | {"--precision": "tf32"}, {"precision": "tf32"})],
    "no_verify": [Row(_MLP | {"--no-verify": True}, shows=says("is not imported"), status=2)],
    "data": [Row(_MLP | {"--data": "FOLDER/arrays.npz"}, {"samples": 32})],
    "columns": [
        Row(
            _MLP | {"--data": "FOLDER/table.parquet", "--columns": "features=pixels,labels=digit"},
            {"samples": 32},
        ),
        Row(
            _MLP | {"--data": "FOLDER/table.parquet", "--columns": "features=pixel,labels=digit"},
            shows=says("but the model needs a column 'pixel'; --columns NAME=COLUMN says which"),
            status=2,
        ),
        Row(
            _MLP | {"--data": "FOLDER/table.parquet", "--columns": "feature=pixels"},
            shows=says("--columns names 'feature', but the model has features, labels"),
            status=2,
        ),
        Row(
            _MLP | {"--data": "FOLDER/table.parquet", "--columns": "pixels"},
            shows=says("--columns takes NAME=COLUMN, as in image=pixels, but is 'pixels'"),
            status=2,
        ),
        Row(
            _MLP | {"--data": "sample", "--columns": "features=pixels"},
            shows=says("--columns goes with data of arrays or columns by name"),
            status=2,
        ),
    ],
    "held_out": [
        Row(_MLP | {"--data": "FOLDER/arrays.npz", "--held-out": "0.5"}, {"samples": 20}),
        Row(
            _MLP | {"--data": "synthetic", "--held-out": "0.5"},
            shows=says("--held-out goes with data of which a part can be held out"),
            status=2,
        ),
        Row(
            _MLP | {"--data": "FOLDER/tested.npz", "--held-out": "0.5"},
            shows=says("the data bring a test set"),
            status=2,
        ),
    ],
    "labels": [
        Row(
            _MLP | {"--data": "FOLDER/x.npy", "--labels": "FOLDER/y.npy"},
            {"samples": 32, "largest_label": 6},
        ),
        Row(
            _MLP | {"--data": "synthetic", "--labels": "FOLDER/y.npy"},
            shows=says("--labels goes with data for a network of the zoo"),
            status=2,
        ),
    ],
    "augment": [
        Row({"--model": "lenet", "--data": "FOLDER/images", "--augment": True}, {"augment": True}),
        Row(
            _MLP | {"--data": "synthetic", "--augment": True},
            shows=says("--augment goes with folders of images"),
            status=2,
        ),
    ],
    "source_language": [
        Row(
            _NMT | {"--data": "FOLDER/corpus", "--source-language": "fr"},
            shows=says("corpus.fr"),
            status=2,
        ),
        Row(
            _NMT | {"--data": "sample", "--source-language": "fr"},
            shows=says("--source-language goes with a parallel corpus"),
            status=2,
        ),
    ],
    "target_language": [
        Row(
            _NMT | {"--data": "FOLDER/corpus", "--target-language": "it"},
            shows=says("corpus.it"),
            status=2,
        ),
        Row(
            _MLP | {"--target-language": "it"},
            shows=says("--target-language goes with a parallel corpus"),
            status=2,
        ),
    ],
}
