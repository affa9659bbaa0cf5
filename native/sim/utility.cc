// The utility processor as a debt (utility.h).
//
// owed_[m] is the work that the runtime has yet to do in memory m. It grows with each task that
// starts and shrinks while the device that starts it was idle. A task that starts while all cores
// are taken pays the whole debt, by ending that much later. One that starts while a core is free
// pays nothing, and the debt stays to be done there.
//
// work_ adds up all such work of an iteration. An iteration cannot take less, however much is
// hidden, since one processor does it.
#include "sim/utility.h"

#include <algorithm>
#include <utility>

namespace flexlegion {

UtilityProcessors::UtilityProcessors(const Problem& problem)
    : machine_(problem.machine),
      costs_(problem.costs.runtime),
      users_(machine_.devices_by_memory()),
      owed_(users_.size()),
      work_(users_.size()),
      active_(std::any_of(machine_.kind_of.begin(), machine_.kind_of.end(),
                          [&](int kind) { return costs_[kind].any(); })) {}

// An iteration begins with what the runtime does once for it.
void UtilityProcessors::begin() {
  for (std::size_t m = 0; m < users_.size(); ++m) {
    owed_[m] = work_[m] = users_[m].empty() ? 0 : costs(users_[m].front()).iteration;
  }
}

bool UtilityProcessors::first_there(const std::vector<int>& devices, int part) const {
  const std::size_t memory = memory_of(devices[static_cast<std::size_t>(part)]);
  return std::none_of(devices.begin(), devices.begin() + part,
                      [&](int other) { return memory_of(other) == memory; });
}

// The debt after the task's own work; returns what the task pays of it.
std::int64_t UtilityProcessors::start(int device, std::int64_t start, bool launch, int crossings,
                                      const std::vector<std::int64_t>& free) {
  const RuntimeCosts& its = costs(device);
  const std::size_t memory = memory_of(device);
  std::int64_t& owed = owed_[memory];
  // While the device waited, its core was free for the runtime.
  owed = std::max<std::int64_t>(0, owed - (start - free[static_cast<std::size_t>(device)]));
  owed += its.task + (launch ? its.launch : 0) + crossings * its.crossing;
  const auto taken = 1 + std::count_if(users_[memory].begin(), users_[memory].end(), [&](int d) {
                       return d != device && free[static_cast<std::size_t>(d)] > start;
                     });
  return taken < its.cores ? 0 : std::exchange(owed, 0);
}

// A launch is issued once in each memory where it has tasks, and each task costs something of its
// own.
void UtilityProcessors::count_launch(const std::vector<int>& devices, bool issued) {
  for (int part = 0; part < static_cast<int>(devices.size()); ++part) {
    const int device = devices[static_cast<std::size_t>(part)];
    const bool launch = issued && first_there(devices, part);
    work_[memory_of(device)] += costs(device).task + (launch ? costs(device).launch : 0);
  }
}

std::int64_t UtilityProcessors::work() const {
  return *std::max_element(work_.begin(), work_.end());
}

}  // namespace flexlegion
