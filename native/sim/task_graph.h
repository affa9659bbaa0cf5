// The task graph T of one training iteration (FlexFlow, section 5.1), built from the plan: the very
// launches that the runtime makes, and the transfers that their rectangles imply.
//
// - Every task of the plan's training launches is a normal task.
// - A transfer exists for each (producer task, tensor field, memory): the union of what the
// consumers
//   in that memory need, once. Within a memory there is none, just an edge.
// - A transfer over several links is a chain of communication tasks, one a link, cut-through: a hop
// is
//   ready when the hop before it has started (the producer ended), plus the link's latency, and
//   does not end before the hop before it.
// - Updated shards of weights go to the memories that read them in the next iteration: transfers at
//   the end, with no consumer.
//
// Tasks are arrays, indexed by task; `key` orders tasks that are ready at the same time. It depends
// on operator, pass and part alone, not on how the graph came about.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/graph.h"
#include "plan/plan.h"
#include "sim/machine_model.h"

namespace flexlegion {

struct TaskEdge {
  int to = 0;
  // Normally `to` is ready when the task has ended, plus `latency`. A hop of a transfer follows the
  // hop before it: it is ready when that has started, plus `latency`, and ends no earlier.
  bool follows = false;
  std::int64_t latency = 0;
};

struct TaskGraph {
  int compute_devices = 0;  // devices 0.. are compute devices, the links come after them
  int all_devices = 0;
  std::vector<std::int64_t> exe_time;  // ns, at least 1
  std::vector<int> device;
  std::vector<std::uint64_t> key;
  // What the task is: the plan's launch and the part; for a communication task, its producer's.
  std::vector<int> launch, part;
  std::vector<std::int64_t> bytes;  // of a communication task; 0: a normal task
  std::vector<int> destination;     // memory, of a communication task
  std::vector<int> hop;             // of a communication task, from 0; -1: a normal task
  std::vector<std::vector<TaskEdge>> successors;

  int size() const { return static_cast<int>(exe_time.size()); }
};

// `exe_time` holds, for every launch of the plan and every task of it, the time in ns; launches
// that training does not execute have their entries too. Throws std::invalid_argument for a machine
// that does not fit: a device without memory, memories without a route.
TaskGraph build_task_graph(const Graph& graph, const Plan& plan, const MachineModel& machine,
                           const std::vector<std::int64_t>& exe_time);

// The time that `bytes` take on a link, in ns, rounded up.
std::int64_t transfer_time(std::int64_t bytes, std::int64_t bandwidth);

}  // namespace flexlegion
