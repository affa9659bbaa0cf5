// How tasks share out the weights that an operator updates, or the outputs whose partial values are
// to be combined: each part that the operator's tasks touch is cut into shards, and every shard
// goes to a device that touches the part.
//
// A weight that R devices use is cut into R shards. Each device reads its shard of all R partial
// gradients, and updates it; then every device reads the other R - 1 shards. If these devices are r
// in each of N nodes, (R - r) times the weight's bytes pass the network in each direction. Summed
// inside nodes first, (N - 1) times suffice:
//
//   1. node_sum: the r devices of a node share out the weight among themselves. Each sums, of its
//      shard, the partial gradients of its own node.
//   2. update: the device in place j of node n has the n-th part of shard j. It reads that part of
//      the N sums that the devices in place j of all nodes have found.
//   3. spread: the device in place j of each node reads all of shard j, from the devices in its
//      place elsewhere. From there its neighbours read it.
#pragma once

#include <utility>
#include <vector>

#include "plan/passes.h"

namespace flexlegion {

// Rectangles without repetition, sorted; and which of them each task has.
struct DistinctRects {
  std::vector<Rect> rects;
  std::vector<int> of_part;
};
DistinctRects distinct(const std::vector<Rect>& rects);

// A shard of a weight, updated on, and by, one of the devices that use it; or of an output, whose
// partial values one of the devices combines that wrote them.
struct Shard {
  Rect rect;
  int device;
};

// The nodes that each sum their own part of a weight's gradient; none, where all devices read the
// partial values of all.
class SummingNodes {
 public:
  SummingNodes() = default;
  explicit SummingNodes(std::vector<int> nodes) : nodes_(std::move(nodes)) {}

  bool any() const { return !nodes_.empty(); }
  int count() const { return static_cast<int>(nodes_.size()); }
  // The number among them of the node that sums what a device contributes: its own, if the weight's
  // owner runs there.
  int of(const Graph& graph, int device) const;

 private:
  std::vector<int> nodes_;  // sorted
};

// What is to be shared out, and by whom.
struct Sharing {
  OpId op;
  Shares shares = Shares::weights;
  bool hierarchical = false;                  // the operator's configuration says so, and
  const std::vector<int>* devices = nullptr;  // has these
};

// Which nodes sum the gradient of a weight, of which the tasks of `op` touch `parts`. It has to be
// wanted, and to save something: every part is used in the same nodes, in several of them, and by
// more devices than there are nodes.
SummingNodes summing_nodes(const Graph& graph, TensorId tensor, const DistinctRects& parts,
                           const Sharing& sharing);

// Cuts each part of `tensor` into one shard a device that touches it, or into fewer, so that they
// have the graph's shard_bytes: along the outermost dimension that can be cut evenly, or if there
// is none, along the longest. Which devices get these few goes by the operator, so that all have
// some. (Of a table, each part has one user, and is one shard.) Of Shares::nodes, the shards of
// every node; none, if the weight's gradient is not summed inside nodes.
std::vector<Shard> shards_of(const Graph& graph, TensorId tensor, const DistinctRects& parts,
                             const Sharing& sharing);

// A task that has shards: of each weight or output at most one.
struct ShardTask {
  int device;
  std::vector<std::pair<int, Rect>> shards;  // (index of the weight or output, rectangle)
};
// The j-th shard of each tensor on a device goes to the j-th task of that device.
std::vector<ShardTask> shard_tasks(const std::vector<std::vector<Shard>>& tensors);

// The tasks that share out several operands of an operator: owned weights, or outputs.
// `parts_of(operand)` are the DistinctRects that the operator's tasks touch of it.
template <typename PartsOf>
std::vector<ShardTask> shard_tasks_of(const Graph& graph, const std::vector<int>& operands,
                                      const Sharing& sharing, PartsOf parts_of) {
  std::vector<std::vector<Shard>> shards;
  for (int i : operands) {
    const TensorId tensor = graph.operators[sharing.op].operands[i].tensor;
    shards.push_back(shards_of(graph, tensor, parts_of(i), sharing));
  }
  return shard_tasks(shards);
}

}  // namespace flexlegion
