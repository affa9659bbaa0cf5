// Lower bounds by dependencies alone: dynamic programming over launches, not tasks (path_bounds.h).
//
// Two numbers a launch are enough: when its first task and when its last task can have ended at the
// earliest. Launches stand in the order of issue, in which every reader comes after its writers
// (what the next iteration reads is left out), so one pass forward gives both:
//
// 1. No task is ready before the first writer's end and the flow's `wait`; the last one not before
//    `all_wait`. If each task reads something of every writer (`joined`), it waits for the last
//    writer.
// 2. The first end is the first ready time and the shortest task.
// 3. The last end is the largest of three: the first end, the last ready time and the shortest
//    task, and the first ready time and all the work that the launch puts on one device.
//
// tails() is the same backward: what passes at least from the start of a launch's tasks to the end
// of the iteration. The simulation stops when start + tail exceeds the limit.
//
// Each costs O(launches + ends of flows), and tasks do not matter. A bound per task would be
// tighter, but would cost as much as the simulation that it is to save.
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

// The shortest task, and how long the launch occupies the device that has most of it.
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
      // One reading launch, and everything that was written is read: some task waits for the last
      // writer.
      if (id.kind == FlowKind::value && flow.reading == 1 && flow.all_read) {
        last_ready = std::max(last_ready, last + flow.out_delay);
      }
    }
    // A task that follows another one, as backward follows forward, waits for it: the k-th for the
    // k-th.
    if (const int forward = launch_graph_.followed_by[l]; forward >= 0) {
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

// From the last launch to the first. Of the readers of a flow, the one with the shortest tail
// counts: it is sure that one of them comes after, not which.
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
        // Who reads in the next iteration adds nothing to this one.
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
