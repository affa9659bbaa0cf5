"""Whether the running machine can compute with what activations are stored as."""

from __future__ import annotations

from collections.abc import Iterable

from flexlegion.base.errors import UserError
from flexlegion.bindings import native
from flexlegion.objective.precision import DEFAULT_STORAGE
from flexlegion.profiling.gpus import running_gpus

_HAVE_BFLOAT16 = (8, 0)  # GPUs' compute capability


def check_stored(storage: str, devices: Iterable[str]) -> None:
    """Raise `UserError` unless these devices of the running machine can compute with it."""
    if storage == DEFAULT_STORAGE:
        return
    on_cpus = any(name.startswith("cpu:") for name in devices)
    if storage != "bf16":
        return
    if on_cpus and not native.running().has_bfloat16:
        raise UserError(
            f"storage {storage} needs CPU processors with AVX512-BF16 or AMX instructions, which "
            "this machine's lack"
        )
    for gpu in running_gpus().of.values():
        if (gpu.major, gpu.minor) < _HAVE_BFLOAT16:
            raise UserError(
                f"storage {storage} needs GPUs of compute capability 8.0, but {gpu.name} has "
                f"{gpu.major}.{gpu.minor}; take fp16"
            )
