"""Galvatron's search: profiles of our costs for it, and its result as a strategy of ours.

Galvatron (Miao et al., 2022, "Galvatron: Efficient Transformer Training over Multiple GPUs Using
Automatic Parallelism") chooses for each layer of a transformer how many devices share it (by
Megatron-LM's tensor parallelism, or by Ulysses' exchange of sequences for heads), whether weights
are sharded (ZeRO-3), and whether it is run again; and for all of them the stages of a pipeline. It
reads profiles: what a layer takes and keeps, what all others do, and what collectives take. These
are written here from programs of one and two layers, simulated on our costs (`flexlegion.spmd`),
as Galvatron's own profiler takes differences of such runs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from flexlegion.analysis.setting import Setting
from flexlegion.base.errors import UserError
from flexlegion.spmd.axes import Axes
from flexlegion.spmd.collectives import Collectives
from flexlegion.spmd.layout import Collective
from flexlegion.spmd.program import Stage
from flexlegion.spmd.timeline import ProgramTimeline, Training, simulated
from flexlegion.spmd.ways import Again, Ways, divided

SEARCH = "galvatron.core.search_engine"
MIB = 1 << 20
SAMPLES = (1, 2, 3, 4, 6, 8, 12, 16)  # that a device has when layers are profiled; it wants eight
KEPT = 8  # samples, where memory is profiled
MESSAGES = tuple(2**n for n in range(11))  # MiB
LONG = 256 * MIB  # a message whose rate is the bandwidth
TENSOR = (1, 2, 4, 8)  # devices that share a layer
MOST_STAGES = 32

Document = dict[str, Any]


@dataclass(frozen=True)
class Transformer:
    """What is trained, for profiles.

    Parameters
    ----------
    of_layers
        The setting with so many layers and samples, in one micro-batch.
    layers, hidden, steps
        Its sizes.
    storage
        Of activations.
    """

    of_layers: Callable[[int, int], Setting]
    layers: int
    hidden: int
    steps: int
    storage: str

    def program(
        self, layers: int, samples: int, tensor: int = 1, stages: int = 1, again: Again = "none"
    ) -> ProgramTimeline:
        """An iteration of so many layers and samples, simulated on the first devices."""
        setting = self.of_layers(layers, samples)
        ways = Ways(tensor=tensor, pipeline=stages, sequence=tensor > 1, again=again)
        problem = setting.problem
        training = Training.of(setting.network.training.optimizer)
        program = divided(problem.graph, ways)
        return simulated(program, problem.topology, problem.costs, training)


@dataclass(frozen=True)
class Profiles:
    """What Galvatron reads.

    Parameters
    ----------
    files
        By name.
    backward
        How many times as long as forward a layer takes backward.
    """

    files: dict[str, Document]
    backward: float


def profiles_of(its: Transformer, name: str) -> Profiles:
    """Profiles of a transformer and of the machine that it is on.

    Parameters
    ----------
    its
        The transformer.
    name
        What it is called in names of files.
    """
    topology = its.of_layers(1, 1).problem.topology
    nodes = len({device.node for device in topology.devices})
    where = f"{nodes}nodes_{len(topology.devices) // nodes}gpus_per_node.json"
    what = f"{its.storage}_{name}_all.json"
    collectives = Collectives(topology)
    devices = len(topology.devices)
    one, two = its.program(1, KEPT), its.program(2, KEPT)
    layer = {part: two.parts_ns[part] - one.parts_ns[part] for part in ("forward", "backward")}
    return Profiles(
        {
            f"computation_profiling_{what}": dict(_times(its)),
            f"memory_profiling_{what}": _memory(its),
            f"allreduce_bandwidth_{where}": dict(_bandwidths(collectives, devices)),
            f"p2p_bandwidth_{where}": dict(_between_stages(collectives, devices)),
            f"sp_time_{where}": dict(_latencies(collectives, devices)),
            # Nothing that computes gets slower by what is sent meanwhile.
            "overlap_coefficient.json": {"overlap_coe": 1.0},
        },
        layer["backward"] / layer["forward"],
    )


def _times(its: Transformer) -> Iterator[tuple[str, float]]:
    """What a sample takes forward, in ms: in a layer, and in all that is no layer."""
    for samples in SAMPLES:
        one, two = (its.program(n, samples).parts_ns["forward"] for n in (1, 2))
        for what, time_ns in (("0", two - one), ("other", 2 * one - two)):
            yield f"layertype_{what}_bsz{samples}_seq{its.steps}", time_ns / samples / 1e6


def _memory(its: Transformer) -> Document:
    """MiB: of a layer's weights in single precision, and of what a sample keeps; of all else."""
    weights = [_weights(its.of_layers(n, 1)) / MIB for n in (1, 2)]
    of_layer, of_rest = weights[1] - weights[0], 2 * weights[0] - weights[1]
    table = _weights(its.of_layers(1, 1), table=True) / MIB
    layer: dict[str, float] = {}
    rest: dict[str, dict[str, float]] = {"off": {}, "first": {}, "last": {}}
    for tensor in TENSOR:
        one, two = (its.program(n, KEPT, tensor).memory[0] for n in (1, 2))
        kept = two.activations - one.activations
        layer[str(tensor)] = kept / KEPT / MIB
        first, last = its.program(2, KEPT, tensor, stages=2).memory
        for where, memory in (("off", one), ("first", first), ("last", last)):
            # Of what comes and goes there is the most where all classes are.
            passing = 0 if where == "first" else memory.transient
            beside = max(0, memory.activations - kept + passing)
            rest[where][str(tensor)] = beside / KEPT / MIB
    one, two = (its.program(n, KEPT, again="full").memory[0] for n in (1, 2))
    layer["checkpoint"] = (two.activations - one.activations) / KEPT / MIB
    # Weights, gradients and Adam's states are four times the weights by its count.
    states = {"off": of_rest, "first": table, "last": max(table, of_rest - table)}

    def of(where: str) -> Document:
        return {
            str(its.steps): {
                "model_states": {str(t): 4 * states[where] / t for t in TENSOR},
                "activation": rest[where],
            }
        }

    mine = {"parameter_size": of_layer, "tp_activation_per_bsz_dict": layer}
    return {
        "layertype_0_sp": {str(its.steps): mine},
        "other_memory_pp_off_sp": of("off"),
        "other_memory_pp_on_first_sp": of("first"),
        "other_memory_pp_on_last_sp": of("last"),
    }


