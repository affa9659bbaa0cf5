// Which launches of a task graph run on with the one before them: the runtime fuses them, by the
// same rule (plan/fusion.h), so that they take no launch of their own. Who waits for whom, and
// whose tasks get by with what others were given, stands in the flows.
#pragma once

#include <vector>

#include "plan/fusion.h"
#include "sim/task_graph.h"

namespace flexlegion {

class FusedLaunches {
 public:
  explicit FusedLaunches(const TaskGraph& graph);

  // Sets `runs_on`, by launch.
  void find(std::vector<char>& runs_on);

 private:
  struct Wait {
    int part, before, other;  // part, launch waited for, its part
    bool one_memory;
  };

  void find_order();
  int last_turn(int launch);
  void collect(int flow);
  void add(int reader, int part, int writer, int other, bool one_memory);

  const TaskGraph& graph_;
  FusionRule rule_;
  Turns turns_;
  std::vector<int> order_, position_;     // of issue, but for loads: launches; a launch's place
  std::vector<std::vector<Wait>> waits_;  // a launch
  std::vector<int> apart_;  // a launch: the last place that it cannot share a run with
};

}  // namespace flexlegion
