#include "sim/path_bounds.h"

#include <algorithm>

namespace flexlegion {

PathBounds::PathBounds(const Problem& problem, const LaunchGraph& launch_graph,
                       const std::vector<FlowPtr>& flows)
    : launch_graph_(launch_graph),
      flows_(flows),
      shortest_(launch_graph.launches.size()),
      longest_turn_(launch_graph.launches.size()),
      first_end_(launch_graph.launches.size()),
      last_end_(launch_graph.launches.size()),
      tails_(launch_graph.launches.size()),
      turn_(static_cast<std::size_t>(problem.machine.devices()), 0) {}

void PathBounds::note(int launch, const Block& block) {
  shortest_[launch] = block.exe_time.empty() ? 0 : kMaxTime;
  longest_turn_[launch] = 0;
  for (std::size_t k = 0; k < block.device.size(); ++k) {
    shortest_[launch] = std::min(shortest_[launch], block.exe_time[k]);
    std::int64_t& turn = turn_[block.device[k]];
    turn += block.exe_time[k];
    longest_turn_[launch] = std::max(longest_turn_[launch], turn);
  }
  for (int device : block.device) turn_[device] = 0;
}

// Launch by launch: when its first and its last task can have ended at the earliest.
std::int64_t PathBounds::longest_path() {
  std::int64_t longest = 0;
  for (std::size_t l = 0; l < launch_graph_.launches.size(); ++l) {
    first_end_[l] = last_end_[l] = 0;
    if (shortest_[l] == 0) continue;  // it has no tasks
    std::int64_t first_ready = 0, last_ready = 0;
    for (const auto [f, party] : launch_graph_.in_flows[l]) {
      const Flow& flow = *flows_[f];
      const FlowId& id = launch_graph_.flows[f];
      const Flow::Bound& bound = flow.bounds[party];
      std::int64_t first = kMaxTime, last = 0;
      for (int w = flow.writing.first; w < flow.writing.end; ++w) {
        const int writer = id.parties[w];
        if (writer >= static_cast<int>(l)) continue;  // what the next iteration reads
        first = std::min(first, first_end_[writer]);
        last = std::max(last, last_end_[writer]);
      }
      if (first == kMaxTime || bound.all_wait == kNotFed) continue;
      last_ready = std::max(last_ready, first + bound.all_wait);
      if (bound.wait == kNotFed) continue;
      first_ready = std::max(first_ready, first + bound.wait);
      if (bound.joined) first_ready = std::max(first_ready, last);
      if (id.kind == FlowKind::value && flow.reading == 1 && flow.all_read) {
        last_ready = std::max(last_ready, last + flow.out_delay);
      }
    }
    const LaunchKey& key = launch_graph_.launches[l];
    if (const auto followed = row_of(key.pass).follows) {
      const int forward = launch_graph_.launch_of(*followed, key.op);
      first_ready = std::max(first_ready, first_end_[forward]);
      last_ready = std::max(last_ready, last_end_[forward]);
    }
    first_end_[l] = first_ready + shortest_[l];
    last_end_[l] =
        std::max({first_end_[l], last_ready + shortest_[l], first_ready + longest_turn_[l]});
    longest = std::max(longest, last_end_[l]);
  }
  return longest;
}

const std::vector<std::int64_t>& PathBounds::tails() {
  for (std::size_t l = launch_graph_.launches.size(); l-- > 0;) {
    tails_[l] = 0;
    if (shortest_[l] == 0) continue;  // it has no tasks
    std::int64_t after = 0;
    for (const auto [f, slot] : launch_graph_.out_flows[l]) {
      const Flow& flow = *flows_[f];
      const FlowId& id = launch_graph_.flows[f];
      const bool of_weights = id.kind == FlowKind::weights;
      if (!flow.all_read || of_weights || !flow.writing.contains(slot)) continue;
      std::int64_t least = kMaxTime;
      for (int p = 0; p < static_cast<int>(id.parties.size()); ++p) {
        const int reader = id.parties[p];
        // Of a gradient, some writers follow others.
        const bool reads = id.kind == FlowKind::gradient || id.waits[p];
        if (reader == static_cast<int>(l) || !reads || flow.bounds[p].all_wait == kNotFed) continue;
        least = std::min(least, reader > static_cast<int>(l) ? tails_[reader] : 0);
      }
      if (least < kMaxTime) after = std::max(after, flow.out_delay + least);
    }
    const int backward = launch_graph_.follower_of[l];
    if (backward >= 0) after = std::max(after, tails_[backward]);
    tails_[l] = shortest_[l] + after;
  }
  return tails_;
}

}  // namespace flexlegion
