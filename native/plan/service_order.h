// Which task a device takes first, of those of several micro-batches that are ready.
//
// Of the oldest micro-batch, in general: a device that ran ahead with forward tasks would let those
// wait that let others begin. With p - s registers at stage s of p, "one forward, one backward"
// follows.
//
// A device may have several runs of layers, though, and the network go round the devices in a
// circle: of p stages, v times (Megatron's interleaved schedule; Narayanan et al. 2021, section
// 2.2). Then the oldest would come back, and take the device from younger ones that other stages
// wait for. So p micro-batches go as a group, which is forward in run 0, then in run 1, and so on
// to run v - 1, and then backward in run v - 1, and so on to run 0; within a run, the oldest goes
// first. These are 2v visits. After v of them, while its first ones go backward, the next group
// begins: what is on visit k counts as old as what is on visit k + v of the group before. So a
// device is idle for (p - 1) / (v m + p - 1) of an iteration of m micro-batches. How many
// registers that needs: flexlegion/known_strategies/pipeline.py.
//
// It is a preference, on which no result depends: any order is right.
#pragma once

#include <functional>
#include <vector>

#include "plan/graph.h"

namespace flexlegion {

class ServiceOrder {
 public:
  using DevicesOf = std::function<const std::vector<int>&(OpId)>;

  ServiceOrder() = default;  // the oldest micro-batch first
  // Of a network whose operators run on these devices.
  ServiceOrder(const Graph& graph, const DevicesOf& devices);

  int stages() const { return stages_; }  // of the circle; 1: there is none
  int runs() const { return runs_; }      // of layers a device; 1: there is no circle

  // Which of a micro-batch's visits to a device a launch is of.
  int visit(OpId op, bool forward) const {
    if (runs_ == 1 || op.none()) return 0;
    return forward ? run_[op] : 2 * runs_ - 1 - run_[op];
  }
  // Of two tasks that are ready, the one of the lower turn goes first.
  int turn(int visit, int round) const {
    return (round / stages_ * runs_ + visit) * stages_ + round % stages_;
  }

 private:
  int stages_ = 1, runs_ = 1;
  IdVector<OpId, int> run_;  // in which run of its devices it is
};

}  // namespace flexlegion
