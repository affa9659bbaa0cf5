// Lower bounds for branch and bound (bounds.h): for a partial strategy, a time that no completion
// of it can beat.
//
// Two things bound a strategy from below: its longest chain of dependencies, and its work spread
// over all devices. Either alone is weak: a configuration with one task makes little work and a
// long chain, one with many tasks the opposite, and the minimum over both is small in each. A
// weighted mean of both is a bound as well, and is large for either; four weights are tried.
//
// The part of the chain that is not decided yet goes from an operator's forward task, through
// operators without a configuration, back to its backward task. These ways are computed once, from
// the last operator to the first (fill_around), for each configuration at their lower end. They do
// not depend on what is decided below, so bounding a node only follows the decided operators: its
// cost grows with their tasks and edges.
//
// Every step rounds towards less: waiting for devices and links, and transfers that share a link,
// are left out. What remains is a bound, never an estimate.
#include "bounds/bounds.h"

#include <algorithm>
#include <utility>

namespace flexlegion {

Bounds::Bounds(const Problem& problem, const std::vector<OpId>& operators,
               std::vector<std::vector<PricedConfig>> configs)
    : problem_(problem), geometry_(problem), operators_(operators), nodes_(operators.size()) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].op = operators_[i];
    nodes_[i].configs = std::move(configs[i]);
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
    // Whatever configurations the operators from i on get, they make at least this work.
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
    // What holds for each configuration of the first operator holds for every strategy.
    root_ = std::min(root_, assign(0, c, kNever));
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
  // The bound by work alone: some device has at least an even share of it.
  const Time share = all / devices;
  bound = std::max(bound, (all + devices - 1) / devices);
  for (std::size_t w = 0; w < kWeights.size() && bound < limit; ++w) {
    const Time path = longest(position, w);
    // (path + w share) / (1 + w), rounded up: a mean of two bounds is a bound.
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
  // The earliest start of an operator without a configuration: after the first end among the tasks
  // of each decided operator that all its tasks read.
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
