// The rules by which launches, gradient contributions and weight shards follow from a graph and a
// strategy. Plan and simulator both apply them: the plan to write everything down for the runtime,
// the simulator to keep up with one changed configuration at a time.
#pragma once

#include <utility>
#include <vector>

#include "plan/facts.h"
#include "plan/graph.h"

namespace flexlegion {

// Rectangles without repetition, sorted; and which of them each part has.
struct DistinctRects {
  std::vector<Rect> rects;
  std::vector<int> of_part;
};
DistinctRects distinct(const std::vector<Rect>& rects);

// The contributions to one tensor's gradient, in the order of issue. A task whose rectangle an
// earlier launch contributed from the same device adds to that piece; another task makes a piece of
// its own, in the first slot in which it overlaps no other. Equal rectangles have equal numbers.
class Contributions {
 public:
  struct Piece {
    int rect, device, launch, part;  // launch and part: the last task that wrote it
    int slot;
  };
  struct Entry {
    int piece;
    bool adds;
    int earlier_launch, earlier_part;  // whose value is added to
  };

  void clear();
  void next_requirement();  // before the entries of an operand of a launch
  // `where` is the rectangle, which is not empty, and `rect` its number.
  Entry add(int rect, const Rect& where, int device, int launch, int part);
  const std::vector<Piece>& pieces() const { return pieces_; }

  int slots() const { return static_cast<int>(written_.size()); }
  // Whether every slot of the tensor, of that volume, is written as a whole before it can be read.
  bool fully_written(std::int64_t volume) const;
  // For a reader of `rect`: the range of slots in which something overlaps it.
  Rect stacked(const Rect& rect) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<Rect> rects_;            // a piece
  std::vector<std::int64_t> written_;  // a slot: elements
  std::vector<char> taken_;
  // A launch has one privilege: where some of its tasks add, the others may read as well.
  bool adds_ = false, writes_ = false, mixed_ = false;
  std::vector<std::vector<int>> on_device_;
  std::vector<int> used_devices_;
};

// A shard of a weight, updated on, and by, one of the devices that use it; or of an output, whose
// partial values one of the devices combines that wrote them.
struct Shard {
  Rect rect;
  int device;
};

// What the update of a table's shard needs of operator `op` that reads the table: all tokens, and
// the gradient of its output in the shard's columns.
Rect looked_up_tokens(const Graph& graph, OpId op);
Rect looked_up_gradient(const Graph& graph, OpId op, const Rect& shard);

// How many elements of a shard an update touches: of a table, the rows that were read, if the
// optimizer keeps no states that change in all rows.
std::int64_t updated_elements(const Graph& graph, const GraphFacts& facts, TensorId tensor,
                              const Rect& shard, int optimizer_states);

// Cuts each part of `tensor` that tasks of `op`, on `devices`, touch into one shard a device that
// touches it, or into fewer, so that they have the graph's shard_bytes: along the outermost
// dimension that can be cut evenly, or if there is none, along the longest. Which devices get these
// few goes by the operator, so that all have some. (Of a table, each part has one user, and is one
// shard.)
std::vector<Shard> shards_of(const Graph& graph, OpId op, TensorId tensor,
                             const DistinctRects& parts, const std::vector<int>& devices);

// A task of an update or sum launch: of each weight or output it has at most one shard.
struct ShardTask {
  int device;
  std::vector<std::pair<int, Rect>> shards;  // (index of the weight or output, rectangle)
};
// The j-th shard of each tensor on a device goes to the j-th task of that device.
std::vector<ShardTask> shard_tasks(const std::vector<std::vector<Shard>>& tensors);

// The tasks that share out several operands of `op`, whose tasks run on `devices`: owned weights,
// or outputs. `parts_of(operand)` are the DistinctRects that the operator's tasks touch of it.
template <typename PartsOf>
std::vector<ShardTask> shard_tasks_of(const Graph& graph, OpId op, const std::vector<int>& operands,
                                      const std::vector<int>& devices, PartsOf parts_of) {
  std::vector<std::vector<Shard>> shards;
  for (int i : operands) {
    const TensorId tensor = graph.operators[op].operands[i].tensor;
    shards.push_back(shards_of(graph, op, tensor, parts_of(i), devices));
  }
  return shard_tasks(shards);
}

}  // namespace flexlegion
