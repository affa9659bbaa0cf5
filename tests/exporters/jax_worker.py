"""Runs exported programs for JAX on host devices: see dtensor_worker.py.

`python jax_worker.py DEVICES FOLDER NAME...`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
# Compiled quickly, as programs run three steps: what is divided is divided all the same.
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={sys.argv[1]} --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"  # what is given in double precision stays that
STEPS = 3


def steps(plan: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Losses, the first step's outputs and gradients, and the weights at the end."""
    import jax
    import jax.numpy as jnp

    def some(prefix: str) -> dict[str, np.ndarray]:
        return {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}

    inputs, labels = list(some("input/").values()), list(some("label/").values())
    weights = plan.distributed(some("weight/"))
    velocity = {name: jnp.zeros_like(value) for name, value in plan.trained(weights).items()}

    has_stages = hasattr(plan, "STAGES")

    def step(weights: Any, velocity: Any) -> Any:
        key = jax.random.key(0)
        loss, gradients, states = plan.value_and_grad(weights, *inputs, *labels, key=key)
        kept = {}
        if plan.MICRO_BATCHES == 1 and not has_stages:
            tensors = plan.forward(weights, *inputs, key=key)
            kept = {name: tensors[name] for name in plan.OUTPUTS}
        gradients = plan.clipped(gradients)
        velocity = {name: 0.9 * velocity[name] + g for name, g in gradients.items()}
        moved = {name: weights[name] - 0.1 * v for name, v in velocity.items()}
        return loss, kept, gradients, {**weights, **states, **moved}, velocity

    if not has_stages:  # which are compiled each by itself
        step = jax.jit(step)
    result = {}
    if "count_copies" in given:
        count = copies_in_stages if has_stages else copies
        result["copies of weights"] = np.array(count(plan, weights, inputs, labels))
    for number in range(STEPS):
        loss, kept, gradients, weights, velocity = step(weights, velocity)
        result[f"{number} loss"] = np.array(loss)
        if number == 0:
            result |= {name: np.asarray(value) for name, value in kept.items()}
            result |= {f"{name} gradient": np.asarray(g) for name, g in gradients.items()}
    return result | {name: np.asarray(value) for name, value in weights.items()}


def copies(plan: Any, weights: Any, inputs: Any, labels: Any) -> int:
    """How many results of a shape of weights are kept for the backward pass."""
    import jax

    def kept(trained: Any) -> Any:
        def loss(trained: Any) -> Any:
            w = {**weights, **trained}
            return plan.loss(w, plan.forward(w, *inputs), *labels)

        _, backward = jax.vjp(loss, trained)
        return backward.opaque_residuals

    return of_weights(jax.eval_shape(kept, plan.trained(weights)), weights)


def copies_in_stages(plan: Any, weights: Any, inputs: Any, labels: Any) -> int:
    """The same of what runs keep of a micro-batch."""
    its = plan.Iteration(weights, {"input_1": inputs[0]}, {"labels": labels[0]}, None)
    for run in range(len(plan.RUNS)):
        its.forward(run, 0)
    return of_weights(list(its.kept.values()), weights)


def of_weights(kept: Any, weights: Any) -> int:
    """How many arrays have the shape of a matrix of weights."""
    import jax

    shapes = {its.shape for its in weights.values() if len(its.shape) > 1}
    return sum(its.shape in shapes for its in jax.tree.leaves(kept))


if __name__ == "__main__":
    from exported import loaded

    folder = Path(sys.argv[2])
    for name in sys.argv[3:]:
        with np.load(folder / f"{name}.npz") as saved:
            given = dict(saved)
        np.savez(folder / f"{name}.out.npz", **steps(loaded(folder / f"{name}.py"), given))
