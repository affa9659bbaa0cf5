"""Other searches' problems from ours, and our strategies from what they choose."""

from __future__ import annotations

import json
import sys
import time
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from common import alpa_solver
from common.galvatron_plan import Layer, Plan, plan_of, strategy_of
from common.galvatron_search import MESSAGES, MIB, SAMPLES, Transformer, engine_of, profiles_of

import flexlegion as fl
from flexlegion.analysis.setting import Setting, network_of
from flexlegion.base.errors import UserError
from flexlegion.known_strategies import named
from flexlegion.searches.optcnn import minimise
from flexlegion.sim.simulator import full
from flexlegion.spmd.collectives import Collectives
from flexlegion.spmd.ways import blocks_of

LAYERS, HIDDEN, STEPS, VOCABULARY = 4, 64, 32, 96
BATCH = 64


@cache
def setting_of(micro_batches: int = 1, layers: int = LAYERS, samples: int = BATCH) -> Setting:
    """A small GPT on two nodes of eight."""
    sizes = {"hidden": HIDDEN, "heads": 8, "steps": STEPS, "vocabulary": VOCABULARY}
    model = fl.zoo.build("gpt", samples, layers=layers, **sizes)
    network = network_of(model, optimizer="adam", storage="bf16", micro_batches=micro_batches)
    return Setting.of(network, "h100x16", costs="analytic")


# --- Galvatron's plans ---


def config_of(layers: list[tuple[int, int, int, int]], stages: str, **more: Any) -> dict[str, Any]:
    """As Galvatron writes it; of each layer: shared, by Ulysses, sharded, run again."""
    rows = zip(*layers, strict=True)
    names = ("tp_sizes_enc", "use_sp", "dp_types_enc", "checkpoint")
    config: dict[str, Any] = {
        name: ",".join(map(str, row)) for name, row in zip(names, rows, strict=True)
    }
    config |= {"pp_division": stages, "chunks": 4, "vtp": 1, "vsp": 0, "embed_sdp": 0}
    return config | more


def test_a_plan_becomes_a_strategy() -> None:
    layers = [(2, 0, 0, 0), (4, 1, 0, 0), (1, 0, 1, 0), (8, 0, 0, 1)]
    plan = plan_of(config_of(layers, "2,2", vtp=8))
    assert plan.layers[1] == Layer(4, ulysses=True)
    assert plan.stages == (2, 2)
    assert plan.vocabulary == Layer(8)
    setting = setting_of(4)
    problem = setting.problem
    strategy = problem.checked(strategy_of(problem.graph, problem.devices, plan))
    operators = {op.name: op for op in problem.graph.operators}

    def split(name: str) -> dict[str, int]:
        config = strategy[name].named(operators[name])
        return dict(zip(config.dims or (), config.degrees, strict=True))

    first, second = ([f"gpu:{n}" for n in its] for its in (range(8), range(8, 16)))
    for name, degrees in {
        "embed": {"row": 8},
        "block1.query": {"sample": 4, "channel": 2},
        "block1.output": {"sample": 4, "in": 2},
        "block1.norm1": {"sample": 4, "length": 2},
        "block2.query": {"sample": 2, "length": 4},
        "block2.query.heads": {"sample": 2, "height": 4},
        "block2.attention": {"sample": 2, "head": 4},
        "block2.contract": {"sample": 2, "length": 4},
        "block3.query": {"sample": 8},
        "block4.expand": {"channel": 8},
        "logits": {"channel": 8},
    }.items():
        assert split(name) == degrees, name
        stage = first if name < "block3" or name == "embed" else second
        assert list(strategy[name].devices) == (second if name == "logits" else stage)
    for op in problem.graph.operators:
        config, name = strategy[op.name], op.name
        again = name.startswith("block4.") and name != "block4.add2"
        assert config.again == again, name
        early = config.devices[0] == "gpu:0"
        assert config.buffers == (2 if early else 1), name
        sharded = name.startswith("block3.") and bool(op.weights)
        assert (config.sharding == "weights") == sharded, name
        assert config.sharding != "gradients"
    assert full(problem, strategy).iteration_time_ns > 0


def test_without_pipelines_plans_are_known_strategies() -> None:
    problem = setting_of(4).problem
    for shared, name in ((1, "data"), (8, "megatron")):
        layer = Layer(shared)
        plan = Plan((LAYERS,), (layer,) * LAYERS, layer, 4)
        strategy = problem.checked(strategy_of(problem.graph, problem.devices, plan))
        assert dict(strategy) == dict(named(name, problem))


