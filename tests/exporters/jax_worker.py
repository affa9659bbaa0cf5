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
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
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

    @jax.jit
    def step(weights: Any, velocity: Any) -> Any:
        key = jax.random.key(0)
        loss, gradients, states = plan.value_and_grad(weights, *inputs, *labels, key=key)
        kept = {}
        if plan.MICRO_BATCHES == 1:
            tensors = plan.forward(weights, *inputs, key=key)
            kept = {name: tensors[name] for name in plan.OUTPUTS}
        gradients = plan.clipped(gradients)
        velocity = {name: 0.9 * velocity[name] + g for name, g in gradients.items()}
        moved = {name: weights[name] - 0.1 * v for name, v in velocity.items()}
        return loss, kept, gradients, {**weights, **states, **moved}, velocity

    result = {}
    for number in range(STEPS):
        loss, kept, gradients, weights, velocity = step(weights, velocity)
        result[f"{number} loss"] = np.array(loss)
        if number == 0:
            result |= {name: np.asarray(value) for name, value in kept.items()}
            result |= {f"{name} gradient": np.asarray(g) for name, g in gradients.items()}
    return result | {name: np.asarray(value) for name, value in weights.items()}


if __name__ == "__main__":
    from exported import loaded

    folder = Path(sys.argv[2])
    for name in sys.argv[3:]:
        with np.load(folder / f"{name}.npz") as saved:
            given = dict(saved)
        np.savez(folder / f"{name}.out.npz", **steps(loaded(folder / f"{name}.py"), given))
