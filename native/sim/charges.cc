#include "sim/charges.h"

namespace flexlegion {

namespace {

std::int64_t linear(const Problem& problem, const std::vector<LinearCost>& costs, int device,
                    std::int64_t bytes) {
  return costs[problem.machine.kind_of[device]].time(bytes);
}

}  // namespace

std::int64_t load_time(const Problem& problem, int device, std::int64_t bytes) {
  return linear(problem, problem.costs.load, device, bytes);
}

std::int64_t summed_bytes(const Graph& graph, OpId op, const std::vector<int>& outputs,
                          const ShardTask& task) {
  std::int64_t bytes = 0;
  for (const auto& [which, shard] : task.shards) {
    const int operand = outputs[static_cast<std::size_t>(which)];
    const TensorId tensor = graph.operators[op].operands[operand].tensor;
    bytes += shard.volume() * graph.tensors[tensor].value_bytes();
  }
  return bytes;
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
  const Tensor& weight = problem.graph.tensors[tensor];
  const int states = problem.facts.optimizer.states_of(weight);
  const std::int64_t elements =
      updated_elements(problem.graph, problem.facts, tensor, shard, states);
  // A value that is rounded off its master is written alone.
  const std::int64_t value = (weight.has_master() ? 1 : 2) * weight.value_bytes();
  return elements * (value + 2 * states * element_bytes(kStateType));
}

std::int64_t update_time(const Problem& problem, int device, std::int64_t bytes) {
  return linear(problem, problem.costs.update, device, bytes);
}

std::int64_t arrival(const MachineModel& machine, int from, int to, std::int64_t bytes) {
  const int source = machine.memory_of[from], destination = machine.memory_of[to];
  Passage passage;
  if (source == destination) return passage.time();
  for (int link : machine.route(source, destination)) {
    const CommunicationDevice& its = machine.links[link];
    passage.pass(its, hop_time(its, bytes));
  }
  return passage.time();
}

}  // namespace flexlegion
