// What Bounds knows of single operators and of pairs of them, for each configuration: how long
// tasks take, and how much later than a task of one operator a task of another can start at the
// earliest. All of that is asked of sim/charges.h.
//
// A lag is the least time between the end of one task and the start of another that waits for it:
// the transfer of what they share over the route alone, without other traffic, and what has to be
// combined on the way. A pair without overlap has no lag. For each edge and each pair of
// configurations there are two tables of lags, for values forwards and for gradients backwards.
#include <algorithm>
#include <numeric>

#include "bounds/bounds.h"
#include "sim/charges.h"

namespace flexlegion {

// Of each configuration: the times of its tasks, what it puts on each device, and how long its
// tasks wait for loads. A task that reads an input waits for at least one load task, so for as long
// as the shortest one takes; which one is not asked.
void Bounds::fill(Node& node) {
  const Graph& graph = problem_.graph;
  const MachineModel& machine = problem_.machine;
  for (const PricedConfig& config : node.configs) {
    const Split& split = problem_.split(node.op, config.split);
    std::vector<Time> forward, backward;
    for (int k = 0; k < split.tasks; ++k) {
      const int kind = machine.kind_of[config.devices[k]];
      forward.push_back(split.time(Pass::forward, kind, k));
      backward.push_back(problem_.facts.backward[node.op] ? split.time(Pass::backward, kind, k)
                                                          : 0);
    }
    std::vector<Time>& heads = node.head.emplace_back(config.devices.size(), 0);
    const auto& operands = graph.operators[node.op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      const Operand& operand = operands[i];
      if (operand.role != Role::input) continue;
      if (graph.tensors[operand.tensor].kind != TensorKind::input) continue;
      const LoadSource source = load_source(graph, problem_.facts, operand.tensor);
      // A batch that several operators read is loaded once, as the first of them reads it.
      if (source.first_reader != node.op) continue;  // cut as another operator is
      const auto devices = load_config(graph, source, split.degrees, config.devices).devices;
      const auto times = load_times(problem_, geometry_, operand.tensor, devices);
      const Time least = *std::min_element(times.begin(), times.end());
      const Partition& read = geometry_.partition(node.op, i, config.split);
      for (std::size_t k = 0; k < heads.size(); ++k) {
        if (read.ids[read.parts.of_part[k]] >= 0) heads[k] = std::max(heads[k], least);
      }
    }
    auto& load = node.load.emplace_back(static_cast<std::size_t>(machine.devices()), 0);
    for (int k = 0; k < split.tasks; ++k) load[config.devices[k]] += forward[k] + backward[k];
    node.work.push_back(std::accumulate(forward.begin(), forward.end(), Time{0}) +
                        std::accumulate(backward.begin(), backward.end(), Time{0}));
    node.forward.push_back(std::move(forward));
    node.backward.push_back(std::move(backward));
  }
}

// What follows a backward task to the end: gradients gathered, an update, weights returned, as far
// as the operator's own tasks take part in it. Others that use its weights only add to that.
void Bounds::fill_updates(Node& node) {
  const Graph& graph = problem_.graph;
  const MachineModel& machine = problem_.machine;
  std::vector<int> owned = problem_.facts.owned_weights(graph, node.op);
  // What a table's update waits for are others' tasks.
  const auto is_table = [&](int i) {
    return problem_.facts.is_table(graph.operators[node.op].operands[i].tensor);
  };
  owned.erase(std::remove_if(owned.begin(), owned.end(), is_table), owned.end());
  for (std::size_t c = 0; c < node.configs.size(); ++c) {
    const auto& devices = node.configs[c].devices;
    std::vector<Time>& tails = node.tail.emplace_back(devices.size(), 0);
    const OwnUpdate update = own_update(problem_, geometry_, node.op, owned, node.configs[c]);
    // Between a part and a device's shards, all weights travel together.
    std::vector<std::vector<std::int64_t>> sent(devices.size());
    for (auto& bytes : sent) bytes.assign(static_cast<std::size_t>(machine.devices()), 0);
    for (std::size_t t = 0; t < update.tasks.size(); ++t) {
      for (std::size_t k = 0; k < devices.size(); ++k) {
        sent[k][update.tasks[t].device] += update.shares[t][k].gradients;
      }
    }
    for (std::size_t t = 0; t < update.tasks.size(); ++t) {
      const int device = update.tasks[t].device;
      Time back = 0;
      for (std::size_t k = 0; k < devices.size(); ++k) {
        const std::int64_t values = update.shares[t][k].values;
        if (values > 0) back = std::max(back, arrival(machine, device, devices[k], values));
      }
      const Time time = update.bytes[t].time(problem_, Pass::update, device);
      node.load[c][device] += time;
      node.work[c] += time;
      for (std::size_t k = 0; k < devices.size(); ++k) {
        if (update.shares[t][k].values == 0) continue;
        // A tail: gradients sent to the update, the update, and the weights' way back to whoever
        // waits longest.
        const Time there = arrival(machine, devices[k], device, sent[k][device]);
        tails[k] = std::max(tails[k], there + time + back);
      }
    }
  }
}

// One edge for each pair of operators, with all tensors between them.
void Bounds::find_edges() {
  const Graph& graph = problem_.graph;
  IdVector<TensorId, std::pair<int, int>> producer(graph.tensors.size(),
                                                   {-1, -1});  // (position, operand)
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    const auto& operands = graph.operators[nodes_[i].op].operands;
    const std::size_t first = edges_.size();
    for (int o = 0; o < static_cast<int>(operands.size()); ++o) {
      if (operands[o].role == Role::output) producer[operands[o].tensor] = {i, o};
      if (operands[o].role != Role::input || producer[operands[o].tensor].first < 0) continue;
      const auto [from, output] = producer[operands[o].tensor];
      auto edge = std::find_if(edges_.begin() + static_cast<std::ptrdiff_t>(first), edges_.end(),
                               [from = from](const Edge& e) { return e.from == from; });
      if (edge == edges_.end()) {
        const int number = static_cast<int>(edges_.size());
        nodes_[from].out.push_back(number);
        nodes_[i].in.push_back(number);
        Edge fresh;
        fresh.from = from;
        fresh.to = i;
        edge = edges_.insert(edges_.end(), fresh);
      }
      edge->operands.emplace_back(output, o);
    }
  }
}