def _weights(setting: Setting, table: bool = False) -> int:
    """Bytes of all weights in single precision; or of those that the first operator reads."""
    graph = setting.problem.graph
    weights = graph.operators[0].weights if table else graph.weights
    return 4 * sum(prod(weight.shape) for weight in weights)


def _bandwidths(its: Collectives, devices: int) -> Iterator[tuple[str, float]]:
    """MiB a ms that an all-reduce sends, of neighbours (1) and of devices far apart (0)."""
    size = devices
    while size > 1:
        for near in (1, 0) if size < devices else (1,):
            time_ns = _time_ns(its, "all-reduce", LONG, devices, size, bool(near))
            sent = 2 * (size - 1) / size * LONG / MIB
            yield f"allreduce_size_{size}_consec_{near}", sent / (time_ns / 1e6)
        size //= 2


def _between_stages(its: Collectives, devices: int) -> Iterator[tuple[str, float]]:
    """MiB a ms from each device of a stage to one of the next."""
    stages = 2
    while stages <= devices:
        far = devices // stages
        pairs = [(device, device + far) for device in range(devices - far)]
        yield f"pp_size_{stages}", LONG / MIB / (its.send_ns(LONG, pairs) / 1e6)
        stages *= 2


def _latencies(its: Collectives, devices: int) -> Iterator[tuple[str, float]]:
    """What collectives of neighbours take, in ms, by MiB."""
    of: dict[Collective, str] = {"all-reduce": "allreduce", "all-to-all": "all2all"}
    for name, said in of.items():
        for size in TENSOR[1:]:
            for message in MESSAGES:
                time_ns = _time_ns(its, name, message * MIB, devices, size, near=True)
                yield f"{said}_size_{size}_{message}MB_time", time_ns / 1e6


