// Measuring: one leaf task on one device, again and again. It is the very task that a program would
// launch, over regions that hold what it touches and nothing else, mapped in the same way; times
// are taken inside the task. What it reads are made-up, sensible numbers. Meanwhile the devices
// that share its memory run the same task, each over data of its own, as they would in training:
// they share memory bandwidth, and a core or two with the runtime. Then it runs alone.
//
// Every rank makes the same calls, and every rank gets the same times.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/handles.h"
#include "runtime/bodies.h"
#include "runtime/executor.h"
#include "runtime/hyperparameters.h"

namespace flexlegion {

// How often to run: first some times for what kernels prepare once, then as often as fits into the
// budget, within bounds; of runs that are long, only a few. Before each run, other memory passes
// through the processor's caches, as in an iteration.
struct Repeats {
  int warmups = 2;
  int least = 5, most = 50;
  std::int64_t budget_ns = 0;
  std::int64_t sweep_bytes = 0;
};

using Times = std::vector<std::int64_t>;  // ns, one a run
struct TaskTimes {
  Times together;  // with those that share the memory
  Times alone;     // without; empty where nobody does
};

// Task `part` of a launch of the plan, on the device that the plan says. A load is what it costs in
// an iteration: host array to staging tensor, and from there to the input. Values of int32 inputs
// are below `bound`.
TaskTimes measure_task(const fl_plan& plan, const std::string& optimizer,
                       const Hyperparameters& hyperparameters, LaunchId launch, int part,
                       std::int32_t bound, Precision precision, const Repeats& repeats);

// The sum of `slots` partial gradients of `elements` float32 each.
TaskTimes measure_sum(int device, std::int64_t slots, std::int64_t elements,
                      const Repeats& repeats);

// Round trips of `bytes` between two devices' memories, as Legion copies for two tasks that write
// the same region in turns; the same on all `ways` at once, of which the first is timed. On one
// memory: what such a pair of tasks takes without copies.
Times measure_round_trips(const std::vector<std::pair<int, int>>& ways, std::int64_t bytes,
                          int trips);

// What now_ns() says here, then there, then here again, as a message goes round: three a trip.
Times measure_clocks(int here, int there, int trips);

}  // namespace flexlegion
