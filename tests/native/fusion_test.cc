// The rule of which launches are fused, case by case. Launches are numbered in the order of issue.
#include "plan/fusion.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "../fuzz/random_graph.h"
#include "plan/handles.h"
#include "plan/verify.h"
#include "sim_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;
using namespace flexlegion::sim_test;

namespace {

const Devices kBoth = {0, 1}, kFirst = {0}, kSecond = {1}, kTwice = {0, 0};

// A graph that training executes, or one without operators.
Graph random_graph(fuzz::Source& random) {
  fuzz::GraphMaker maker(random);
  maker.make();
  try {
    return WantedGraph(maker.graph()).graph;
  } catch (const std::invalid_argument&) {
    return {};
  }
}

// Mostly the same devices, so that many launches can be fused.
ParallelConfig random_config(fuzz::Source& random, const Graph& graph, const Operator& op,
                             const Devices& usual) {
  ParallelConfig config;
  config.sums = random.chance(0.5) ? Sums::shards : Sums::readers;
  const Rect space = space_of(graph, op);
  int tasks = 1;
  for (std::size_t d = 0; d < op.dims.size(); ++d) {
    const bool fixed = op.dims[d] == DimKind::none || random.chance(0.5);
    const auto most = std::min<std::int64_t>(space.hi[d], 4 / tasks);
    config.degrees.push_back(fixed ? 1 : random.between(1, static_cast<int>(most)));
    tasks *= config.degrees.back();
  }
  for (int k = 0; k < tasks; ++k) {
    const auto place = static_cast<std::size_t>(k);
    config.devices.push_back(random.chance(0.95) ? usual[place] : random.one_of(usual));
  }
  return config;
}

}  // namespace

TEST_CASE("launches on the same devices that hand on from task k to task k are fused") {
  FusionRule rule;
  rule.begin(4);
  rule.add(kBoth, true, false);
  for (int i = 1; i < 3; ++i) {
    rule.add(kBoth, true, false);
    for (int k = 0; k < 2; ++k) rule.wait(k, i - 1, k, true);
  }
  rule.add(kFirst, true, false);
  rule.end();
  CHECK_FALSE(rule.joins(0, 0));
  CHECK(rule.joins(1, 0));
  CHECK(rule.joins(2, 0));
  CHECK_FALSE(rule.joins(3, 0));  // on other devices
}

TEST_CASE("a run is no longer than it may be") {
  FusionRule rule;
  rule.begin(kLongestRun + 1);
  for (int i = 0; i <= kLongestRun; ++i) rule.add(kFirst, true, false);
  rule.end();
  CHECK(rule.joins(kLongestRun - 1, 0));
  CHECK_FALSE(rule.joins(kLongestRun, 0));
  CHECK(rule.joins(kLongestRun, 1));
  CHECK(rule.joins(2, 0, 3));
  CHECK_FALSE(rule.joins(3, 0, 3));
}

TEST_CASE("what cannot be fused is alone") {
  FusionRule rule;
  rule.begin(3);
  rule.add(kFirst, true, false);
  rule.add(kFirst, false, false);
  rule.add(kFirst, true, false);
  rule.end();
  CHECK_FALSE(rule.joins(1, 0));
  CHECK_FALSE(rule.joins(2, 1));
}

// Launch 1 waits for both devices, launch 0 for none; launch 2 waits for what launch 1 does.
TEST_CASE("launches that wait for other launches of other devices are apart") {
  FusionRule rule;
  rule.begin(3);
  rule.add(kBoth, true, false);
  rule.add(kBoth, true, true);  // so that it does not hurry
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 2; ++j) rule.wait(k, 0, j, true);
  }
  rule.add(kBoth, true, false);
  for (int k = 0; k < 2; ++k) rule.wait(k, 1, k, true);
  rule.end();
  CHECK_FALSE(rule.joins(1, 0));
  CHECK(rule.joins(2, 1));
}

// Launch 2, on the other device, needs what launches 0 and 1 computed.
TEST_CASE("none joins a launch whose results another device awaits") {
  for (const bool needs_both : {true, false}) {
    for (const bool closing : {true, false}) {
      for (const bool one_memory : {true, false}) {
        FusionRule rule;
        rule.begin(3);
        rule.add(kFirst, true, false);
        rule.add(kFirst, true, false);
        rule.add(kSecond, true, closing);
        rule.wait(0, 0, 0, one_memory);
        if (needs_both) rule.wait(0, 1, 0, one_memory);
        rule.end();
        // If it needs both, it waits for the second anyhow; in one memory, an update has time.
        CHECK(rule.joins(1, 0) == (needs_both || (closing && one_memory)));
      }
    }
  }
}

