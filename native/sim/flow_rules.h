// How blocks and flows follow from the configurations of the operators at their ends: who writes
// what, who reads it where, what then moves, and what that takes. Nothing here changes what a task
// graph holds; it asks for one block or one flow at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/flow.h"
#include "sim/geometry.h"
#include "sim/launch_graph.h"

namespace flexlegion {

class FlowRules {
 public:
  // Of the strategy that `configs` hold when a block or flow is asked for, and for flows, of its
  // blocks.
  FlowRules(const Problem& problem, const LaunchGraph& launch_graph, const PricedStrategy& configs,
            const std::vector<Block>& blocks);

  // The tasks of a launch, and their times without what flows bring (Flow::fed_time).
  Block block(int launch);
  FlowPtr flow(int flow);

 private:
  Block without_contention(int launch);
  std::int32_t contention(int launch, int device, int part) const;
  Flow value(const FlowId& id);
  Flow partial(const FlowId& id);
  Flow gradient(const FlowId& id);
  Flow weights(const FlowId& id);
  Flow iteration(const FlowId& id);
  Flow kept(const FlowId& id);
  Flow untrained(const FlowId& id);

  void begin(const FlowId& id);
  Flow finish(const FlowId& id);
  const std::vector<ShardTask>& updates_of(OpId op);
  const std::vector<ShardTask>& sums_of(OpId op);
  void find_written(TensorId tensor);
  void box_tiles(const std::vector<int>& devices);
  int values_read() const { return written_.summed ? 1 : written_.values; }
  // What the tasks of a launch read of a value.
  struct Read {
    const Partition* partition;
    int parts = 1;  // into which partial values are cut; task k has part k modulo that
  };
  Read read_of(const OperandRef& use);
  Slots slots_of(const Read& read, int k) const;
  bool is_given(const Read& read) const;
  Rect as_read(const Rect& rect, const Slots& slots) const;
  void need_tile(int tile, FlowBuilder::Need need, const Slots& slots, int memory, TaskRef reader);
  void need_shards(const Rect& rect, FlowBuilder::Need need, int memory, TaskRef reader);
  void box_summed(OpId op);
  void box_weight(const OperandRef& reader, bool state);
  void hold_value(TensorId tensor);
  void read_value(const Read& read, const std::vector<int>& devices, int party);
  void read_tokens(OpId op);
  std::vector<std::vector<std::int64_t>> combining_times(const FlowId& id);
  void add_contributions(TensorId tensor, const FlowId& id);
  std::int64_t gather_shard(TensorId tensor, const Rect& shard, int device, TaskRef task,
                            int first_stack);
  void read_piece(int piece, int part, std::int64_t elements, std::int64_t own);
  void end_reading(int party);
  void set_apart(int party, int writer);
  void return_weight(TensorId tensor, int weight, const std::vector<ShardTask>& tasks,
                     int first_writer, int stack);
  const Partition& writer_partition(TensorId tensor);
  std::vector<int> load_devices(TensorId tensor) const;
  int memory_of(int device) const { return problem_.machine.memory_of[device]; }

  void box(int memory, const Rect& rect, bool written);
  void box_stack(TensorId tensor, int memory, const Rect& rect);
  void hold_boxes(Content content, std::int64_t element_bytes, int fields = 1);
  std::int64_t value_bytes(TensorId tensor) const {
    return problem_.graph.tensors[tensor].value_bytes();
  }
  std::int64_t gradient_bytes(TensorId tensor) const {
    return problem_.graph.tensors[tensor].gradient_bytes();
  }

  const Problem& problem_;
  const LaunchGraph& launch_graph_;
  const PricedStrategy& configs_;
  const std::vector<Block>& blocks_;
  Geometry geometry_;
  FlowBuilder builder_;

  // Flows that were built, by group and configurations; see kCachedBytes.
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const { return key.first; }
  };
  Key key_of(const FlowId& id) const;
  std::unordered_map<Key, FlowPtr, KeyHash> built_;
  std::int64_t built_bytes_ = 0;

  // The tasks that share out an operator's weights or outputs, as it was configured last.
  struct Sharded {
    PricedConfig config;
    std::vector<ShardTask> tasks;
  };
  const std::vector<ShardTask>& sharded(IdVector<OpId, Sharded>& known, OpId op,
                                        const std::vector<int>& operands);
  const FlowPtr no_partial_;
  IdVector<OpId, Sharded> updates_, sums_;

  // Scratch, of the flow that is being built.
  std::vector<int> party_of_launch_;
  Contributions contributions_;
  struct Piece {
    const Partition* partition;
    int distinct;
    int contributor;  // who wrote it last
  };
  std::vector<Piece> pieces_;  // as contributions_ numbers them
  // An operand of a launch whose gradient its tasks contribute to.
  struct Contributor {
    int party, pieces;
  };
  std::vector<Contributor> contributors_;
  // What the tasks of a launch read of a gradient: whether task k of each reads just what task k of
  // one contributor wrote, and the last contributor that any reads of.
  struct Reading {
    bool alike = true;
    int last = -1;
  };
  Reading reading_;
  std::vector<int> apart_;  // a party, see Flow
  Parties writing_;
  // How a tensor's value was written: as tiles, of each so many partial values; and whether sum
  // tasks combined these, a shard each.
  struct Written {
    const Partition* tiles = nullptr;
    std::int64_t bytes = 0;  // of an element
    int values = 1;
    bool summed = false;
    bool is_sum = true;        // of these values
    std::vector<Rect> shards;  // a sum task; empty: it has none of this tensor
    std::optional<RectIndex> index;
  };
  Written written_;
  struct Return {
    int memory, rect, partition;
  };
  std::vector<Return> returns_;
  std::vector<std::vector<int>> returned_;  // a memory: rectangles
  std::vector<int> returned_memories_;
  struct Boxes {
    Rect read, written;
  };
  std::vector<Boxes> boxes_;  // a memory
  std::vector<int> boxed_;
};

}  // namespace flexlegion
