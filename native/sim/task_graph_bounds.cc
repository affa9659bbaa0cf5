// Lower bounds of an iteration's time that follow from dependencies alone.
#include <algorithm>

#include "sim/task_graph.h"

namespace flexlegion {

void TaskGraph::note_times(int launch) {
  const Block& block = blocks_[launch];
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
std::int64_t TaskGraph::longest_path() {
  std::int64_t longest = 0;
  for (std::size_t l = 0; l < launches_.size(); ++l) {
    std::int64_t first_ready = 0, last_ready = 0;
    for (const auto [f, party] : in_flows_[l]) {
      const Flow& flow = *flows_[f];
      const FlowId& id = flow_ids_[f];
      const Flow::Bound& bound = flow.bounds[party];
      std::int64_t first = kMaxTime, last = 0;
      for (int w = 0; w < id.writers; ++w) {
        const int writer = id.parties[w];
        if (writer == static_cast<int>(l)) continue;
        first = std::min(first, first_end_[writer]);
        last = std::max(last, last_end_[writer]);
      }
      if (first == kMaxTime || bound.all_wait == kNotFed) continue;
      last_ready = std::max(last_ready, first + bound.all_wait);
      if (bound.wait == kNotFed) continue;
      first_ready = std::max(first_ready, first + bound.wait);
      if (bound.joined) first_ready = std::max(first_ready, last);
      if (id.kind == FlowKind::value && id.parties.size() == 2 && flow.all_read) {
        last_ready = std::max(last_ready, last + flow.out_delay);
      }
    }
    if (launches_[l].pass == Pass::backward) {
      const int forward = launch_of(Pass::forward, launches_[l].index);
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

const std::vector<std::int64_t>& TaskGraph::tails() {
  for (std::size_t l = launches_.size(); l-- > 0;) {
    std::int64_t after = 0;
    for (const auto [f, slot] : out_flows_[l]) {
      const Flow& flow = *flows_[f];
      const FlowId& id = flow_ids_[f];
      if (!flow.all_read || id.kind == FlowKind::weights) continue;
      std::int64_t least = kMaxTime;
      for (int p = 0; p < static_cast<int>(id.parties.size()); ++p) {
        const int reader = id.parties[p];
        if (reader != static_cast<int>(l) &&
            (p >= id.writers || reader == id.fed || id.writers > 1)) {
          least = std::min(least, reader > static_cast<int>(l) ? tails_[reader] : 0);
        }
      }
      if (least < kMaxTime) after = std::max(after, flow.out_delay + least);
    }
    const int backward = backward_of_[l];
    if (backward >= 0) after = std::max(after, tails_[backward]);
    tails_[l] = shortest_[l] + after;
  }
  return tails_;
}

}  // namespace flexlegion