// Task 0 of launch 1 needs what task 1 of launch 0 computes on the same device.
TEST_CASE("a run has no task that needs another part of it") {
  FusionRule rule;
  rule.begin(3);
  rule.add(kTwice, true, false);
  rule.add(kTwice, true, false);
  rule.wait(0, 0, 1, true);
  rule.add(kTwice, true, false);
  rule.wait(0, 1, 0, true);
  rule.end();
  CHECK_FALSE(rule.joins(1, 0));
  CHECK(rule.joins(2, 1));
}

TEST_CASE("a rule forgets what it was told before") {
  FusionRule rule;
  rule.begin(2);
  rule.add(kBoth, true, false);
  rule.add(kBoth, false, false);
  rule.wait(0, 0, 1, true);
  rule.begin(2);
  rule.add(kBoth, true, false);
  rule.add(kBoth, true, false);
  rule.end();
  CHECK(rule.joins(1, 0));
}

// Thousands of random graphs under random strategies, on devices some of which share a memory.
TEST_CASE("the simulator fuses what the runtime fuses, and finds the plan's memory") {
  int fused = 0, alone = 0;
  for (std::uint64_t seed = 1; seed <= 9000; ++seed) {
    CAPTURE(seed);
    fuzz::Source random(seed);
    const Graph graph = random_graph(random);
    if (graph.operators.empty()) continue;
    MachineModel machine = all_to_all(4);
    Devices usual;
    for (int d = 0; d < 4; ++d) {
      machine.memory_of[static_cast<std::size_t>(d)] = random.upto(d);
      usual.push_back(random.chance(0.7) ? d : random.upto(3));
    }
    Bench bench(graph, machine, random.upto(2));
    bench.problem.costs.runtime[0].dispatch = 10;
    const Optimizer optimizer{bench.problem.facts.optimizer.states, seed % 3 == 0};
    bench.problem.facts = facts_of(graph, {}, optimizer);
    Strategy strategy;
    PricedStrategy configs;
    for (OpId op : graph.operators.ids()) {
      strategy.push_back(random_config(random, graph, graph.operators[op], usual));
      configs.push_back(bench.config(op.value, strategy.back()));
    }
    Simulator simulator(bench.problem);
    simulator.set(configs);
    Plan plan;
    try {
      plan = make_plan(graph, strategy, {}, optimizer);
      verify(graph, plan);
    } catch (const std::logic_error&) {
      continue;  // access maps that leave something out, or write it twice
    }
    // Nor do they differ in the memory of a device that shares it with no other.
    for (int d = 0; d < 4; ++d) {
      const int memory = machine.memory_of[static_cast<std::size_t>(d)];
      const auto users = std::count(machine.memory_of.begin(), machine.memory_of.end(), memory);
      if (users > 1) continue;
      CHECK(simulator.graph().memory()[static_cast<std::size_t>(memory)] ==
            bytes_on_device(graph, plan, d));
    }
    const IdVector<LaunchId, int> runs = run_numbers(graph, plan, kTrains, machine.memory_of);
    MergedUses merged;
    int last = -1;
    for (LaunchId l : plan.launches.ids()) {
      if (runs[l] < 0) continue;
      const Launch& launch = plan.launches[l];
      CAPTURE(launch.op.value);
      CAPTURE(static_cast<int>(launch.pass));
      // All operators share one clip launch.
      const auto& simulated = simulator.graph().launches();
      const auto its = std::find_if(simulated.begin(), simulated.end(), [&](const LaunchKey& key) {
        return key.pass == launch.pass && (key.pass == Pass::clip || key.op == launch.op);
      });
      const auto number = its - simulated.begin();
      const bool joins = runs[l] == last;
      CHECK(simulator.timeline().runs_on[static_cast<std::size_t>(number)] == joins);
      ++(joins ? fused : alone);
      // What the tasks of a run need can be given to one task.
      if (!joins) merged = {};
      for (const FieldUse& use : field_uses(launch)) CHECK_NOTHROW(merged.add(use));
      last = runs[l];
    }
  }
  CHECK(fused > 2000);
  CHECK(alone > 2000);
}