// From forward tasks of `writer` to those that read what sum tasks combine of an output: over each
// sum task whose shard the reader needs, what the writer sends it, the sum, and the shard's way on.
// What other tasks send to the same sum is in their own lags.
void Bounds::add_sums(OpId writer, int output, const PricedConfig& theirs, const Partition& read,
                      const PricedConfig& mine, Matrix& forward) {
  const Partition& written = geometry_.partition(writer, output, theirs.split);
  const int values = problem_.split(writer, theirs.split).partial_values;
  const std::vector<int> outputs = problem_.graph.operators[writer].outputs();
  const TensorId tensor = problem_.graph.operators[writer].operands[output].tensor;
  const std::int64_t bytes = problem_.graph.tensors[tensor].value_bytes();
  for (const ShardTask& task :
       shard_tasks_of(problem_, geometry_, writer, outputs, Shares::outputs, theirs)) {
    const Time sum = sum_task_time(problem_, writer, values, task);
    for (const auto& [which, shard] : task.shards) {
      if (outputs[static_cast<std::size_t>(which)] != output) continue;
      for (int j = 0; j < forward.width; ++j) {
        const std::int64_t reads = read.of_task(j).intersect(shard).volume() * bytes;
        if (reads == 0) continue;
        const Time back = arrival(problem_.machine, task.device, mine.devices[j], reads);
        written.index.visit(shard, [&](int rect, std::int64_t volume) {
          for (int k = written.first_task(rect, values); k <= written.last_task[rect]; ++k) {
            Time& there = forward.at[static_cast<std::size_t>(k * forward.width + j)];
            const Time gathered =
                arrival(problem_.machine, theirs.devices[k], task.device, volume * bytes);
            there = std::max(there, gathered + sum + back);
          }
        });
      }
    }
  }
}