@pytest.mark.parametrize(
    ("stages", "shared", "ulysses", "sharded", "again"),
    [
        its
        for its in product((1, 2, 4), (1, 2, 4), *[(False, True)] * 3)
        if its[1] > 1 or not its[2]
    ],
)
def test_all_plans_can_be_simulated(
    stages: int, shared: int, ulysses: bool, sharded: bool, again: bool
) -> None:
    setting = setting_of(4)
    problem = setting.problem
    layer = Layer(shared, ulysses, sharded, again)
    plan = Plan((LAYERS // stages,) * stages, (layer,) * LAYERS, layer, 4)
    strategy = problem.checked(strategy_of(problem.graph, problem.devices, plan))
    assert full(problem, strategy).iteration_time_ns > 0
    operators = problem.graph.operators
    for op, block in zip(operators, blocks_of(operators), strict=True):
        config = strategy[op.name]
        if block is not None:
            assert config.tasks == 16 // stages, op.name
        if op.name == "block2.expand":
            assert config.degrees[0] == 16 // stages // shared
    words = setting.in_words(strategy)
    assert (f"PP {stages}" in words) == (stages > 1)
    assert ("ZeRO-3" in words) == sharded
    assert ("recomput" in words) == again


def test_gradients_are_sharded_where_a_batch_is_one_piece() -> None:
    problem = setting_of(1).problem
    plan = Plan((LAYERS,), (Layer(),) * LAYERS, Layer(), 1)
    strategy = problem.checked(strategy_of(problem.graph, problem.devices, plan))
    assert strategy["block1.query"].sharding == "gradients"


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan((3,), (Layer(),) * 3, Layer(), 4), "a plan of 3 layers, for a model of 4"),
        (Plan((2, 1), (Layer(),) * 4, Layer(), 4), "a plan of 4 layers, for a model of 4"),
        (Plan((4,), (Layer(),) * 4, Layer(), 8), "8 micro-batches and 1 stages, for 4"),
        (Plan((2, 1, 1), (Layer(),) * 4, Layer(), 4), "4 micro-batches and 3 stages, for 4"),
    ],
)
def test_a_plan_for_something_else_is_refused(plan: Plan, says: str) -> None:
    problem = setting_of(4).problem
    with pytest.raises(UserError, match=says):
        strategy_of(problem.graph, problem.devices, plan)


# --- Galvatron's profiles ---


def test_profiles_are_our_costs() -> None:
    its = Transformer(
        lambda layers, samples: setting_of(1, layers, samples), LAYERS, HIDDEN, STEPS, "bf16"
    )
    profiles = profiles_of(its, "small")
    files = {
        name.partition("_bf16")[0].partition("_2n")[0]: d for name, d in profiles.files.items()
    }
    assert json.loads(json.dumps(files)) == files
    times = files["computation_profiling"]
    assert set(times) == {
        f"layertype_{what}_bsz{n}_seq{STEPS}" for what in ("0", "other") for n in SAMPLES
    }
    whole = its.program(LAYERS, 8).parts_ns
    layer, other = (times[f"layertype_{what}_bsz8_seq{STEPS}"] * 8e6 for what in ("0", "other"))
    assert LAYERS * layer + other == pytest.approx(whole["forward"])
    assert profiles.backward == pytest.approx(
        (whole["backward"] - its.program(LAYERS - 1, 8).parts_ns["backward"]) / layer
    )

    memory = files["memory_profiling"]
    mine = memory["layertype_0_sp"][str(STEPS)]
    # Four matrices of attention and two of the network behind it, their biases, two norms.
    weights = 12 * HIDDEN**2 + 9 * HIDDEN + 4 * HIDDEN
    assert mine["parameter_size"] == 4 * weights / MIB
    rest = VOCABULARY * HIDDEN + STEPS * HIDDEN + 2 * HIDDEN
    off = memory["other_memory_pp_off_sp"][str(STEPS)]["model_states"]
    assert off == {str(t): pytest.approx(16 * rest / t / MIB) for t in (1, 2, 4, 8)}
    kept = mine["tp_activation_per_bsz_dict"]
    assert kept["checkpoint"] == 2 * STEPS * HIDDEN / MIB  # what goes into it
    assert kept["1"] > kept["2"] > kept["4"] > kept["8"] > kept["1"] / 8

    collectives = Collectives(its.of_layers(1, 1).problem.topology)
    bandwidths = files["allreduce_bandwidth"]
    near, far = (bandwidths[f"allreduce_size_2_consec_{its}"] for its in (1, 0))
    assert near == pytest.approx(450e9 * 0.8 / MIB / 1e3, rel=0.02)
    assert far == pytest.approx(50e9 * 0.9 / MIB / 1e3, rel=0.02)
    assert "allreduce_size_16_consec_0" not in bandwidths
    assert set(files["p2p_bandwidth"]) == {f"pp_size_{n}" for n in (2, 4, 8, 16)}
    assert collectives.library.start_ns / 1e6 < files["sp_time"]["allreduce_size_8_1MB_time"]
    assert len(files["sp_time"]) == 2 * 3 * len(MESSAGES)


