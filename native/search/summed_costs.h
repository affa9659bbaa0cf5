// What OptCNN sums up (Jia et al. 2018: Exploring Hidden Dimensions in Parallelizing CNNs, section
// 5): each operator's computation and weight synchronisation, and each tensor's transfer between
// two operators, as if nothing ran in parallel but the tasks and transfers of one step. Operators
// are split over the first devices of the machine.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/geometry.h"
#include "sim/problem.h"

namespace flexlegion {

// Of an operator split in one way, in ns: the slowest forward and the slowest backward task; and
// the weights' part: gradients gathered, the slowest update, weights returned. A weight that
// several operators read is part of the first one's, as if the others were split alike.
struct OperatorCost {
  std::int64_t computation = 0, synchronisation = 0;
};
OperatorCost operator_cost(const Problem& problem, Geometry& geometry, OpId op, int split);

// Bytes between devices, and how long the links take for them.
class Traffic {
 public:
  explicit Traffic(const MachineModel& machine)
      : machine_(machine), load_(machine.links.size(), 0) {}

  void send(int from, int to, std::int64_t bytes);
  // The busiest link's time plus the longest way's latency, in ns; and begins anew.
  std::int64_t time();

 private:
  const MachineModel& machine_;
  std::vector<std::int64_t> load_;  // a link: bytes
  std::vector<int> used_;
  std::int64_t latency_ = 0;
};

// The time that one operand of `reader` takes from the operator that writes it, for each way to
// split either: [writer's split * readers + reader's split], in ns. Its value goes forward, where
// the reader combines partial values; its gradient comes back and is summed up.
std::vector<std::int64_t> transfer_costs(const Problem& problem, OpId writer,
                                         const std::vector<std::vector<int>>& writer_degrees,
                                         OpId reader, int operand,
                                         const std::vector<std::vector<int>>& reader_degrees);

}  // namespace flexlegion
