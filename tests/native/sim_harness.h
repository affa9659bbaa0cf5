// What tests of the simulator share: a machine in few words, and problems filled split by split.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "plan_harness.h"
#include "sim/simulator.h"

namespace flexlegion::sim_test {

using plan_test::Devices;
using plan_test::Net;
using Times = std::vector<std::int64_t>;

// Devices 0..n-1, each with a memory of its own, and one link for each direction of each pair.
inline MachineModel all_to_all(int n, std::int64_t latency = 0) {
  MachineModel machine;
  machine.memories = n;
  machine.kinds = 1;
  machine.kind_of.assign(static_cast<std::size_t>(n), 0);
  machine.capacity.assign(static_cast<std::size_t>(n), std::int64_t{1} << 40);
  machine.single_entry.assign(static_cast<std::size_t>(n), n <= 2);
  std::vector<std::vector<int>> routes(static_cast<std::size_t>(n * n));
  for (int a = 0; a < n; ++a) {
    machine.memory_of.push_back(a);
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      routes[static_cast<std::size_t>(a * n + b)] = {static_cast<int>(machine.links.size())};
      machine.links.push_back({1'000'000'000, latency});
    }
  }
  machine.routes = Routes::of_table(n, routes);
  return machine;
}

// A problem whose cost table is filled split by split.
struct Bench {
  Problem problem;

  Bench(const Graph& graph, const MachineModel& machine, int states = 0) {
    problem.graph = graph;
    problem.facts = facts_of(graph, {}, {states, false});
    problem.machine = machine;
    CostTable& costs = problem.costs;
    for (OpId op : graph.operators.ids()) costs.class_of.push_back(op);
    costs.splits.resize(graph.operators.size());
    costs.number_of.resize(graph.operators.size());
    costs.update = costs.load = costs.sum = {{0, 1'000'000'000'000'000'000}};
    costs.runtime = {{}};
  }

  // A configuration of the operator of that number; its tasks take `forward` and `backward` ns
  // each.
  PricedConfig config(int number, const ParallelConfig& its, std::int64_t forward = 1,
                      std::int64_t backward = 1) {
    const OpId op(number);
    auto& splits = problem.costs.splits[op];
    const int split = static_cast<int>(splits.size());
    const Operator& owner = problem.graph.operators[op];
    const bool shares = sums_by_shards(owner, {its.degrees, its.devices, Sums::shards});
    const std::size_t tasks = its.devices.size();
    splits.push_back({its.degrees, static_cast<int>(tasks), Times(tasks, forward),
                      Times(tasks, backward), partial_values(owner, its.degrees), shares,
                      parts_of(owner, its.degrees)});
    problem.costs.number_of[op].try_emplace(its.degrees, split);
    return {split, shares ? its.sums : Sums::readers, its.devices};
  }
  PricedConfig config(int op, const std::vector<int>& degrees, const Devices& devices,
                      std::int64_t forward = 1, std::int64_t backward = 1) {
    return config(op, ParallelConfig{degrees, devices}, forward, backward);
  }
};

// Ready, start and end of a task.
inline Times task_of(const Simulator& simulator, int launch, int part = 0) {
  const Timeline& line = simulator.timeline();
  const int t = line.first_task[launch] + part;
  return {line.ready_time[t], line.start_time[t], line.end_time[t]};
}
inline Times task(const Simulator& simulator, Pass pass, int op, int part = 0) {
  return task_of(simulator, simulator.graph().launch_of(pass, OpId(op)), part);
}
inline std::int64_t bytes_moved(const Simulator& simulator) {
  const Times by_pass = simulator.graph().moved_bytes();
  return std::accumulate(by_pass.begin(), by_pass.end(), std::int64_t{0});
}
inline Times load(const Simulator& simulator, TensorId tensor) {
  return task_of(simulator, simulator.graph().launch_graph().load_of[tensor]);
}

// x (4, 3) -> dense of 2 units -> loss.
struct SmallDense : Net {
  TensorId x, labels, w, b, y, losses;

  SmallDense() {
    x = tensor("x", {4, 3}, TensorKind::input);
    labels = tensor("labels", {4}, TensorKind::input, false, DataType::int32);
    w = weight("w", {2, 3});
    b = weight("b", {2});
    y = tensor("y", {4, 2});
    losses = tensor("losses", {4});
    dense(x, w, b, y);
    loss(y, labels, losses);
  }
};

}  // namespace flexlegion::sim_test
