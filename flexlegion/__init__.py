"""flexlegion: automatic parallelization of deep-learning training on the Legion runtime.

A `Model` is layers, and trains. `search`, `simulate`, `compare` and `explain` ask about strategies
for it on any machine; their answers are objects.

Importing this package takes no time: each name is imported when it is first asked for, and neither
legate nor native code is loaded before something needs them.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing, which has it, takes some milliseconds to import
if TYPE_CHECKING:
    from typing import Any

    from flexlegion._native import library_folder, load_kernels
    from flexlegion.analysis.compare import compare
    from flexlegion.analysis.explain import explain
    from flexlegion.analysis.report import report_on
    from flexlegion.analysis.search import search
    from flexlegion.analysis.simulate import simulate
    from flexlegion.callbacks import BestWeights, Callback, EarlyStopping
    from flexlegion.errors import DivergenceError, UserError
    from flexlegion.exporters import export
    from flexlegion.granularity import Granularity
    from flexlegion.importers import from_onnx, from_torch, to_torch
    from flexlegion.machine.files import load_machine
    from flexlegion.machine.topology import Topology
    from flexlegion.model import Model
    from flexlegion.notation.signatures import B, Mesh, P, S
    from flexlegion.notation.strategy import sbp
    from flexlegion.optimizers import SGD, Adam, AdamW
    from flexlegion.process import set_threads
    from flexlegion.references import load_model
    from flexlegion.runtime.checkpoints import Checkpoints
    from flexlegion.runtime.training import History
    from flexlegion.searches.registry import register_search
    from flexlegion.soap import ParallelConfig
    from flexlegion.strategies.registry import register_strategy
    from flexlegion.strategy import Strategy
    from flexlegion.training_logs import CSVLog, TensorBoard
    from flexlegion.tuner.tune import TuneResult, tune

__version__ = "0.1.0"

# Where names are that are imported when they are first asked for.
_LATER = {
    "Checkpoints": "flexlegion.runtime.checkpoints",
    "CSVLog": "flexlegion.training_logs",
    "TensorBoard": "flexlegion.training_logs",
    "Adam": "flexlegion.optimizers",
    "B": "flexlegion.notation.signatures",
    "AdamW": "flexlegion.optimizers",
    "BestWeights": "flexlegion.callbacks",
    "Callback": "flexlegion.callbacks",
    "DivergenceError": "flexlegion.errors",
    "EarlyStopping": "flexlegion.callbacks",
    "Granularity": "flexlegion.granularity",
    "History": "flexlegion.runtime.training",
    "Mesh": "flexlegion.notation.signatures",
    "Model": "flexlegion.model",
    "P": "flexlegion.notation.signatures",
    "ParallelConfig": "flexlegion.soap",
    "S": "flexlegion.notation.signatures",
    "SGD": "flexlegion.optimizers",
    "Strategy": "flexlegion.strategy",
    "Topology": "flexlegion.machine.topology",
    "TuneResult": "flexlegion.tuner.tune",
    "UserError": "flexlegion.errors",
    "compare": "flexlegion.analysis.compare",
    "explain": "flexlegion.analysis.explain",
    "export": "flexlegion.exporters",
    "from_onnx": "flexlegion.importers",
    "from_torch": "flexlegion.importers",
    "library_folder": "flexlegion._native",
    "load_kernels": "flexlegion._native",
    "load_machine": "flexlegion.machine.files",
    "load_model": "flexlegion.references",
    "register_search": "flexlegion.searches.registry",
    "register_strategy": "flexlegion.strategies.registry",
    "report_on": "flexlegion.analysis.report",
    "sbp": "flexlegion.notation.strategy",
    "search": "flexlegion.analysis.search",
    "set_threads": "flexlegion.process",
    "simulate": "flexlegion.analysis.simulate",
    "to_torch": "flexlegion.importers",
    "tune": "flexlegion.tuner.tune",
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "B",
    "BestWeights",
    "CSVLog",
    "Callback",
    "Checkpoints",
    "DivergenceError",
    "EarlyStopping",
    "Granularity",
    "History",
    "Mesh",
    "Model",
    "P",
    "ParallelConfig",
    "S",
    "Strategy",
    "TensorBoard",
    "Topology",
    "TuneResult",
    "UserError",
    "compare",
    "explain",
    "export",
    "from_onnx",
    "from_torch",
    "library_folder",
    "load_kernels",
    "load_machine",
    "load_model",
    "register_search",
    "register_strategy",
    "report_on",
    "sbp",
    "search",
    "set_threads",
    "simulate",
    "to_torch",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'flexlegion' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return [*__all__, *globals()]
