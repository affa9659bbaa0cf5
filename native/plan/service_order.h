// Which task a device takes first, of those of several micro-batches that are ready.
//
// Of the oldest micro-batch, where all devices are of one stage: one that ran ahead would let those
// wait that let others begin.
//
// Of p stages, "one forward, one backward" is wanted: when micro-batch r goes forward at stage s,
// micro-batch r - (p - 1 - s) is about to go backward there. So a forward task counts as half a
// micro-batch older than that one, and goes first. If the oldest went first, a backward task would
// always interrupt a forward one, and the stages behind would wait for what that computes. In a
// model of 16 stages where transfers take some percent of a round, devices were idle for 45 instead
// of 32 % of an iteration.
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

#include "plan/launches.h"

namespace flexlegion {

class ServiceOrder {
 public:
  using DevicesOf = std::function<const std::vector<int>&(OpId)>;

  ServiceOrder() = default;  // the oldest micro-batch first
  // Of a network whose operators run on these devices.
  ServiceOrder(const Graph& graph, const DevicesOf& devices);

  int stages() const { return stages_; }
  int runs() const { return runs_; }  // of layers a device; 1: there is no circle

  // Which of a micro-batch's visits to a device a launch is of; without a circle, twice by how many
  // micro-batches it counts as younger. A load is of the stage of who reads the input.
  int visit(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) const {
    return visit(decides(graph, facts, key), of_forward_pass(runs_of(graph, facts, key)));
  }
  int visit(OpId op, bool forward) const {
    if (at_.size() == 0 || op.none()) return 0;
    if (runs_ == 1) return forward ? 2 * at_[op] + 1 : 2 * stages_;
    return forward ? at_[op] : 2 * runs_ - 1 - at_[op];
  }
  // Of two tasks that are ready, the one of the lower turn goes first.
  int turn(int visit, int round) const {
    if (runs_ == 1) return 2 * round + visit;
    return (round / stages_ * runs_ + visit) * stages_ + round % stages_;
  }

 private:
  int stages_ = 1, runs_ = 1;
  // At which stage an operator is; in a circle, in which run of its devices. Of a batch in one
  // piece, nothing.
  IdVector<OpId, int> at_;
};

}  // namespace flexlegion