// For each pair of configurations, two matrices of lags: how much later a reader's task can start
// than a writer's task has ended, and backward the other way round. Several tensors between two
// operators give the largest of their lags, since a task waits for all of them. Tasks that have
// nothing in common keep kNone.
//
// Costs: for each pair of configurations, the exchanges between their tasks, which an index finds.
void Bounds::fill(Edge& edge) {
  const Node &writer = nodes_[edge.from], &reader = nodes_[edge.to];
  const Graph& graph = problem_.graph;
  for (const PricedConfig& theirs : writer.configs) {
    for (const PricedConfig& mine : reader.configs) {
      Matrix forward, backward;
      forward.width = static_cast<int>(mine.devices.size());
      backward.width = static_cast<int>(theirs.devices.size());
      forward.at.assign(mine.devices.size() * theirs.devices.size(), kNone);
      backward.at = forward.at;
      for (std::size_t o = 0; o < edge.operands.size(); ++o) {
        const auto [output, input] = edge.operands[o];
        // If the reader has a tensor as two operands, its gradients are summed up once.
        const bool again_read = std::any_of(
            edge.operands.begin(), edge.operands.begin() + static_cast<std::ptrdiff_t>(o),
            [output = output](const auto& other) { return other.first == output; });
        const TensorId tensor = graph.operators[reader.op].operands[input].tensor;
        const std::int64_t bytes = graph.tensors[tensor].value_bytes();
        const bool back = problem_.facts.differentiable[tensor] &&
                          problem_.facts.backward[reader.op] && problem_.facts.backward[writer.op];
        const Partition& written = geometry_.partition(writer.op, output, theirs.split);
        const Partition& read = geometry_.partition(reader.op, input, mine.split);
        const int values = problem_.split(writer.op, theirs.split).partial_values;
        const bool summed = theirs.sums == Sums::shards;
        if (summed) add_sums(writer.op, output, theirs, read, mine, forward);
        std::vector<Time> partial(theirs.devices.size(), 0);
        for_each_exchange(read, written, values, [&](int j, int k, std::int64_t elements) {
          const int from = theirs.devices[k], to = mine.devices[j];
          const std::int64_t moved = elements * bytes;
          partial[k] += moved;
          if (!summed) {  // who reads partial values combines them first
            Time& there = forward.at[static_cast<std::size_t>(k * forward.width + j)];
            const std::int64_t own = read.of_task(j).volume() * bytes;
            there = std::max(there, combining_time(problem_, to, own, values) +
                                        arrival(problem_.machine, from, to, moved));
          }
          if (!back) return;
          Time& again = backward.at[static_cast<std::size_t>(j * backward.width + k)];
          again = std::max(again, arrival(problem_.machine, to, from, moved));
        });
        // The sum of partial values lengthens the writer's backward task.
        for (int k = 0; k < backward.width && back && !again_read; ++k) {
          const std::int64_t own = written.of_task(k).volume() * bytes;
          const Time sum = sum_time(problem_, theirs.devices[k], partial[k], own);
          for (int j = 0; j < forward.width; ++j) {
            Time& again = backward.at[static_cast<std::size_t>(j * backward.width + k)];
            if (again != kNone) again += sum;
          }
        }
      }
      for (int j = 0; j < forward.width; ++j) {
        // Whether every task of the reader waits for the writer, and every backward task of the
        // writer for the reader, whatever the configurations: find_idle() relies on it.
        bool reads = false;
        for (int k = 0; k < backward.width; ++k) {
          reads = reads || forward.at[static_cast<std::size_t>(k * forward.width + j)] != kNone;
        }
        edge.all_read = edge.all_read && reads;
      }
      for (int k = 0; k < backward.width; ++k) {
        bool waits = false;
        for (int j = 0; j < forward.width; ++j) {
          waits = waits || backward.at[static_cast<std::size_t>(j * backward.width + k)] != kNone;
        }
        backward_last_ = backward_last_ && waits;
      }
      edge.forward.push_back(std::move(forward));
      edge.backward.push_back(std::move(backward));
    }
  }
}

}  // namespace flexlegion
