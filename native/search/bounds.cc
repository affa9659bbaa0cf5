#include "search/bounds.h"

#include <algorithm>
#include <numeric>

#include "sim/charges.h"

namespace flexlegion {

Bounds::Bounds(const Problem& problem) : problem_(problem), geometry_(problem) {
  IdVector<OpId, int> groups(problem.graph.operators.size());
  std::iota(groups.begin(), groups.end(), 0);
  const Proposals proposals(problem, groups);
  operators_ = proposals.operators();
  nodes_.resize(operators_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].op = operators_[i];
    nodes_[i].configs = proposals.all(operators_[i]);
    fill(nodes_[i]);
    fill_updates(nodes_[i]);
  }
  find_edges();
  for (Edge& edge : edges_) fill(edge);
  for (std::size_t i = 0; i + 1 < nodes_.size(); ++i) {
    backward_last_ = backward_last_ && !nodes_[i].out.empty();
  }
  for (std::size_t w = 0; w < kWeights.size(); ++w) {
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      for (int e : nodes_[i].in) fill_around(edges_[e], w);
    }
  }
  const std::size_t n = nodes_.size();
  chosen_.assign(n, -1);
  forward_end_.assign(n, std::vector<Time>(kParts));
  backward_end_.assign(n, std::vector<Time>(kParts));
  load_.assign(n + 1, std::vector<Time>(static_cast<std::size_t>(problem.machine.devices()), 0));
  least_work_.assign(n + 1, 0);
  for (std::size_t i = n; i-- > 0;) {
    least_work_[i] =
        least_work_[i + 1] + *std::min_element(nodes_[i].work.begin(), nodes_[i].work.end());
  }
  first_ = kNever;
  for (const Node& node : nodes_) {
    if (!node.in.empty()) continue;
    for (const auto& heads : node.head) {
      first_ = std::min(first_, *std::min_element(heads.begin(), heads.end()));
    }
  }
  idle_.assign(n + 1, std::vector<Time>(static_cast<std::size_t>(problem.machine.devices()), 0));
  std::fill(idle_[0].begin(), idle_[0].end(), first_);
  root_ = kNever;
  for (int c = 0; c < static_cast<int>(nodes_[0].configs.size()); ++c) {
    root_ = std::min(root_, assign(0, c, kNever));
  }
}

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
      if (source.first_reader != node.op) continue;  // cut as another operator is
      const auto devices = load_config(graph, source, split.degrees, config.devices).devices;
      const int parts = static_cast<int>(devices.size());
      const Partition& partition = geometry_.load_partition(operand.tensor, parts);
      const std::int64_t bytes = graph.tensors[operand.tensor].value_bytes();
      Time least = kNever;
      for (int k = 0; k < parts; ++k) {
        const Rect& tile = partition.of_task(k);
        least = std::min(least, load_time(problem_, devices[k], tile.volume() * bytes));
      }
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
    std::vector<const Partition*> partitions;
    for (int i : owned)
      partitions.push_back(&geometry_.partition(node.op, i, node.configs[c].split));
    const std::vector<ShardTask> tasks =
        shard_tasks_of(problem_, geometry_, node.op, owned, node.configs[c]);
    // Between a part and a device's shards, all weights travel together.
    std::vector<std::vector<std::int64_t>> sent(devices.size());
    for (auto& bytes : sent) bytes.assign(static_cast<std::size_t>(machine.devices()), 0);
    const auto tensor_of = [&](int w) {
      return graph.operators[node.op].operands[owned[w]].tensor;
    };
    struct Bytes {
      std::int64_t gradients = 0, values = 0;
    };
    const auto common = [&](const ShardTask& task, int k) {
      Bytes bytes;
      for (const auto& [w, shard] : task.shards) {
        const Rect& part = partitions[w]->parts.rects[partitions[w]->parts.of_part[k]];
        const std::int64_t elements = part.intersect(shard).volume();
        bytes.gradients += elements * graph.tensors[tensor_of(w)].gradient_bytes();
        bytes.values += elements * graph.tensors[tensor_of(w)].value_bytes();
      }
      return bytes;
    };
    for (const ShardTask& task : tasks) {
      for (std::size_t k = 0; k < devices.size(); ++k) {
        sent[k][task.device] += common(task, static_cast<int>(k)).gradients;
      }
    }
    for (const ShardTask& task : tasks) {
      std::int64_t touched = 0;
      Time back = 0;
      for (const auto& [w, shard] : task.shards) {
        touched += updated(problem_, tensor_of(w), shard);
      }
      for (std::size_t k = 0; k < devices.size(); ++k) {
        const Bytes bytes = common(task, static_cast<int>(k));
        touched += bytes.gradients;
        if (bytes.values == 0) continue;
        back = std::max(back, arrival(machine, task.device, devices[k], bytes.values));
      }
      const Time time = update_time(problem_, task.device, touched);
      node.load[c][task.device] += time;
      node.work[c] += time;
      for (std::size_t k = 0; k < devices.size(); ++k) {
        if (common(task, static_cast<int>(k)).values == 0) continue;
        const Time there = arrival(machine, devices[k], task.device, sent[k][task.device]);
        tails[k] = std::max(tails[k], there + time + back);
      }
    }
  }
}

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

