// The full simulation algorithm (FlexFlow, section 5.2): every task's times, from nothing.
//
// Every device, links included, serves its tasks in the order (ready_time, key). Times are integer
// ns.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/task_graph.h"

namespace flexlegion {

struct Timeline {
  std::vector<std::int64_t> ready_time, start_time, end_time;  // a task, ns
  std::int64_t iteration_time = 0;                             // the latest end
};

Timeline full_simulation(const TaskGraph& tasks);

}  // namespace flexlegion
