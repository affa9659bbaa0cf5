"""Cases of pytorch_cases.py in PyTorch, in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pytorch_functions import FUNCTIONS
from pytorch_layers import BATCH, SOURCES, Case, sources
from pytorch_operations import MOVES, WINDOWS, attention, maximum, merged, of_channels_last
from torch.nn.utils import clip_grad_norm_

from flexlegion.objective.losses import (
    LOSSES,
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Huber,
    MeanAbsoluteError,
)
from flexlegion.objective.optimizers import SGD, Adam, AdamW, LazyAdam
from flexlegion.ops.normalization import BATCH_NORM_ACTIVATIONS

Arrays = dict[str, npt.NDArray[Any]]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **FUNCTIONS,
    "softmax": functools.partial(F.softmax, dim=-1),
}
FUSED = ("relu", "sigmoid", "tanh")  # activations that do not become a layer of their own
# Share of the largest value within which rounding may have decided which way a ReLU goes.
NEAR_ZERO = 0.02


class Reference:
    """A case in PyTorch; it starts from the weights that the worker saved, and masks as it did.

    With `alone`, each operator is by itself: it computes from the values, and its gradients from
    the gradients, that the worker had there. So what is compared is what an operator adds, even
    where a rounded value decides which way a ReLU goes, or sums cancel.
    """

    def __init__(self, case: Case, saved: Arrays, alone: bool = False) -> None:
        self.case, self.saved, self.alone = case, saved, alone
        self.loss = LOSSES[case.loss]() if isinstance(case.loss, str) else case.loss
        self.computed: dict[str, torch.Tensor] = {}  # values and gradients, if alone
        self.x, self.labels = (
            torch.tensor(array, dtype=torch.int64 if array.dtype == np.int32 else torch.float64)
            for array in (saved["initial/value/x"], saved["initial/value/labels"])
        )
        prefix = "initial/weight/"
        self.weights = {
            key.removeprefix(prefix): torch.tensor(value, dtype=torch.float64)
            for key, value in saved.items()
            if key.startswith(prefix)
        }
        constants = [f"l{i}" for i, (kind, _) in enumerate(case.layers) if kind == "constant"]
        lists = ("numbers", "order", "starts")  # of `take`
        self.trained = {
            k: w
            for k, w in self.weights.items()
            if "running" not in k and k not in constants and not k.endswith(lists)
        }
        for weight in self.trained.values():
            weight.requires_grad_()
        self.optimizers = self._optimizers() if self.trained else []

    def run(self) -> Arrays:
        """What the worker should have saved."""
        x, _ = self._batch(0)
        tensors = self._forward(x, None)
        arrays = {"predict/value/output": list(tensors.values())[-1]}
        metrics = self._losses(0, self._for_loss(tensors))[-1]
        arrays |= {f"evaluate/metrics/{name}": value for name, value in metrics.items()}
        for step in range(self.case.steps):
            arrays |= self._step(step)
        tensors = self._forward(self._batch(0)[0], None)
        arrays["after/value/output"] = list(tensors.values())[-1]
        return {key: array.detach().numpy() for key, array in arrays.items()}

    def _step(self, step: int) -> dict[str, torch.Tensor]:
        x, rows = self._batch(step)
        x.requires_grad_(x.is_floating_point() and self.case.with_gradient)
        tensors = self._for_loss(self._forward(x, step))
        trained = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
        for tensor in trained.values():
            tensor.retain_grad()
        outputs, metrics = self._losses(step, tensors)
        metrics["loss"].backward()
        arrays = {
            f"{step}/value/{n}": t for n, t in tensors.items() if not n.endswith((".h", ".c"))
        }
        arrays |= {key: t for key, t in self.computed.items() if key in arrays}
        for name, output in outputs.items():  # of padding, they are zero
            whole = output.new_zeros(BATCH, *output.shape[1:])
            whole[:rows] = output
            arrays[f"{step}/value/loss.{name}"] = whole
            # Of the goal by them: each label's share.
            parts = {"logit_statistics.log_sum": 1, "logit_statistics.mean": -1}
            if name in parts:
                smoothing = 1 if parts[name] > 0 else self.loss.label_smoothing
                share = output.new_zeros(BATCH, *output.shape[1:])
                share[:rows] = (self.labels[self.case.rows(step)] >= 0) / metrics["labels"]
                arrays[f"{step}/gradient/loss.{name}"] = parts[name] * smoothing * share
        arrays |= {f"{step}/metrics/{name}": value for name, value in metrics.items()}
        for name, tensor in (trained | self.trained).items():
            assert tensor.grad is not None
            key = f"{step}/gradient/{name}"
            arrays[key] = self.computed.get(key, tensor.grad.to_dense().clone())
        if self.trained and self.case.optimizer.clip_norm is not None:
            clip_grad_norm_(self.trained.values(), self.case.optimizer.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for name, weight in self.weights.items():
            arrays[f"{step}/weight/{name}"] = weight.detach().clone()
            for s, state in enumerate(self._states(weight) if weight.requires_grad else []):
                arrays[f"{step}/state{s}/{name}"] = state.clone()
        return arrays

    def _batch(self, step: int) -> tuple[torch.Tensor, int]:
        """The step's samples, with zeros to fill the batch; and the number of samples."""
        rows = self.case.rows(step)
        x = torch.zeros(BATCH, *self.case.shape, dtype=self.x.dtype)
        x[: len(rows)] = self.x[rows]
        return x, len(rows)

    def _forward(self, x: torch.Tensor, step: int | None) -> dict[str, torch.Tensor]:
        """The tensors by name; `step` is none without training."""
        tensors = {"x": x}
        outputs = [x]
        for i, (kind, of, options) in enumerate(sources(self.case.layers)):
            name = f"l{i}"
            if kind == "split":
                parts = outputs[of].split(options["sizes"], options.get("axis", -1))
                for k, part in enumerate(parts):
                    outputs.append(self._keep(f"{name}.{k}.output", part, step, tensors))
                continue
            if kind == "lstm":
                outputs.append(self._lstm(i, options.get("after"), outputs[of], step, tensors))
                continue
            if kind == "gru":
                y = self._gru(name, outputs[of])
                outputs.append(self._keep(f"{name}.y", y, step, tensors))
                continue
            if kind in SOURCES:
                outputs.append(self.weights[name])
                continue
            if kind == "luong_attention":
                x = self._luong_attention(name, *(outputs[k] for k in of))
            elif kind == "attention":
                bias = outputs[options["bias"]] if "bias" in options else None
                kept = None
                if options.get("dropout") and step is not None:
                    kept = torch.tensor(self.saved[f"{step}/value/{name}.output"] != 0)
                x = attention(options, *(outputs[k] for k in of), bias, kept)
            elif kind == "l2_normalize":
                squares = self._keep(f"{name}.squares.output", outputs[of].square(), step, tensors)
                total = squares.sum(options.get("axis", -1), keepdim=True)
                total = self._keep(f"{name}.sum.output", total, step, tensors)
                x = outputs[of] / total.sqrt()
            elif isinstance(of, list):
                x = merged(
                    kind,
                    options,
                    [outputs[k] if isinstance(k, int) else torch.tensor(k) for k in of],
                )
            elif kind == "batch_norm":
                x = self._batch_norm(name, options, outputs[of], step, tensors)
                if "residual" in options:
                    x = x + outputs[options["residual"]]
            else:
                x = self._layer(name, kind, options, outputs[of], step)
            activation = options.get("activation")
            fused = BATCH_NORM_ACTIVATIONS if kind == "batch_norm" else FUSED
            if activation is not None and activation not in fused:
                x = self._keep(f"{name}.output", x, step, tensors)
                name = f"{name}.{activation}"
            worker = self.saved.get(f"{step}/value/{name}.output")
            if activation == "relu" and self.alone and worker is not None:
                near = x.abs() < NEAR_ZERO * x.abs().max()
                x = x * torch.where(near, torch.tensor(worker > 0), x > 0)
            elif activation is not None:
                x = ACTIVATIONS[activation](x)
            outputs.append(self._keep(f"{name}.output", x, step, tensors))
        return tensors

    def _keep(
        self, name: str, x: torch.Tensor, step: int | None, tensors: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Note an operator's result, and what those who read it get."""
        worker = self.saved.get(f"{step}/value/{name}")
        if self.alone and worker is not None:
            self.computed[f"{step}/value/{name}"] = x.detach()
            x = x + (torch.tensor(worker, dtype=torch.float64) - x).detach()
            if x.requires_grad:
                x.register_hook(functools.partial(self._gradient, f"{step}/gradient/{name}"))
        tensors[name] = x
        return x

    def _gradient(self, key: str, gradient: torch.Tensor) -> torch.Tensor:
        """Note a result's gradient; what its operator starts from."""
        self.computed[key] = gradient.clone()
        worker = self.saved.get(key)
        return gradient if worker is None else torch.tensor(worker, dtype=torch.float64)

    def _batch_norm(
        self,
        name: str,
        options: dict[str, Any],
        x: torch.Tensor,
        step: int | None,
        tensors: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """In our three steps, whose results join the tensors; PyTorch has to agree with them."""
        weights = [self.weights[f"{name}.{part}"] for part in ("gamma", "beta")]
        running = [self.weights[f"{name}.moments.running_{m}"] for m in ("mean", "variance")]
        epsilon, momentum = options.get("epsilon", 1e-3), options.get("momentum", 0.1)
        channels = x.shape[-1]
        if step is None:
            y = F.batch_norm(x.reshape(-1, channels), *running, *weights, eps=epsilon)
            return y.reshape(x.shape)
        rows = len(self.case.rows(step))
        positions = x.reshape(len(x), -1, channels)
        statistics = torch.stack([positions.mean(1), positions.var(1, correction=0)], 1)
        statistics = self._keep(f"{name}.statistics.output", statistics, step, tensors)
        means, variances = statistics[:rows].unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        moments = torch.stack([mean, variance])[None]
        moments = self._keep(f"{name}.moments.output", moments, step, tensors)
        y = (x - moments[0, 0]) / (moments[0, 1] + epsilon).sqrt() * weights[0] + weights[1]
        with torch.no_grad():  # which also moves the running averages
            valid = x[:rows].reshape(-1, channels)
            expected = F.batch_norm(valid, *running, *weights, True, momentum, epsilon)
            torch.testing.assert_close(y[:rows].reshape(-1, channels), expected)
        return y

    def _lstm(
        self,
        i: int,
        after: int | None,
        x: torch.Tensor,
        step: int | None,
        tensors: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """Cell by cell; the state is among the tensors if a layer continues from it."""
        layers = self.case.layers
        first = i
        while "after" in layers[first][1]:
            first = layers[first][1]["after"]
        kernel, recurrent, bias = (
            self.weights[f"l{first}.{name}"] for name in ("kernel", "recurrent_kernel", "bias")
        )
        if after is None:
            h = c = torch.zeros(len(x), len(bias), dtype=torch.float64)
        else:
            h, c = tensors[f"l{after}.h"], tensors[f"l{after}.c"]
        ys = []
        for t in range(x.shape[1]):
            gates = torch.einsum("ugd,nd->gnu", kernel, x[:, t])
            gates = gates + torch.einsum("ugd,nd->gnu", recurrent, h) + bias.T[:, None]
            input_gate, forget, output = gates[[0, 1, 3]].sigmoid()
            c = forget * c + input_gate * gates[2].tanh()
            h = output * c.tanh()
            ys.append(h)
        if any(options.get("after") == i for _, options in layers):
            # Tensors of their own, as the state's gradient is without y's.
            h, c = h.clone(), c.clone()
            tensors |= {f"l{i}.h": h, f"l{i}.c": c}
        return self._keep(f"l{i}.y", torch.stack(ys, 1), step, tensors)

    def _gru(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """PyTorch's layer, whose weights have the gates in front."""
        names = ("kernel", "recurrent_kernel", "bias", "recurrent_bias")
        weights = [self.weights[f"{name}.{n}"].transpose(0, 1).flatten(0, 1) for n in names]
        hidden = weights[1].shape[1]
        zeros = torch.zeros(1, len(x), hidden, dtype=x.dtype)
        y, _ = torch.gru(x, zeros, weights, True, 1, 0.0, True, False, True)
        return y

    def _luong_attention(self, name: str, h: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        scores = h @ self.weights[f"{name}.score_kernel"] @ s.mT
        context = scores.softmax(-1) @ s
        return torch.tanh(torch.cat([context, h], -1) @ self.weights[f"{name}.kernel"].T)

    def _layer(
        self, name: str, kind: str, options: dict[str, Any], x: torch.Tensor, step: int | None
    ) -> torch.Tensor:
        kernel, bias = self.weights.get(f"{name}.kernel"), self.weights.get(f"{name}.bias")
        if kind == "conv2d":
            assert kernel is not None
            return of_channels_last(
                F.conv2d,
                x,
                kernel.permute(0, 3, 1, 2),
                bias,
                stride=options.get("stride", 1),
                padding=options.get("padding", 0),
                groups=options.get("groups", 1),
                dilation=options.get("dilation", 1),
            )
        if kind in WINDOWS:
            return WINDOWS[kind](x, options, kernel, bias)
        if kind in MOVES:
            return MOVES[kind](x, options)
        if kind == "prelu":
            slope = self.weights[f"{name}.slope"]
            return torch.where(x > 0, x, slope[0] * x)
        if kind == "pool2d":
            window = {k: options[k] for k in ("stride", "padding") if k in options}
            if options["kind"] == "max":
                return of_channels_last(F.max_pool2d, x, options["kernel"], **window)
            window["count_include_pad"] = options.get("count_include_pad", True)
            return of_channels_last(F.avg_pool2d, x, options["kernel"], **window)
        if kind == "conv1d":
            assert kernel is not None
            y = F.conv1d(x.mT, kernel.mT, bias, options.get("stride", 1), options.get("padding", 0))
            return y.mT
        if kind == "pool1d":
            pool = F.max_pool1d if options["kind"] == "max" else F.avg_pool1d
            return pool(x.mT, options["kernel"], options["stride"], options["padding"]).mT
        if kind == "dense":
            assert kernel is not None
            return F.linear(x, kernel, bias)
        if kind == "embedding":
            if "start" in options:
                x = x[:, options["start"] :][:, : options.get("steps")]
            table = self.weights[f"{name}.table"]
            if step is None or not isinstance(self.case.optimizer, LazyAdam):
                return F.embedding(x, table)
            # What fills the batch up looks up nothing that a sparse gradient would name.
            rows = len(self.case.rows(step))
            looked_up = F.embedding(x[:rows], table, sparse=True)
            return torch.cat([looked_up, F.embedding(x[rows:], table.detach())])
        if kind == "position_embedding":
            return x + self.weights[f"{name}.table"]
        if kind == "layer_norm":
            gamma, beta = self.weights.get(f"{name}.gamma"), self.weights.get(f"{name}.beta")
            return F.layer_norm(x, x.shape[-1:], gamma, beta, options.get("epsilon", 1e-5))
        if kind == "rms_norm":
            gamma = self.weights[f"{name}.gamma"]
            return F.rms_norm(x, x.shape[-1:], gamma, options.get("epsilon", 1e-6))
        if kind == "group_norm":
            y = F.group_norm(x.movedim(-1, 1), options["groups"], eps=options.get("epsilon", 1e-5))
            gamma, beta = (self.weights.get(f"{name}.{part}") for part in ("gamma", "beta"))
            y = y.movedim(1, -1) * (1 if gamma is None else gamma)
            return y if beta is None else y + beta
        if kind == "reduce":
            axes, keepdims = options["axes"], options.get("keepdims", False)
            if options["kind"] == "max":
                return maximum(x, axes, keepdims)
            return getattr(x, options["kind"])(axes, keepdims)
        if kind == "drop_path":
            if step is None:
                return x
            worker = torch.tensor(self.saved[f"{step}/value/{name}.output"] != 0)
            kept = worker.flatten(1).any(1).reshape(-1, *[1] * (x.ndim - 1))
            return x * kept / (1 - options["rate"])
        if kind == "dropout":
            if step is None:
                return x
            kept = torch.tensor(self.saved[f"{step}/value/{name}.output"] != 0)
            return x * kept / (1 - options["rate"])
        if kind == "expand":
            shape = options["shape"]
            return (
                x.reshape(len(x), *[1] * (len(shape) + 1 - x.ndim), *x.shape[1:])
                .expand(BATCH, *shape)
                .clone()
            )  # what the optimizer changes is not seen
        if kind == "reshape":
            return x.reshape(len(x), *options["shape"])
        if kind == "rearrange":
            axes = (0, *(i + 1 for i in options["order"]))
            cut = x.reshape(len(x), *options["extents"])
            return cut.permute(axes).reshape(len(x), *options["shape"])
        return x.permute(options["permutation"]) if kind == "transpose" else self._unary(kind, x)

    @staticmethod
    def _unary(kind: str, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) if kind == "flatten" else ACTIVATIONS[kind](x)

    def _for_loss(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that the loss needs: a last softmax or sigmoid is a part of it."""
        kind, options = self.case.layers[-1]
        parts = {
            CategoricalCrossentropy: "softmax" in (kind, options.get("activation")),
            BinaryCrossentropy: kind == "sigmoid",
        }
        if any(isinstance(self.loss, loss) and part for loss, part in parts.items()):
            return dict(list(tensors.items())[:-1])
        return tensors

    def _losses(
        self, step: int, tensors: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The loss's outputs; and the means over labels that count, by name."""
        rows = torch.tensor(self.case.rows(step))
        output, labels = list(tensors.values())[-1][: len(rows)], self.labels[rows]
        correct = top5 = squared = absolute = torch.zeros((), dtype=torch.float64)
        if isinstance(self.loss, CategoricalCrossentropy):
            sparse = labels.ndim < output.ndim
            classes = (output.movedim(-1, 1), labels if sparse else labels.movedim(-1, 1))
            options: dict[str, Any] = {"label_smoothing": self.loss.label_smoothing}
            options |= {"ignore_index": -1} if sparse else {}
            losses = F.cross_entropy(*classes, reduction="none", **options)
            loss = F.cross_entropy(*classes, **options)
            truth = labels if sparse else labels.argmax(-1)
            outputs = {"output": losses}
            outputs |= (
                self._statistics(output, labels) if sparse else {"log_sum": output.logsumexp(-1)}
            )
            count = (truth >= 0).sum()
            best = output.topk(min(5, output.shape[-1])).indices == truth[..., None]
            correct, top5 = best[..., 0].sum() / count, best.sum() / count
        else:
            losses = self._of_values(output, labels).flatten(1).mean(1)
            loss, outputs, count = losses.mean(), {"output": losses}, torch.tensor(len(rows))
            if isinstance(self.loss, BinaryCrossentropy):
                border = 0.5 if self._sigmoid_fused() else 0.0
                correct = ((output > border) == (labels > 0.5)).double().mean()
            else:
                squared = (output - labels).square().mean()
                absolute = (output - labels).abs().mean()
        return outputs, {
            "loss": loss,
            "accuracy": correct.double(),
            "top_5_accuracy": top5.double(),
            "perplexity": loss.exp(),
            "mean_squared_error": squared,
            "mean_absolute_error": absolute,
            "labels": count,
            "samples": torch.tensor(len(rows)),
        }

    def _statistics(self, output: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a loss over numbers of classes is made of; where a label does not count, zeros."""
        counts = labels >= 0
        own = output.gather(-1, labels.clamp(min=0)[..., None])
        found = {
            "own_logit.output": own[..., 0],
            "logit_statistics.log_sum": (output - own).logsumexp(-1),
            "logit_statistics.rank": (output > own).double().sum(-1),
        }
        if self.loss.label_smoothing > 0:
            found["logit_statistics.mean"] = (output - own).mean(-1)
        return {name: tensor * counts for name, tensor in found.items()}

    def _of_values(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The losses of an output's values."""
        if isinstance(self.loss, BinaryCrossentropy):
            if self._sigmoid_fused():
                return F.binary_cross_entropy(output, labels, reduction="none")
            return F.binary_cross_entropy_with_logits(output, labels, reduction="none")
        if isinstance(self.loss, Huber):
            return F.huber_loss(output, labels, reduction="none", delta=self.loss.delta)
        if isinstance(self.loss, MeanAbsoluteError):
            return F.l1_loss(output, labels, reduction="none")
        return F.mse_loss(output, labels, reduction="none")

    def _sigmoid_fused(self) -> bool:
        return self.case.layers[-1][1].get("activation") == "sigmoid"

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """The case's; lazy Adam is two, one of them for tables, whose gradients are sparse."""
        weights, ours = list(self.trained.values()), self.case.optimizer
        if isinstance(ours, SGD):
            options = (ours.lr, ours.momentum, 0, ours.weight_decay, ours.nesterov)
            return [torch.optim.SGD(weights, *options)]
        assert isinstance(ours, Adam)
        lazy, kind = [], torch.optim.AdamW if isinstance(ours, AdamW) else torch.optim.Adam
        adam = (ours.lr, (ours.beta1, ours.beta2), ours.epsilon)
        if isinstance(ours, LazyAdam):  # SparseAdam has no weight decay
            tables = [w for name, w in self.trained.items() if name.endswith(".table")]
            lazy = [torch.optim.SparseAdam(tables, *adam)] if tables else []
            weights = [w for name, w in self.trained.items() if not name.endswith(".table")]
        return [*lazy, kind(weights, *adam, ours.weight_decay)]

    def _states(self, weight: torch.Tensor) -> list[torch.Tensor]:
        state = dict(i for its in self.optimizers for i in its.state.get(weight, {}).items())
        order = ("momentum_buffer", "exp_avg", "exp_avg_sq")
        return [state[key] for key in order if state.get(key) is not None]


def load(file: Path) -> dict[str, Arrays]:
    """What the worker saved, by case."""
    cases: dict[str, Arrays] = {}
    with np.load(file) as arrays:
        for key, value in arrays.items():
            name, rest = key.split("/", 1)
            cases.setdefault(name, {})[rest] = value
    return cases
