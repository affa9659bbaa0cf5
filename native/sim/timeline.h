// The timeline of a simulated iteration: when each task of a task graph runs, and what it waited
// for.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/task_graph.h"

namespace flexlegion {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// A task by its launch, or ~flow, and its place there, which stays when others change; in later
// rounds, counted on by the tasks of a round.
struct Cause {
  std::int32_t owner = 0, place = -1;  // place -1: nobody
};

// Times by task: launches in order, then the hops of flows in order.
struct Timeline {
  std::vector<std::int64_t> ready_time, start_time, end_time;  // ns
  std::vector<Cause> cause;                                    // whose end decided when it started
  std::vector<int> first_task, first_hop;                      // by launch, by flow; and one more
  // Of tasks of launches, where the runtime takes time (sim/utility.h): how much of one's time,
  // and what the utility processor then had to do.
  std::vector<std::int64_t> runtime_time, owed;
  std::vector<char> runs_on;  // by launch: it takes no launch time
  int tasks = 0;
  // Of an iteration of several micro-batches: the tasks of the first, then those of the second, and
  // so on. What ends the iteration is the last one's; there are none such, and no times, in others.
  int rounds = 1;
  // The latest end, or all the work of a utility processor, if that is more; kNever where the
  // simulation stopped early.
  std::int64_t iteration_time = 0;

  // Numbers the tasks of a round, and makes room for the times of all rounds. Throws
  // std::invalid_argument if there are too many.
  void number(const TaskGraph& graph);
  Cause place_of(int task) const;
  int number_of(Cause cause) const;  // -1: nobody
};

}  // namespace flexlegion
