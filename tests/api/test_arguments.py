"""Every argument of every public function, with values of every kind: right, or one sentence.

Nothing here starts Legion; arguments of what trains are tried in `test_training_arguments`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oddities import ODDITIES, tried

import flexlegion as fl
from flexlegion.graph.initializers import Constant, Given, GlorotUniform, HeNormal, Normal
from flexlegion.layers.layers import Layers
from flexlegion.objective import losses, schedules
from flexlegion.objective.training import TrainingOptions

MACHINE = "p100x2"


def small() -> fl.Model:
    model = fl.Model(4)
    x = model.dense(model.input((8,)), 8, "relu", name="first")
    model.softmax(model.dense(x, 3, name="second"))
    return model


MODEL = small()


def own_loss(layers: Any, output: Any, _labels: Any) -> Any:
    return layers.relu(output)


# What each function is called with where its argument is not the one that is tried.
ASKED = {"model": MODEL, "machine": MACHINE}
SHORT = {"budget": "0.1s", "proposals": 3, "chains": 1, "progress": False}
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    fl.simulate: ASKED | {"strategy": "data"},
    fl.explain: ASKED | {"strategy": "model"},
    fl.report_on: ASKED | {"strategy": "data", "progress": False},
    fl.search: ASKED | SHORT,
    fl.compare: ASKED | SHORT,
    fl.simulate_program: ASKED | {"strategy": "zero=1", "system": "compiled"},
    fl.search_programs: ASKED | {"most_micro_batches": 1},
    fl.compare_programs: ASKED | {"most_micro_batches": 1},
    fl.what_fits: ASKED | {"most_micro_batches": 1},
    fl.what_if: ASKED | {"vary": "memory=x1,x2"} | SHORT,
    fl.export: ASKED | {"strategy": "data"},
    fl.sbp: {"model": MODEL, "mesh": fl.Mesh(["gpu:0", "gpu:1"]), "signatures": {"first": fl.S(0)}},
    fl.load_machine: {"spec": MACHINE},
    fl.load_model: {"name": "mlp"},
    fl.from_torch: {"module": torch.nn.Linear(3, 2), "example_inputs": torch.zeros(2, 3)},
    fl.to_torch: {"model": MODEL, "module": torch.nn.Linear(3, 2)},
    fl.from_onnx: {"source": "none.onnx", "batch_size": 2},
    fl.Model: {"batch_size": 4},
    fl.SGD: {},
    fl.Adam: {},
    fl.AdamW: {},
    fl.LazyAdam: {},
    fl.ParameterGroup: {"lr": 0.1},
    fl.EarlyStopping: {},
    fl.BestWeights: {"path": "weights.npz"},
    fl.CSVLog: {"path": "log.csv"},
    fl.WandB: {"project": "own"},
    fl.Checkpoints: {"directory": "checkpoints"},
    fl.Granularity: {},
    fl.Mesh: {"devices": ["gpu:0"]},
    fl.S: {"axis": 0},
    schedules.step_decay: {"steps_per_epoch": 2, "factor": 0.5},
    schedules.exponential: {"steps_per_epoch": 2, "factor": 0.5},
    schedules.cosine: {"steps": 3},
    schedules.inverse_sqrt: {"warmup": 3},
    schedules.with_warmup: {"schedule": schedules.constant, "steps": 3},
    losses.Huber: {},
    losses.ArcFace: {},
    losses.CategoricalCrossentropy: {},
    losses.BinaryCrossentropy: {},
    losses.Written: {"function": own_loss},
    Constant: {},
    Given: {"array": np.zeros(3)},
    Normal: {},
    GlorotUniform: {},
    HeNormal: {},
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_functions(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    given = CALLS[function]
    for name in _names(function):
        tried(f"{function.__name__}({name}=)", lambda v, n=name: function(**given | {n: v}))


def test_layers() -> None:
    """All layers, each argument; what is taken can be summed up."""
    failures = []
    for method, calls in _layers():
        for name in _names(getattr(Layers, method))[1:]:

            def call(value: Any, at: Any = (method, name, calls)) -> None:
                layers = fl.Model(4)
                given = {key: make(layers) for key, make in at[2].items()}
                getattr(layers, at[0])(**given | {at[1]: value})

            failures += tried(f"{method}({name}=)", call, ends=False)
    assert not failures, "\n".join(failures)


def test_methods_of_a_model_that_is_not_compiled(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for method in ("compile", "fit", "evaluate", "predict", "timeline", "set_weights", "bind"):
        function = getattr(fl.Model, method)
        for name in _names(function)[1:]:
            if method == "compile":
                continue
            needed = dict.fromkeys(_required(function), 0)
            tried(
                f"{method}({name}=)",
                lambda v, m=method, n=name, g=needed: getattr(small(), m)(**g | {n: v}),
            )
    for method in ("copy", "plot", "save_weights", "load_weights", "resume_training"):
        function = getattr(fl.Model, method)
        for name in _names(function)[1:]:
            needed = dict.fromkeys(_required(function), "none")
            tried(
                f"{method}({name}=)",
                lambda v, m=method, n=name, g=needed: getattr(MODEL, m)(**g | {n: v}),
            )


@pytest.mark.parametrize(
    "function",
    [
        fl.simulate,
        fl.explain,
        fl.report_on,
        fl.search,
        fl.compare,
        fl.simulate_program,
        fl.search_programs,
        fl.compare_programs,
        fl.what_fits,
        fl.what_if,
        fl.export,
        fl.tune,
    ],
    ids=lambda function: function.__name__,
)
def test_options_of_training(function: Callable[..., Any]) -> None:
    """Stated once, they are shown by help and checked as all other arguments are."""
    assert set(TrainingOptions.__annotations__) <= set(_names(function))
    its = function.__name__
    needed = {"vary": "memory=x2"} if function is fl.what_if else {}
    with pytest.raises(
        TypeError, match=rf"{its}\(\) got an unexpected keyword argument 'optimiser'"
    ):
        function(MODEL, MACHINE, **needed, optimiser="adam")
    with pytest.raises(fl.UserError, match=f"{its}: 'storage' has to be text or None, but is 16"):
        function(MODEL, MACHINE, **needed, storage=16)
    network = fl.simulate(MODEL, MACHINE).setting.network
    if function is not fl.tune:  # which needs Legion
        given = ASKED | {"model": network, "strategy": "data"} | needed
        takes = {name: given[name] for name in _names(function) if name in given}
        with pytest.raises(fl.UserError, match="a network says how it is trained; leave out loss"):
            function(**takes, loss="huber")


def test_wrong_types_are_named() -> None:
    for ask, sentence in (
        (lambda: fl.Model(2.5), "Model: 'batch_size' has to be a whole number, but is 2.5"),
        (lambda: fl.Model(True), "Model: 'batch_size' has to be a whole number, but is True"),
        (lambda: small().fit(0, epochs="2"), "fit: 'epochs' has to be a whole number, but is '2'"),
        (
            lambda: small().fit(0, callbacks=fl.EarlyStopping()),
            "fit: 'callbacks' has to be a list, each of it a Callback, but is an EarlyStopping",
        ),
        (
            lambda: small().compile(schedule=0.1),
            "compile: 'schedule' has to be a function, but is 0.1",
        ),
        (
            lambda: small().compile(optimizer=torch.optim.SGD([torch.zeros(1)])),
            "compile: 'optimizer' has to be text or an Optimizer, but is a SGD",
        ),
        (
            lambda: small().compile(metrics="accuracy"),
            "compile: 'metrics' has to be a list, each of it text or a dict, but is 'accuracy'",
        ),
        (
            lambda: fl.simulate(torch.nn.Linear(2, 2), MACHINE),
            "simulate: 'model' has to be a Model or a Network or text or a path, but is a Linear; "
            "flexlegion.from_torch imports it",
        ),
        (
            lambda: small().compile(loss=torch.nn.NLLLoss()),
            "the loss NLLLoss is another library's and cannot compute of a model's "
            "tensors; give 'sparse_categorical_crossentropy', or a function",
        ),
        (
            lambda: small().compile(loss=torch.nn.functional.kl_div),
            "the loss kl_div is another library's and cannot compute of a model's tensors; give "
            "one of sparse_categorical_crossentropy,",
        ),
        (
            lambda: small().compile(loss=torch.nn.CrossEntropyLoss(reduction="sum")),
            "the loss CrossEntropyLoss has reduction='sum', but training minimises the mean over a "
            "batch; leave the reduction out",
        ),
        (
            lambda: small().compile(loss=torch.nn.SmoothL1Loss(beta=0.5)),
            "SmoothL1Loss with beta=0.5 is Huber(0.5) divided by beta; give that loss, and "
            "loss_weights=2",
        ),
        (
            lambda: small().compile(loss=torch.nn.BCEWithLogitsLoss(pos_weight=torch.ones(2))),
            "pos_weight of BCEWithLogitsLoss has 2 numbers, but all labels have the same weight "
            "here; give one number, or write the loss with layers",
        ),
        (
            lambda: small().compile(loss=torch.nn.CrossEntropyLoss(torch.ones(7))),
            "sparse_categorical_crossentropy has class_weights of 7 classes, but the output has",
        ),
        (
            lambda: losses.SparseCategoricalCrossentropy(class_weights=[1, -1]),
            "class_weights have to be numbers from 0, but one is -1",
        ),
        (
            lambda: losses.Written(own_loss, weighted=True),
            "a loss of one's own is not weighted; multiply it with an input of the model",
        ),
        (
            lambda: small().compile(loss=lambda output: output),
            "a loss of one's own is a function (layers, output, labels), but the function <lambda>",
        ),
        (
            lambda: small().compile(schedule=lambda: 1.0),
            "a schedule is a function of the step's number alone, but the function <lambda>",
        ),
        (
            lambda: small().compile(schedule=schedules.exponential),
            "a schedule is a function of the step's number alone, but the function exponential",
        ),
        (
            lambda: small().compile(schedule=lambda _: math.nan),
            "the schedule gives nan for step 0, but has to give a finite number, at least 0",
        ),
    ):
        with pytest.raises(fl.UserError) as error:
            ask()
        assert str(error.value).startswith(sentence)


def test_every_public_function_is_tried() -> None:
    known = {function.__name__ for function in CALLS}
    other = {
        "B", "P", "Callback", "DivergenceError", "UserError", "History", "ParallelConfig",
        "Strategy", "Topology", "TuneResult", "library_folder", "load_kernels",
        "register_functions", "register_search", "register_strategy", "set_threads",
        "TensorBoard", "tune",
    }  # fmt: skip
    assert set(fl.__all__) - other <= known


def _names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _required(function: Callable[..., Any]) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [p.name for p in parameters if p.default is p.empty]


def _layers() -> Iterator[tuple[str, dict[str, Callable[[fl.Model], Any]]]]:
    """Each layer, and what makes its required arguments."""

    def tensor(*shape: int, dtype: Any = "float32") -> Callable[[fl.Model], Any]:
        return lambda model: model.input(shape, dtype)

    def value(given: Any) -> Callable[[fl.Model], Any]:
        return lambda _: given

    rows, image, steps = tensor(6), tensor(8, 8, 2), tensor(4, 6)
    special: dict[str, dict[str, Callable[[fl.Model], Any]]] = {
        "input": {"shape": value((3,))},
        "embedding": {"tokens": tensor(4, dtype="int32"), "vocabulary": value(9)},
        "position_embedding": {"x": steps},
        "lstm": {"x": steps, "hidden": value(3)},
        "gru": {"x": steps, "hidden": value(3)},
        "luong_attention": {"states": steps, "memory": steps},
        "attention": dict.fromkeys("qkv", tensor(2, 4, 6)),
        "multi_head_attention": dict.fromkeys(("queries", "keys", "values"), tensor(2, 4, 6)),
        "rotary": {"x": tensor(2, 4, 6), "cos": tensor(4, 6), "sin": tensor(4, 6)},
        "conv1d": {"x": steps, "filters": value(3), "kernel": value(3)},
        "pool1d": {"x": steps, "kernel": value(2)},
        "reduce": {"x": steps, "kind": value("sum"), "axes": value(1)},
        "reshape": {"x": rows, "shape": value((2, 3))},
        "transpose": {"x": steps, "permutation": value((0, 2, 1))},
        "rearrange": {
            "x": rows, "extents": value((2, 3)), "order": value((1, 0)), "shape": value((6,)),
        },
        "split": {"x": steps, "sizes": value((2, 4)), "axis": value(2)},
        "concat": {"inputs": lambda model: [rows(model), rows(model)]},
        "pad": {"x": rows, "amounts": value([(1, 1)])},
        "roll": {"x": rows, "shift": value(1), "axis": value(1)},
        "take": {"x": rows, "numbers": value([0, 1]), "axis": value(1)},
        "parameter": {"shape": value((3,))},
        "constant": {"array": value(np.zeros(3))},
        "expand": {"x": tensor(1), "shape": value((3,))},
        "elementwise": {"formula": value("x0 + 1"), "inputs": lambda model: [rows(model)]},
        "unary": {"x": rows, "function": value("exp")},
        "experts": {"x": rows, "gates": tensor(3), "units": value(4)},
        "dropout": {"x": rows, "rate": value(0.5)},
        "drop_path": {"x": rows, "rate": value(0.5)},
        "set_outputs": {"tensors": rows},
    }  # fmt: skip
    usual = {
        "x": rows, "a": tensor(2, 3), "b": tensor(3, 2), "units": value(4), "filters": value(3),
        "kernel": value(3), "inputs": lambda model: [rows(model), rows(model)], "k": value(2),
        "gates": tensor(3), "groups": value(3), "most": value(2),
    }  # fmt: skip
    for name, method in inspect.getmembers(Layers, inspect.isfunction):
        if name.startswith("_") or name == "apply":
            continue
        given = dict(special.get(name, {}))
        images = name.endswith("2d") or name.startswith(("conv2d", "pool2d"))
        for parameter in _required(method):
            if parameter not in given:
                given[parameter] = image if images and parameter == "x" else usual[parameter]
        if name in ("subtract", "divide", "add", "multiply"):
            given |= dict.fromkeys(given.keys() & {"a", "b"}, rows)
        yield name, given


def test_oddities_are_of_many_kinds() -> None:
    assert len({type(value) for value in ODDITIES}) > 15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model, x: model.dense(x, 4, activations="relu"),
            r"dense\(\) got an unexpected keyword argument 'activations' "
            r"\(did you mean 'activation'\?\); its arguments are x, units, ",
        ),
        (
            lambda model, x: model.conv2d(x, 4, kernel_size=3),
            r"conv2d\(\) got an unexpected keyword argument 'kernel_size' "
            r"\(did you mean 'kernel'\?\)",
        ),
        (lambda model, _: type(model)(8, sed=3), r"Model\(\) got .* \(did you mean 'seed'\?\)"),
        (lambda model, x: model.relu(x, zzz=3), r"'zzz'; its arguments are x, "),
    ],
)
def test_misspelt_arguments(call: Callable[..., Any], message: str) -> None:
    """No private class is named, and what there is is told."""
    model = fl.Model(8)
    with pytest.raises(TypeError, match=message):
        call(model, model.input((8,)))
