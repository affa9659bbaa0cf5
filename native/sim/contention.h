// What tasks take more beside neighbours: devices of one memory share its bandwidth, often caches,
// and the power that a processor may draw. How much that is was measured for each task, alone and
// while all its neighbours did the same (Block::contention).
//
// In a simulation, a neighbour computes beside a task if it is busy when the task starts, or if it
// runs another task of the same launch, which starts at about that time. The task takes that share
// of its contention which such neighbours are of all.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/flow.h"
#include "sim/machine_model.h"

namespace flexlegion {

class Contention {
 public:
  explicit Contention(const MachineModel& machine)
      : machine_(machine), users_(machine.devices_by_memory()) {}

  // How much longer a task takes (ns) that starts then; `free`: the end of each device's last task.
  std::int64_t extra(const Block& block, int part, std::int64_t start,
                     const std::vector<std::int64_t>& free) const;

 private:
  const MachineModel& machine_;
  const std::vector<std::vector<int>> users_;  // a memory: its devices
};

}  // namespace flexlegion