# --- Alpa's arrays ---


@cache
def small_problem(micro_batches: int = 1) -> Any:
    """Three operators and a loss, on four devices."""
    model = fl.Model(16)
    x = model.dense(model.input((8,)), 16, name="a")
    model.dense(model.add([x, model.dense(x, 16, name="b")], name="sum"), 4, name="c")
    model.loss = "mean_squared_error"
    network = network_of(model, optimizer="adam", micro_batches=micro_batches)
    return Setting.of(network, "p100x4", costs="analytic").problem


def unpacked(arrays: dict[str, Any]) -> tuple[list[Any], dict[tuple[int, int], Any], list[Any]]:
    """Costs of nodes, of edges, and memory, as the solver unpacks them."""
    ends = np.cumsum(arrays["s_len_np"])[:-1]
    own = np.split(arrays["c_np"] + arrays["d_np"], ends)
    edges = [tuple(edge) for edge in arrays["E_np"].reshape(-1, 2).tolist()]
    sizes = [len(own[a]) * len(own[b]) for a, b in edges]
    pairs = np.split(arrays["r_np"], np.cumsum(sizes)[:-1])
    return own, dict(zip(edges, pairs, strict=True)), np.split(arrays["m_np"], ends)


def by_trial(limit: float = np.inf, **arrays: Any) -> tuple[Any, Any, float, int]:
    """What a solver of the same arrays gives: the best of all choices."""
    own, pairs, memory = unpacked(arrays)

    def cost(choice: tuple[int, ...]) -> float:
        if sum(its[c] for its, c in zip(memory, choice, strict=True)) > min(limit, arrays["M"]):
            return np.inf
        edges = (its[choice[a] * len(own[b]) + choice[b]] for (a, b), its in pairs.items())
        return sum(its[c] for its, c in zip(own, choice, strict=True)) + sum(edges)

    best = min(product(*(range(len(its)) for its in own)), key=cost)
    if not np.isfinite(cost(best)):
        raise RuntimeError("Cannot run the function under the given memory budget.")
    return np.array(best), None, cost(best), 1


def test_arrays_are_the_sums_of_costs() -> None:
    problem = small_problem()
    programme = alpa_solver.programme_of(problem, (2, 2))
    arrays = programme.arrays()
    assert arrays["N"] == len(problem.facts.trained)
    lengths, alive = arrays["L_np"][: arrays["N"]], arrays["L_np"][arrays["N"] :]
    assert lengths.sum() == len(alive)
    assert sorted(alive) == list(range(arrays["N"]))
    for degrees in (d for its in programme.costs.candidates for d in its):
        assert [d for d in degrees if d > 1] in ([], [2], [4], [2, 2])
    own, pairs, _ = unpacked(arrays)
    rng = np.random.default_rng(0)
    for _ in range(50):
        choice = [int(rng.integers(len(its))) for its in own]
        edges = (its[choice[a] * len(own[b]) + choice[b]] for (a, b), its in pairs.items())
        sum_ms = sum(its[c] for its, c in zip(own, choice, strict=True)) + sum(edges)
        assert sum_ms == pytest.approx(programme.costs.total(choice) / 1e6)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_choice_becomes_a_strategy(micro_batches: int) -> None:
    problem = small_problem(micro_batches)
    its = alpa_solver.solve(problem, alpa_solver.Solver(by_trial, 60.0), (2, 2))
    costs = alpa_solver.programme_of(problem, (2, 2)).costs
    choice, exact = minimise(costs)
    assert exact
    assert its.summed_ns == costs.total(choice)
    strategy = problem.checked(its.strategy)
    for (op,), candidates in zip(costs.groups, costs.candidates, strict=True):
        assert strategy[op.name].degrees in candidates


