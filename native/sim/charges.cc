// What an iteration is charged besides the operators' own tasks (charges.h).
//
// Three rules:
// - A pass that only moves data takes overhead + bytes / rate. Its bytes are those of its tile (a
//   load), of all partial values of its tile (a sum), or of what it reads and writes (an update).
// - An update touches the partial gradients that it gathers, each of which it reads, and the values
//   and optimizer states of its shard, which it reads and writes back. That is why the constant
//   factors are 2. Of a table's shard under a lazy optimizer, these are the looked-up rows.
// - A transfer passes its links cut-through, hop by hop (Passage).
//
// own_update() answers the same as the flow of an operator's weights, without building the flow:
// per pair of an update task and an operator's task, the bytes that go each way. It costs |update
// tasks| * |tasks| intersections of rectangles. The bounds of the exhaustive search and OptCNN's
// costs need nothing more.
#include "sim/charges.h"

namespace flexlegion {

std::int64_t time_of_bytes(const Problem& problem, Pass pass, int device, std::int64_t bytes) {
  return problem.costs.of_bytes(pass, problem.machine.kind_of[device]).time(bytes);
}

// Each task brings its own tile, side by side with the others.
std::vector<std::int64_t> load_times(const Problem& problem, Geometry& geometry, TensorId tensor,
                                     const std::vector<int>& devices) {
  const int parts = static_cast<int>(devices.size());
  const Partition& partition = geometry.load_partition(tensor, parts);
  const std::int64_t bytes = problem.graph.tensors[tensor].value_bytes();
  std::vector<std::int64_t> times;
  for (int k = 0; k < parts; ++k) {
    times.push_back(
        time_of_bytes(problem, Pass::load, devices[k], partition.of_task(k).volume() * bytes));
  }
  return times;
}

std::int64_t sum_time(const Problem& problem, int device, std::int64_t partial, std::int64_t own) {
  return partial > own ? time_of_bytes(problem, Pass::sum, device, partial) : 0;
}

std::int64_t combining_time(const Problem& problem, int device, std::int64_t own, int values) {
  return sum_time(problem, device, values * own, own);
}

// The shards of all outputs are summed by one task, so it pays the overhead once.
std::int64_t sum_task_time(const Problem& problem, OpId op, int values, const ShardTask& task) {
  const Operator& its = problem.graph.operators[op];
  const std::vector<int> outputs = its.outputs();
  std::int64_t own = 0;
  for (const auto& [which, shard] : task.shards) {
    const TensorId tensor = its.operands[outputs[static_cast<std::size_t>(which)]].tensor;
    own += shard.volume() * problem.graph.tensors[tensor].value_bytes();
  }
  return combining_time(problem, task.device, own, values);
}

std::vector<ShardTask> shard_tasks_of(const Problem& problem, Geometry& geometry, OpId op,
                                      const std::vector<int>& operands, Shares shares,
                                      const PricedConfig& config) {
  const Sharing sharing{op, shares, config.hierarchical, &config.devices};
  return shard_tasks_of(problem.graph, operands, sharing, [&](int i) -> const DistinctRects& {
    return geometry.partition(op, i, config.split).parts;
  });
}

// The gradient of a table is never written out. Each operator that looked rows up has the gradient
// of its output, and the update scatters that into the table's rows.
std::vector<GradientSource> gradient_sources(const Problem& problem, TensorId weight) {
  const auto lookups = problem.facts.lookups.find(weight);
  if (lookups == problem.facts.lookups.end()) return {{weight, {}}};
  std::vector<GradientSource> sources;
  for (OpId op : lookups->second) {
    const TensorId output = problem.graph.operators[op].primary_output().tensor;
    if (problem.facts.has_gradient[output]) sources.push_back({output, op});
  }
  return sources;
}

Rect gradient_rect(const Graph& graph, const GradientSource& source, const Rect& shard) {
  return source.lookup.none() ? shard : looked_up_gradient(graph, source.lookup, shard);
}

void UpdateBytes::change(const Problem& problem, TensorId tensor, const Rect& shard) {
  const Tensor& weight = problem.graph.tensors[tensor];
  const int states = problem.facts.optimizer.states_of(weight);
  const std::int64_t elements = updated_elements(problem.graph, problem.facts, tensor, shard);
  // A value that is rounded off its master is written alone.
  const std::int64_t value = (weight.has_master() ? 1 : 2) * weight.value_bytes();
  changed += elements * (value + 2 * states * element_bytes(kStateType));
}

std::int64_t UpdateBytes::time(const Problem& problem, Pass pass, int device) const {
  return time_of_bytes(problem, pass, device, gathered + changed);
}

OwnUpdate own_update(const Problem& problem, Geometry& geometry, OpId op,
                     const std::vector<int>& weights, const PricedConfig& config) {
  const Graph& graph = problem.graph;
  const auto& operands = graph.operators[op].operands;
  OwnUpdate update;
  // For each update task, its shards; for each shard and each of the operator's tasks, what they
  // have in common.
  update.tasks = shard_tasks_of(problem, geometry, op, weights, Shares::weights, config);
  update.bytes.resize(update.tasks.size());
  update.shares.assign(update.tasks.size(), std::vector<OwnUpdate::Share>(config.devices.size()));
  for (std::size_t t = 0; t < update.tasks.size(); ++t) {
    for (const auto& [w, shard] : update.tasks[t].shards) {
      const int operand = weights[static_cast<std::size_t>(w)];
      const TensorId weight = operands[operand].tensor;
      const Partition& parts = geometry.partition(op, operand, config.split);
      update.bytes[t].change(problem, weight, shard);
      for (std::size_t k = 0; k < config.devices.size(); ++k) {
        const std::int64_t common = parts.of_task(static_cast<int>(k)).intersect(shard).volume();
        if (common == 0) continue;
        OwnUpdate::Share& share = update.shares[t][k];
        share.values += common * graph.tensors[weight].value_bytes();
        for (const GradientSource& source : gradient_sources(problem, weight)) {
          if (!source.lookup.none() && source.lookup != op) continue;  // another operator's
          std::int64_t elements = common;
          if (source.lookup == op) {
            const int output = graph.operators[op].outputs().front();
            elements = geometry.partition(op, output, config.split)
                           .of_task(static_cast<int>(k))
                           .intersect(gradient_rect(graph, source, shard))
                           .volume();
          }
          const std::int64_t bytes = elements * graph.tensors[source.tensor].gradient_bytes();
          share.gradients += bytes;
          // Of a table, what was looked up in every round.
          update.bytes[t].gathered += bytes * (source.lookup.none() ? 1 : graph.micro_batches);
        }
      }
    }
  }
  return update;
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
