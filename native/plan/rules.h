// The rules by which gradient contributions, and what updates of tables need, follow from a graph
// and a strategy; those of shards are in shards.h. Plan and simulator both apply them: the plan to
// write everything down for the runtime, the simulator to keep up with one changed configuration at
// a time.
#pragma once

#include <vector>

#include "plan/facts.h"
#include "plan/graph.h"

namespace flexlegion {

// The contributions to one tensor's gradient, in the order of issue. A task whose rectangle an
// earlier launch contributed from the same device adds to that piece; another task makes a piece of
// its own, in the first slot in which it overlaps no other. Equal rectangles have equal numbers.
//
// Of a weight's gradient that is summed inside nodes first (shards.h), each slot is of one of the
// nodes. Slots are numbered node by node, so that those of a node follow each other; that can be
// told when all contributions are known.
class Contributions {
 public:
  struct Piece {
    int rect, device, launch, part;  // launch and part: the last task that wrote it
    int slot;                        // in the order in which they were found
  };
  struct Entry {
    int piece;
    bool adds;
    int earlier_launch, earlier_part;  // whose value is added to
  };

  void clear();
  void next_requirement();  // before the entries of an operand of a launch
  // `where` is the rectangle, which is not empty, and `rect` its number. `node`: which of those
  // that sum their own part has it. `partition`: a number of all rectangles that do not overlap
  // it, or -1.
  Entry add(int rect, const Rect& where, int device, int launch, int part, int node = 0,
            int partition = -1);
  const std::vector<Piece>& pieces() const { return pieces_; }

  int slots() const { return static_cast<int>(used_slots_); }
  // Whether every slot of the tensor, of that volume, is written as a whole before it can be read.
  bool fully_written(std::int64_t volume) const;
  // For a reader of `rect`: the range of slots in which something overlaps it.
  Rect stacked(const Rect& rect) const;
  // Of slots in the order in which they were found, the numbers.
  std::vector<int> numbers() const;
  Slots of_node(int node) const;

 private:
  // A rectangle that tasks contribute, however many of them.
  struct Distinct {
    Rect rect;
    int first, last;  // the slots that it is in
    struct OfNode {
      std::size_t full = 0;  // so many of its slots, from the first, have no room
      int last = -1;         // the last slot in which it has been put
    };
    std::vector<OfNode> nodes;
  };
  // What lies in a slot.
  struct Slot {
    std::int64_t written = 0;  // elements
    int node = 0;
    int partition = -1;  // of all rectangles in it, or -1
    std::vector<std::size_t> rects;
  };
  int slot_for(int rect, const Rect& where, int node, int partition);
  std::size_t distinct_of(int rect, const Rect& where);

  std::vector<Piece> pieces_;
  std::vector<Slot> slots_;
  std::size_t used_slots_ = 0;              // the others are scratch
  std::vector<std::vector<int>> slots_of_;  // a node
  std::vector<int> numbers_;                // of distinct rectangles
  std::vector<Distinct> distinct_;
  // A launch has one privilege: where some of its tasks add, the others may read as well.
  bool adds_ = false, writes_ = false, mixed_ = false;
  std::vector<std::vector<int>> on_device_;
  std::vector<int> used_devices_;
  // Answers to what readers ask one after the other, while nothing is added.
  mutable std::int64_t asked_volume_ = -1;
  mutable bool fully_written_ = false;
  mutable std::vector<int> before_;  // a node: the number of its first slot
};

// What the update of a table's shard needs of operator `op` that reads the table: all tokens, and
// the gradient of its output in the shard's columns.
Rect looked_up_tokens(const Graph& graph, OpId op);
Rect looked_up_gradient(const Graph& graph, OpId op, const Rect& shard);

// How many elements of a shard an update changes: all, or, if the optimizer is lazy, of a table the
// rows that an iteration looks up, as if each token named another row, and they were evenly spread
// over the table.
std::int64_t updated_elements(const Graph& graph, const GraphFacts& facts, TensorId tensor,
                              const Rect& shard);

}  // namespace flexlegion