def test_memory_is_what_devices_keep() -> None:
    problem = small_problem()
    programme = alpa_solver.programme_of(problem, (2, 2))
    memory = {
        op.name: dict(zip(candidates, its * MIB, strict=True))
        for (op,), candidates, its in zip(
            programme.costs.groups, programme.costs.candidates, programme.memory, strict=True
        )
    }
    weights = 16 * 8 + 16  # of "a", whose output "b" reads backward
    assert memory["a"][1, 1, 1] == pytest.approx(weights * 4 * 4 + 16 * 16 * 4)
    # Four devices share all weights: each has a quarter of the optimizer's two states.
    assert memory["a"][4, 1, 1] == pytest.approx(weights * 4 * 2.5 + 4 * 16 * 4)
    assert memory["a"][1, 4, 1] == pytest.approx(weights * 4 + 16 * 4 * 4)
    assert memory["sum"][1, 1, 1] == pytest.approx(16 * 16 * 4)  # which "c" reads backward
    with pytest.raises(UserError, match="Alpa's solver: Cannot run"):
        alpa_solver.solve(problem, alpa_solver.Solver(partial(by_trial, limit=1e-6), 60.0), (2, 2))


# --- the command ---


def test_a_case_is_run_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"layers": 2, "hidden": 64, "heads": 8, "steps": 32, "vocabulary": 96}
    case = peers.Case("small", "gpt", "h100x16", "bf16", sizes)
    monkeypatch.setattr(peers, "CASES", (case,))
    monkeypatch.setattr(peers, "MICRO_BATCHES", (1, 2))
    file = tmp_path / "peers.json"
    before = [
        {"case": "another", "who": "Alpa", "why_not": "not run"},
        {"case": "small", "who": "`3d`", "why_not": "not done"},
    ]
    file.write_text(json.dumps({"rows": before}))
    monkeypatch.setattr(sys, "argv", ["peers.py", "--budget", "1s", "--json", str(file)])
    assert peers.main() == 0
    document = json.loads(file.read_text())
    *rows, kept = document["rows"]
    assert kept == before[0]
    assert [row["who"] for row in rows] == [
        "our search, 1s",
        *(f"`{name}`" for name in peers.KNOWN),
        "Galvatron",
        "Alpa",
    ]
    for row in rows[:4]:
        network = case.network(row["micro_batches"])
        assert row["fits"]
        assert row["iteration_ms"] >= rows[0]["iteration_ms"]
        if row["who"] != "our search, 1s":
            its = fl.simulate(network, "h100x16", row["who"].strip("`"), costs="analytic")
            assert row["iteration_ms"] == round(its.iteration_time_ns / 1e6, 1)
            assert row["in_words"] == its.setting.in_words(its.strategy)
    for row in rows[4:]:
        assert row["why_not"] == "not run: its sources were not named"
    assert "our search, 1s" in capsys.readouterr().out
    table = peers.markdown(document, "small").splitlines()
    assert len(table) == 2 + len(rows)
    assert table[2].startswith("| our search, 1s | ")
    assert " | 1.00x | " in table[2]
    rows[0]["note"] = "of an earlier run"  # which is not made again
    file.write_text(json.dumps({"rows": [kept, *rows]}))
    monkeypatch.setattr(peers, "ours", list)  # which gives nothing
    monkeypatch.setattr(peers, "known", list)
    assert peers.main() == 0
    assert json.loads(file.read_text())["rows"] == [*rows, kept]
    file.write_text("[]")
    assert peers.main() == 2
    assert "not a report, as this command writes it" in capsys.readouterr().err


def test_a_limit_ends_what_takes_longer() -> None:
    with pytest.raises(TimeoutError), peers.time_limit(0.05):
        time.sleep(60)
    with peers.time_limit(60):
        pass


def test_missing_sources_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises(UserError, match=r"no readable alpa/shard_parallel/auto_sharding\.py"):
        alpa_solver.solver_of(tmp_path, 1.0)
    source = tmp_path / alpa_solver.SOURCE
    source.parent.mkdir(parents=True)
    source.write_text("import nothing_of_this_name\n")
    with pytest.raises(UserError, match="has no function _call_solver_serialized_args"):
        alpa_solver.solver_of(tmp_path, 1.0)
    with pytest.raises(UserError, match=r"no galvatron_dp_core; there, run python setup\.py"):
        engine_of(tmp_path)
    monkeypatch.setattr(sys, "argv", ["peers.py", "--galvatron", str(tmp_path)])
    assert peers.main() == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} has no galvatron_dp_core")
    monkeypatch.setattr(sys, "argv", ["peers.py", "--budget", "soon"])
    assert peers.main() == 2
    monkeypatch.setattr(sys, "argv", ["peers.py", "--only", "bert"])
    assert peers.main() == 2
    assert "no case has 'bert' in its name; the cases are gpt-h100" in capsys.readouterr().err
