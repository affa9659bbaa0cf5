// Lower bounds of an iteration's time that follow from dependencies alone, whatever else devices
// and links do.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/flow.h"
#include "sim/launch_graph.h"

namespace flexlegion {

class PathBounds {
 public:
  PathBounds(const Problem& problem, const LaunchGraph& launch_graph,
             const std::vector<FlowPtr>& flows);

  // Takes note of a launch's tasks, which have changed.
  void note(int launch, const Block& block);

  // What the iteration takes at least.
  std::int64_t longest_path();
  // For each launch, what passes from a task's start to the end of the iteration; of the launches
  // as they were noted.
  const std::vector<std::int64_t>& tails();

 private:
  const LaunchGraph& launch_graph_;
  const std::vector<FlowPtr>& flows_;
  // A launch: its shortest task, and the time it takes the device that has most of it.
  std::vector<std::int64_t> shortest_, longest_turn_;
  // A launch: when its first, and its last task can end at the earliest.
  std::vector<std::int64_t> first_end_, last_end_, tails_;
  std::vector<std::int64_t> turn_;  // a device
};

}  // namespace flexlegion
