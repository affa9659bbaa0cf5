"""flexlegion: automatic parallelization of deep-learning training on the Legion runtime.

A `Model` is layers, and trains. `search`, `simulate`, `compare` and `explain` ask about strategies
for it on any machine; their answers are objects.

Importing this package takes no time: each name is imported when it is first asked for, and neither
legate nor native code is loaded before something needs them.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing, which has it, takes some milliseconds to import
if TYPE_CHECKING:
    # The one list of public names. `__getattr__` reads it, too: an import a line.
    from typing import Any

    from flexlegion.analysis.compare import compare as compare
    from flexlegion.analysis.compare_programs import compare_programs as compare_programs
    from flexlegion.analysis.divisions import search_programs as search_programs
    from flexlegion.analysis.explain import explain as explain
    from flexlegion.analysis.export import export as export
    from flexlegion.analysis.program import simulate_program as simulate_program
    from flexlegion.analysis.report import report_on as report_on
    from flexlegion.analysis.sbp import sbp as sbp
    from flexlegion.analysis.search import search as search
    from flexlegion.analysis.simulate import simulate as simulate
    from flexlegion.analysis.what_fits import what_fits as what_fits
    from flexlegion.analysis.what_if import what_if as what_if
    from flexlegion.base.errors import DivergenceError as DivergenceError
    from flexlegion.base.errors import UserError as UserError
    from flexlegion.bindings.native import library_folder as library_folder
    from flexlegion.bindings.native import load_kernels as load_kernels
    from flexlegion.bindings.native import set_threads as set_threads
    from flexlegion.exporters.own_functions import register_functions as register_functions
    from flexlegion.graph.signatures import B as B
    from flexlegion.graph.signatures import Mesh as Mesh
    from flexlegion.graph.signatures import P as P
    from flexlegion.graph.signatures import S as S
    from flexlegion.importers import from_onnx as from_onnx
    from flexlegion.importers import from_torch as from_torch
    from flexlegion.importers import to_torch as to_torch
    from flexlegion.known_strategies.registry import register_strategy as register_strategy
    from flexlegion.machine.topology import Topology as Topology
    from flexlegion.model.model import Model as Model
    from flexlegion.networks.references import load_model as load_model
    from flexlegion.objective.groups import ParameterGroup as ParameterGroup
    from flexlegion.objective.optimizers import SGD as SGD
    from flexlegion.objective.optimizers import Adam as Adam
    from flexlegion.objective.optimizers import AdamW as AdamW
    from flexlegion.objective.optimizers import LazyAdam as LazyAdam
    from flexlegion.profiling.machines import load_machine as load_machine
    from flexlegion.searches.registry import register_search as register_search
    from flexlegion.strategy.configuration import ParallelConfig as ParallelConfig
    from flexlegion.strategy.granularity import Granularity as Granularity
    from flexlegion.strategy.strategy import Strategy as Strategy
    from flexlegion.training.callbacks import BestWeights as BestWeights
    from flexlegion.training.callbacks import Callback as Callback
    from flexlegion.training.callbacks import EarlyStopping as EarlyStopping
    from flexlegion.training.checkpoints.callback import Checkpoints as Checkpoints
    from flexlegion.training.fit import History as History
    from flexlegion.training.logs import CSVLog as CSVLog
    from flexlegion.training.logs import TensorBoard as TensorBoard
    from flexlegion.training.logs import WandB as WandB
    from flexlegion.tuner.tune import TuneResult as TuneResult
    from flexlegion.tuner.tune import tune as tune


_MODULES: dict[str, str] = {}  # of each public name, filled when the first one is asked for


def _modules() -> dict[str, str]:
    """The module of each public name, as the list above states it."""
    if not _MODULES:
        with open(__file__, encoding="utf-8") as source:
            imports = [line.split() for line in source if line.startswith("    from flexlegion.")]
        _MODULES.update({name: module for _, module, _, name, *_ in imports})
    return _MODULES


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name not in _modules():
        from flexlegion.base.suggestions import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, _modules())
        raise AttributeError(f"module 'flexlegion' has no attribute '{name}'{hint}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*_modules(), *globals()]