// From forward tasks of `writer` to those that read what sum tasks combine of an output.
void Bounds::add_sums(OpId writer, int output, const PricedConfig& theirs, const Partition& read,
                      const PricedConfig& mine, Matrix& forward) {
  const Partition& written = geometry_.partition(writer, output, theirs.split);
  const int values = problem_.split(writer, theirs.split).partial_values;
  const std::vector<int> outputs = problem_.graph.operators[writer].outputs();
  const TensorId tensor = problem_.graph.operators[writer].operands[output].tensor;
  const std::int64_t bytes = problem_.graph.tensors[tensor].value_bytes();
  for (const ShardTask& task : shard_tasks_of(problem_, geometry_, writer, outputs, theirs)) {
    const std::int64_t own = summed_bytes(problem_.graph, writer, outputs, task);
    const Time sum = sum_time(problem_, task.device, values * own, own);
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
        // What is read twice is summed up once.
        const bool again_read = std::any_of(
            edge.operands.begin(), edge.operands.begin() + static_cast<std::ptrdiff_t>(o),
            [output = output](const auto& other) { return other.first == output; });
        const TensorId tensor = graph.operators[reader.op].operands[input].tensor;
        const std::int64_t bytes = graph.tensors[tensor].value_bytes();
        const bool back = problem_.facts.differentiable[tensor] &&
                          problem_.facts.backward[reader.op] && problem_.facts.backward[writer.op];
        const Partition& written = geometry_.partition(writer.op, output, theirs.split);
        const Partition& read = geometry_.partition(reader.op, input, mine.split);
        const Overlaps& overlaps = geometry_.relation(read, written).overlaps;
        const int values = problem_.split(writer.op, theirs.split).partial_values;
        const bool summed = theirs.sums == Sums::shards;
        if (summed) add_sums(writer.op, output, theirs, read, mine, forward);
        std::vector<Time> partial(theirs.devices.size(), 0);
        for (int j = 0; j < forward.width; ++j) {
          const int rect = read.parts.of_part[j];
          if (read.ids[rect] < 0) continue;
          const std::int64_t its = read.parts.rects[rect].volume() * bytes;
          // Who reads partial values combines them first.
          const Time combining =
              summed ? 0 : sum_time(problem_, mine.devices[j], values * its, its);
          for (int i = overlaps.first[rect]; i < overlaps.first[rect + 1]; ++i) {
            const RectIndex::Item& item = overlaps.items[i];
            const std::int64_t moved = item.volume * bytes;
            for (int k = written.first_task(item.rect, values); k <= written.last_task[item.rect];
                 ++k) {
              Time& there = forward.at[static_cast<std::size_t>(k * forward.width + j)];
              if (!summed) {
                there = std::max(there, combining + arrival(problem_.machine, theirs.devices[k],
                                                            mine.devices[j], moved));
              }
              partial[k] += moved;
              if (!back) continue;
              Time& again = backward.at[static_cast<std::size_t>(j * backward.width + k)];
              again = std::max(
                  again, arrival(problem_.machine, mine.devices[j], theirs.devices[k], moved));
            }
          }
        }
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

// How long at least, if the writer has configuration w, from the end of its forward task k to the
// start of its backward task `back`, by ways over this edge? Such a way leads to a task i of the
// reader, on to the end of the graph and back to a task j of the reader, and from there to `back`.
//
// - Through the reader (`through`): forward task i, the longest way beyond the reader, and
//   backward task j. What lies beyond is known, since edges are filled from the last operator to
//   the first. With nothing beyond, a task's backward pass follows its own forward pass: i is j.
// - All ways have to be waited for, so the longest one counts (`most`).
// - Which configuration the reader will get is not known, so the least over all of them is taken. A
//   configuration that shortens the way by much work pays for that work, with the weight.
void Bounds::fill_around(Edge& edge, std::size_t weight) {
  const Node &writer = nodes_[edge.from], &reader = nodes_[edge.to];
  const std::size_t readers = reader.configs.size();
  const Time least = *std::min_element(reader.work.begin(), reader.work.end());
  for (std::size_t w = 0; w < writer.configs.size(); ++w) {
    const int parts = static_cast<int>(writer.configs[w].devices.size());
    Matrix& around = edge.around[weight].emplace_back();
    around.width = parts;
    around.at.assign(static_cast<std::size_t>(parts * parts), kNever);
    for (std::size_t r = 0; r < readers; ++r) {
      const int its = static_cast<int>(reader.configs[r].devices.size());
      const Matrix& forward = edge.forward[w * readers + r];
      const Matrix& backward = edge.backward[w * readers + r];
      Time through[kParts][kParts];
      for (int i = 0; i < its; ++i) {
        for (int j = 0; j < its; ++j) {
          Time way = i == j ? 0 : kNone;
          for (int e : reader.out) {
            way = std::max(way,
                           edges_[e].around[weight][r].at[static_cast<std::size_t>(i * its + j)]);
          }
          through[i][j] = way + reader.forward[r][i] + reader.backward[r][j] +
                          kWeights[weight] * (reader.work[r] - least) / problem_.machine.devices();
        }
      }
      for (int k = 0; k < parts; ++k) {
        for (int back = 0; back < parts; ++back) {
          Time most = kNone;
          for (int i = 0; i < its; ++i) {
            const Time there = forward.at[static_cast<std::size_t>(k * its + i)];
            if (there == kNone) continue;
            for (int j = 0; j < its; ++j) {
              most = std::max(most, there + through[i][j] +
                                        backward.at[static_cast<std::size_t>(j * parts + back)]);
            }
          }
          Time& least = around.at[static_cast<std::size_t>(k * parts + back)];
          least = std::min(least, std::max(most, kNone));
        }
      }
    }
  }
}

std::int64_t Bounds::assign(int position, int config, std::int64_t limit) {
  place(position, config);
  const auto& load = load_[position + 1];
  const auto& idle = idle_[position + 1];
  const auto devices = static_cast<Time>(load.size());
  Time all = least_work_[position + 1], bound = 0;
  for (std::size_t d = 0; d < load.size(); ++d) {
    all += idle[d] + load[d];
    bound = std::max(bound, idle[d] + load[d]);
  }
  const Time share = all / devices;
  bound = std::max(bound, (all + devices - 1) / devices);
  for (std::size_t w = 0; w < kWeights.size() && bound < limit; ++w) {
    const Time path = longest(position, w);
    bound = std::max(bound, (path + kWeights[w] * share + kWeights[w]) / (1 + kWeights[w]));
  }
  return bound;
}

// Gives the next operator its configuration: when its forward tasks can end at the earliest, and
// what it adds to each device's load.
void Bounds::place(int position, int config) {
  chosen_[position] = config;
  const Node& node = nodes_[position];
  const int parts = static_cast<int>(node.configs[config].devices.size());
  auto& load = load_[position + 1];
  for (std::size_t d = 0; d < load.size(); ++d) {
    load[d] = load_[position][d] + node.load[config][d];
  }
  for (int k = 0; k < parts; ++k) {
    Time ready = node.head[config][k];
    for (int e : node.in) {
      const Edge& edge = edges_[e];
      const Matrix& lags = edge.forward[chosen_[edge.from] * node.configs.size() + config];
      const int theirs = static_cast<int>(lags.at.size()) / parts;
      for (int j = 0; j < theirs; ++j) {
        ready = std::max(ready, forward_end_[edge.from][j] + lags.at[j * parts + k]);
      }
    }
    forward_end_[position][k] = ready + node.forward[config][k];
  }
  find_idle(position);
}

// How long each device is idle at least. Before any operator without a configuration can start
// (`until`), there are only forward tasks of the operators that have one. A device gets most of
// these done by then if it starts each as soon as its inputs can be there; the rest of that time it
// is idle.
void Bounds::find_idle(int position) {
  Time until = kNever;
  for (std::size_t i = static_cast<std::size_t>(position) + 1; i < nodes_.size(); ++i) {
    Time earliest = first_;
    for (int e : nodes_[i].in) {
      const int from = edges_[e].from;
      if (from > position || !edges_[e].all_read) continue;
      const auto parts =
          static_cast<std::ptrdiff_t>(nodes_[from].configs[chosen_[from]].devices.size());
      const auto& ends = forward_end_[from];
      earliest = std::max(earliest, *std::min_element(ends.begin(), ends.begin() + parts));
    }
    until = std::min(until, earliest);
  }
  auto& idle = idle_[position + 1];
  idle = idle_[position];
  if (until == kNever || !backward_last_) return;
  early_.clear();
  for (int p = 0; p <= position; ++p) {
    const Node& node = nodes_[p];
    const auto& devices = node.configs[chosen_[p]].devices;
    for (std::size_t k = 0; k < devices.size(); ++k) {
      const Time time = node.forward[chosen_[p]][k];
      if (forward_end_[p][k] - time >= until) continue;
      early_.push_back({forward_end_[p][k] - time, time, devices[k]});
    }
  }
  std::sort(early_.begin(), early_.end(),
            [](const Early& a, const Early& b) { return a.head < b.head; });
  for (std::size_t d = 0; d < idle.size(); ++d) {
    Time now = 0, busy = 0;
    for (const Early& task : early_) {
      if (task.device != static_cast<int>(d)) continue;
      const Time start = std::min(until, std::max(now, task.head));
      now = std::min(until, start + task.time);
      busy += now - start;
    }
    idle[d] = std::max(idle[d], until - busy);
  }
}

// The longest chain of dependencies, where operators without a configuration add their weighted
// excess of work.
Bounds::Time Bounds::longest(int position, std::size_t weight) {
  Time most = 0;
  for (int p = position; p >= 0; --p) {
    const Node& node = nodes_[p];
    const int c = chosen_[p];
    const int parts = static_cast<int>(node.configs[c].devices.size());
    Time ready[kParts];
    std::copy_n(forward_end_[p].begin(), parts, ready);
    const auto follow = [&](const std::vector<Time>& ends, const Matrix& lags) {
      const int theirs = static_cast<int>(lags.at.size()) / parts;
      for (int k = 0; k < theirs; ++k) {
        for (int j = 0; j < parts; ++j) {
          ready[j] = std::max(ready[j], ends[k] + lags.at[k * parts + j]);
        }
      }
    };
    for (int e : node.out) {
      const Edge& edge = edges_[e];
      if (edge.to > position) {
        follow(forward_end_[p], edge.around[weight][c]);
      } else {
        follow(backward_end_[edge.to],
               edge.backward[c * nodes_[edge.to].configs.size() + chosen_[edge.to]]);
      }
    }
    for (int k = 0; k < parts; ++k) {
      backward_end_[p][k] = ready[k] + node.backward[c][k];
      most = std::max(most, backward_end_[p][k] + node.tail[c][k]);
    }
  }
  return most;
}

}  // namespace flexlegion
