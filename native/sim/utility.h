// The runtime as a part of the machine that is simulated. Beside the processors that compute, each
// memory has a utility processor: the runtime's threads that issue launches, replay what waits for
// what, and clean up. It does so ahead of the tasks, some iterations early, so a task waits for its
// own issue only where that takes longer than the iteration. But where the cores are as few as the
// processors, its threads have to take a core from one of them.
//
// What is owed: work of the utility processor comes up with the iteration, with each launch and
// each task, and with each dependency of a task on one of another device, whose end is an event
// that somebody has to hear of. While a core of that memory has nothing to do, it is done there,
// for nothing. A task that starts while all cores are taken pays what is owed by then: it ends that
// much later. A device takes one core, also one of several: its threads wait for each other at the
// end of every task, and between tasks, and the runtime's threads run then. (Measured: of what a
// processor of two threads would have paid on two cores, a sixth or less showed.)
#pragma once

#include <cstdint>
#include <vector>

#include "sim/problem.h"

namespace flexlegion {

class UtilityProcessors {
 public:
  explicit UtilityProcessors(const Problem& problem);

  // Whether any takes any time; if not, nothing below needs to be called.
  bool active() const { return active_; }

  // The beginning of an iteration.
  void begin();
  // A task starts on a device at `start`, since when its device was free is `free[device]`; with
  // it come so many crossings, and a launch, if it is the first task of one in its memory. What the
  // task pays, in ns.
  std::int64_t start(int device, std::int64_t start, bool launch, int crossings,
                     const std::vector<std::int64_t>& free);
  // What is owed in a device's memory, for the delta algorithm to go on from.
  std::int64_t owed(int device) const { return owed_[memory_of(device)]; }
  void set_owed(int device, std::int64_t owed) { owed_[memory_of(device)] = owed; }

  // All the work of an iteration: no iteration takes less time.
  void count_launch(const std::vector<int>& devices, bool issued);
  void count_crossing(int device) { work_[memory_of(device)] += costs(device).crossing; }
  std::int64_t work() const;

  // What passes from when a task could begin to its beginning, with each launch.
  std::int64_t dispatch(int device) const { return costs(device).dispatch; }
  // How much more, where it was waiting for another device.
  std::int64_t wake(int from, int to) const { return from == to ? 0 : costs(to).wake; }

  // Whether a task is the first of its launch in its memory.
  bool first_there(const std::vector<int>& devices, int part) const;

 private:
  std::size_t memory_of(int device) const {
    return static_cast<std::size_t>(machine_.memory_of[static_cast<std::size_t>(device)]);
  }
  const RuntimeCosts& costs(int device) const {
    return costs_[static_cast<std::size_t>(machine_.kind_of[static_cast<std::size_t>(device)])];
  }

  const MachineModel& machine_;
  const std::vector<RuntimeCosts>& costs_;     // a device kind
  const std::vector<std::vector<int>> users_;  // a memory: its devices
  std::vector<std::int64_t> owed_, work_;      // a memory
  bool active_ = false;
};

}  // namespace flexlegion
