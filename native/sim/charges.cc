#include "sim/charges.h"

namespace flexlegion {

namespace {

std::int64_t linear(const Problem& problem, const std::vector<LinearCost>& costs, int device,
                    std::int64_t elements) {
  return costs[problem.machine.kind_of[device]].time(elements * kElementBytes);
}

}  // namespace

std::int64_t load_time(const Problem& problem, int device, std::int64_t elements) {
  return linear(problem, problem.costs.load, device, elements);
}

std::int64_t sum_time(const Problem& problem, int device, std::int64_t partial, std::int64_t own) {
  return partial > own ? linear(problem, problem.costs.sum, device, partial) : 0;
}

std::vector<ShardTask> shard_tasks_of(const Problem& problem, Geometry& geometry, OpId op,
                                      const std::vector<int>& operands,
                                      const PricedConfig& config) {
  return shard_tasks_of(
      problem.graph, op, operands, config.devices,
      [&](int i) -> const DistinctRects& { return geometry.partition(op, i, config.split).parts; });
}

std::int64_t updated(const Problem& problem, TensorId tensor, const Rect& shard) {
  const int states = problem.facts.optimizer.states;
  return 2 * (1 + states) * updated_elements(problem.graph, problem.facts, tensor, shard, states);
}

std::int64_t update_time(const Problem& problem, int device, std::int64_t elements) {
  return linear(problem, problem.costs.update, device, elements);
}

std::int64_t arrival(const MachineModel& machine, int from, int to, std::int64_t elements) {
  const int source = machine.memory_of[from], destination = machine.memory_of[to];
  Passage passage;
  if (source == destination) return passage.time();
  for (int link : machine.route(source, destination)) {
    const CommunicationDevice& its = machine.links[link];
    passage.pass(its, hop_time(its, elements * kElementBytes));
  }
  return passage.time();
}

}  // namespace flexlegion