def _time_ns(
    its: Collectives, name: Collective, size: int, devices: int, group: int, near: bool
) -> int:
    """What groups of so many devices take who all have a collective."""
    sizes = (devices // group, group) if near else (group, devices // group)
    stage = Stage(tuple(range(devices)), Axes(sizes))
    return its.time_ns(name, size, stage, (1,) if near else (0,))


@dataclass(frozen=True)
class Answer:
    """What a search gave.

    Parameters
    ----------
    config
        Galvatron's JSON: how it is divided.
    samples_a_second
        By its own reckoning.
    """

    config: Document
    samples_a_second: float


def engine_of(folder: Path) -> tuple[Any, Any]:
    """Galvatron's search engine and the type of its arguments, from its sources.

    Raises
    ------
    UserError
        If they are not there, or what they import is not installed.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if importlib.util.find_spec("galvatron_dp_core") is None:
        raise UserError(
            f"{folder} has no galvatron_dp_core; there, run python setup.py build_ext --inplace, "
            "which needs the package pybind11"
        )
    # The package of its runtime imports what needs GPUs; the search wants one module of it.
    runtime = types.ModuleType("galvatron.core.runtime")
    runtime.__path__ = [str(folder / "galvatron/core/runtime")]
    sys.modules.setdefault(runtime.__name__, runtime)
    try:
        engine = importlib.import_module(f"{SEARCH}.search_engine")
        arguments = importlib.import_module(f"{SEARCH}.args_schema")
    except ImportError as e:
        raise UserError(f"{folder}: Galvatron's search cannot be imported ({e})") from e
    return engine.GalvatronSearchEngine, arguments.GalvatronSearchArgs


def searched(
    folder: Path,
    its: Transformer,
    profiles: Profiles,
    batch: int,
    micro_batches: int,
    *,
    by_layer: bool,
) -> Answer | None:
    """What Galvatron finds for a number of micro-batches; None: nothing fits.

    Parameters
    ----------
    folder
        Its sources.
    its, profiles
        What is trained, and its profiles.
    batch, micro_batches
        Samples, and in how many parts.
    by_layer
        Whether layers may differ, by dynamic programming; if not, all are divided alike.
    """
    engine_type, args_type = engine_of(folder)
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        for name, document in profiles.files.items():
            Path(work, name).write_text(json.dumps(document))
        args = args_type.model_validate(
            _arguments(its, work, batch, micro_batches, by_layer=by_layer)
        )
        engine = engine_type(args)
        layers = {"hidden_size": its.hidden, "seq_len": its.steps, "layer_num": its.layers}
        engine.set_search_engine_info(work, [layers], "model")
        engine.initialize_search_engine()
        for hardware in engine.profile_hardware_args_list:
            hardware.bct_fct_coe = profiles.backward
        rate = float(engine.parallelism_optimization())
        found = list(Path(work, "found").glob("*.json"))
        return Answer(json.loads(found[0].read_text()), rate) if found else None


def _arguments(
    its: Transformer, work: str, batch: int, micro_batches: int, *, by_layer: bool
) -> Document:
    """Of its search, as its configuration files have them; profiles and results are in `work`."""
    devices = its.of_layers(1, 1).problem.topology.devices
    nodes = len({device.node for device in devices})
    kinds = ("memory_profiling", "time_profiling", "overlap_coe", "sp_time")
    paths = {f"{kind}_path": work for kind in kinds}
    paths |= {f"{kind}_bandwidth_config_path": work for kind in ("allreduce", "p2p")}
    return {
        "model_info": {"model_size": "model", "hidden_size": its.hidden},
        "common_train_info": {
            "seq_length": its.steps,
            "sequence_parallel": True,
            "global_memory_buffer": True,
        },
        "parallelism_info": {
            "default_dp_type": "zero2",
            "pipeline_type": "pipedream_flush",
            "mixed_precision": its.storage,
        },
        "hardware_info": {
            "num_nodes": nodes,
            "num_gpus_per_node": len(devices) // nodes,
            "memory_constraint": min(device.memory_bytes for device in devices) >> 30,
        },
        "batch_size_info": {"settle_bsz": batch, "settle_chunk": micro_batches},
        "search_space_info": {"max_pp_deg": MOST_STAGES},
        "profiling_info": paths | {"time_profile_mode": "batch", "memory_profile_mode": "static"},
        "options_info": {
            "log_dir": str(Path(work, "logs")),
            "output_config_path": str(Path(work, "found")),
            "fine_grained_mode": int(by_layer),
        },
    }
