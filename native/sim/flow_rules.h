// How blocks and flows follow from the configurations of the operators at their ends. Nothing here
// changes what a task graph holds; it asks for one block or one flow at a time.
//
// Every flow is built in the same way, place by place:
//
// 1. Each task that writes the place leaves a piece there: a rectangle in a slot. A task that adds
//    to the gradient of another one has to wait for it, and the piece is its own from then on.
// 2. Each task that reads the place needs the pieces that overlap its rectangle, in its slots, of
//    those who wrote them last. FlowBuilder makes edges and transfers of these needs.
//    Of a weight that is spread over nodes, the tasks that do so leave the pieces that the others
//    of their nodes need; and of a gradient that is summed inside nodes, a node's tasks need the
//    node's pieces.
// 3. Whoever touches the place, in whatever run, holds it in its memory.
//
// What is charged for reading (sums of partial values, and what updates use), and which launches
// cannot be fused, follows from the same pieces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/charges.h"
#include "sim/flow.h"
#include "sim/placements.h"

namespace flexlegion {

class FlowRules {
 public:
  // Of the strategy that `configs` hold when a block or flow is asked for, and for flows, of its
  // blocks; for turns, of the flows that are their tenants.
  FlowRules(const Problem& problem, const LaunchGraph& launch_graph, const PricedStrategy& configs,
            const std::vector<Block>& blocks, const std::vector<FlowPtr>& flows, Detail detail);
  ~FlowRules();
  FlowRules(const FlowRules&) = delete;

  // The tasks of a launch, and their times without what flows bring (Flow::fed_time).
  Block block(int launch);
  // Looked up, or built and kept.
  FlowPtr flow(int flow);
  // The same step by step. Flows of equal keys are equal, also those of other rules.
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const { return key.first; }
  };
  Key key_of(int flow) const;
  FlowPtr find(const Key& key) const;  // or nullptr
  FlowPtr built(int flow);

 private:
  // What the tasks of a launch touch by one use.
  struct View {
    const FlowUse* use = nullptr;
    const std::vector<int>* devices = nullptr;
    const Partition* tiles = nullptr;
    TermUse terms;           // of values
    std::int64_t bytes = 0;  // of an element
    // Of a weight whose gradient is summed inside nodes: the node of each task, by its number among
    // those that sum.
    std::vector<int> nodes;

    const Rect& rect(int k) const { return tiles->of_task(k); }
    int tasks() const { return static_cast<int>(devices->size()); }
    int node(int k) const { return nodes.empty() ? -1 : nodes[k]; }
  };
  struct Piece {
    const Partition* tiles;
    int distinct;  // of its rectangles
    int slot;
    TaskRef writer;  // the last one, and
    int written_by;  // its number in written_by_
    int node = -1;   // whose tasks alone need it, by its number among those that sum; -1: all
  };

  std::vector<std::int64_t> times(int launch, const std::vector<int>& devices);
  std::vector<std::int64_t> copied_bytes(const LaunchKey& key) const;
  std::int32_t contention(int launch, int device, int part) const;

  Flow build(const FlowId& id);
  void take_turns(const FlowId& id);
  void hand_over(int used, int written, bool next_round);
  bool has_register() const { return id_->registers.alike >= 0 || id_->registers.local >= 0; }
  void begin(const FlowId& id);
  void carry(const PlaceUses& its);
  Flow finish(const FlowId& id);

  bool takes_part(const FlowUse& use, const Place& place);
  static bool touches(const View& view);
  View view_of(const FlowUse& use);
  const Partition& elements_of(const FlowUse& use, int tasks);
  void write(const View& view);
  void contribute(const View& view);
  void read(const View& view);
  void spread(const View& view);
  void need(const View& view, bool found);
  bool needed_before(const View& view);
  void list_by_node(const View& view);
  Tiles::Range tasks_of_node(int rect, int node) const;
  void box(const View& view);
  void box_gradient(const View& view, int k);
  void box_contributions();
  void charge(const View& view);
  const Overlaps& overlaps(const Partition& written, const Partition& read);
  void set_apart(int party, int writer);

  void box(int device, const Rect& rect, bool written);
  void hold(const PlaceUses& its);
  std::uint64_t tenant_key(const Place& place, const Buffers& buffers);
  int memory_of(int device) const { return problem_.machine.memory_of[device]; }

  const Problem& problem_;
  const LaunchGraph& launch_graph_;
  const PricedStrategy& configs_;
  const std::vector<Block>& blocks_;
  const std::vector<FlowPtr>& flows_;
  Placements placements_;
  FlowBuilder builder_;

  void keep(const Key& key, const FlowPtr& flow);
  // Flows that were built, by group and configurations; see kCachedBytes.
  std::unordered_map<Key, FlowPtr, KeyHash> built_;
  std::int64_t built_bytes_ = 0;

  // Scratch, of the flow that is being built.
  const FlowId* id_ = nullptr;
  std::vector<int> apart_;  // a party, see Flow
  Parties writing_;
  struct Fed {  // a launch of FlowId::fed, a task of it
    std::vector<std::int64_t> times;
    std::vector<UpdateBytes> bytes;
  };
  std::vector<Fed> fed_;
  int stacks_ = 0;  // so many pieces have been written in all places before
  struct Found {    // of partitions that are not kept
    const Partition *written, *read;
    Overlaps overlaps;
  };
  std::vector<std::unique_ptr<Found>> overlaps_;
  std::vector<std::unique_ptr<Partition>> elements_of_fields_;
  std::vector<std::vector<int>> devices_of_others_;

  // Scratch, of the place that is being carried.
  std::vector<Piece> pieces_;
  // The uses that wrote them: whose they are, and how many pieces each wrote.
  struct WrittenBy {
    int party, pieces;
  };
  std::vector<WrittenBy> written_by_;
  Contributions contributions_;  // of a gradient: its pieces, by the same numbers
  // Whose tasks need what they read for the next iteration: equal ones need nothing more.
  std::vector<View> needed_;
  int elements_ = 0;                // of a field of the iteration, that were written
  std::vector<std::int64_t> read_;  // a task of the launch that reads: elements of pieces
  // Its tasks by (distinct rectangle, node, task), and the tasks alone, in the same order.
  std::vector<std::array<int, 3>> by_node_;
  std::vector<int> task_by_node_;
  std::vector<Boxes> boxes_;      // a device
  std::vector<Boxes> in_memory_;  // a memory
  std::vector<int> boxed_, memories_;
  // Of the flow that is being built (Flow).
  std::uint64_t tenant_ = 0;
  std::vector<std::pair<int, std::int64_t>> local_;
  bool uniform_ = false;
  int buffers_ = 1;
  std::vector<char> touched_;
  std::vector<std::pair<TaskRef, TaskRef>> around_;
};

}  // namespace flexlegion
