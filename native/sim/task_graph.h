// The task graph T of one training iteration (FlexFlow, section 5.1): blocks, the tasks of each
// launch of the plan, and the flows between them. It holds one strategy at a time and replaces what
// a changed configuration touches.
//
// Tasks have a total order that depends on launch, part and transfer alone: launch by launch, part
// by part, then flow by flow, transfer by transfer, hop by hop. It breaks ties of ready times.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/flow.h"
#include "sim/geometry.h"
#include "sim/problem.h"

namespace flexlegion {

// The tasks of one launch.
struct Block {
  std::vector<int> device;             // a part
  std::vector<std::int64_t> exe_time;  // ns, at least 1
};

enum class FlowKind {
  value,     // of an input or activation: from load or forward tasks to forward tasks
  gradient,  // of an activation: from backward tasks of its readers to those of its producer
  weights,   // of an operator: gradients to update tasks (of a table: those of what was looked up),
             // updated shards to who reads them next
  kept,      // of a weight that no update changes: nothing moves, but who reads it holds it
};

struct FlowId {
  FlowKind kind;
  int index;                 // a tensor, for `weights` an operator
  std::vector<int> parties;  // launches at its ends: first those that write
  int writers = 0;           // how many of the parties write
  int fed = -1;              // the launch whose tasks' times depend on what the flow brings, or -1
  int group = 0;             // flows of one group are equal if the configurations at their ends are
};

struct OutFlow {
  int flow, slot;  // the launch is the flow's `slot`-th writer
};

// Stands for the shards of any weight, which do not overlap, in FlowBuilder::Need::family.
constexpr int kShards = 1 << 30;

using FlowPtr = std::shared_ptr<const Flow>;

struct InFlow {
  int flow, party;
};

class TaskGraph {
 public:
  explicit TaskGraph(const Problem& problem);
  TaskGraph(const TaskGraph&) = delete;

  // Takes a whole strategy, one configuration an operator, and builds everything from nothing.
  void set(const std::vector<Config>& strategy);

  // What a replacement put aside.
  struct Change {
    std::vector<std::pair<int, Config>> configs;
    std::vector<std::pair<int, Block>> blocks;
    std::vector<std::pair<int, FlowPtr>> flows;
  };
  // Puts `configs` in place of the configurations of some operators; `change` then holds the old
  // ones. If the tasks' times alone load a device beyond `limit`, it changes nothing and says
  // false.
  bool replace(const std::vector<std::pair<int, Config>>& configs, std::int64_t limit,
               Change& change);
  void undo(Change& change);

  const Problem& problem() const { return problem_; }
  const std::vector<Config>& strategy() const { return configs_; }
  const std::vector<LaunchId>& launches() const { return launches_; }
  const std::vector<FlowId>& flow_ids() const { return flow_ids_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<FlowPtr>& flows() const { return flows_; }
  const std::vector<OutFlow>& out_flows(int launch) const { return out_flows_[launch]; }
  // Which launch (not party) and part a flow's writer is.
  TaskRef writer_of(int flow, int writer) const;
  // Of a forward launch: the backward launch of the same operator, whose k-th task follows the
  // k-th one; or -1.
  int backward_of(int launch) const { return backward_of_[launch]; }
  int launch_of(Pass pass, int index) const;

  // Time that a device or link is busy, all told; the iteration takes at least the largest.
  const std::vector<std::int64_t>& load() const { return load_; }
  std::int64_t heaviest_load() const;
  // A lower bound of the iteration time from dependencies, whatever else the devices do; and for
  // each launch, of what passes from a task's start to the end of the iteration.
  std::int64_t longest_path();
  const std::vector<std::int64_t>& tails();
  // Bytes held in each memory, if nothing is given back within an iteration.
  const std::vector<std::int64_t>& memory() const { return memory_; }
  // The first memory whose capacity does not suffice, or -1.
  int overfull_memory() const;
  std::int64_t bytes_moved() const;
  std::int64_t tasks() const;

 private:
  void find_launches();
  void find_flows();
  void add_flow(FlowKind kind, int index, const std::vector<int>& writers,
                const std::vector<int>& readers, int fed, const std::vector<int>& ops);
  void group_flows();
  bool within(std::int64_t limit);
  void collect(const std::vector<std::pair<int, Config>>& configs);

  Block build_block(int launch);
  FlowPtr build_flow(int flow);
  Flow build_value(const FlowId& id);
  Flow build_gradient(const FlowId& id);
  Flow build_weights(const FlowId& id);
  Flow build_kept(const FlowId& id);
  void add_tokens(int op, const Family& written);
  void add_contributions(int tensor, const FlowId& id);
  std::int64_t gather_shard(const Rect& shard, int device, TaskRef task, int first_stack);
  void return_weight(int tensor, int weight, const std::vector<UpdateTask>& tasks, int first_writer,
                     int stack);
  void begin(const FlowId& id);
  std::vector<int> reading_parts(const FlowId& id) const;
  int memory_of(int device) const { return problem_.machine.memory_of[device]; }
  const Family& writer_family(int tensor);
  void add_sums(int launch);
  void box(int memory, const Rect& rect, bool written);
  void box_stack(int tensor, int memory, const Rect& rect);
  void hold_boxes(Content content, int fields = 1);
  void account(const Block& block, int sign);
  void account(const Flow& flow, int sign);
  void note_times(int launch);

  const Problem& problem_;
  Geometry geometry_;
  FlowBuilder builder_;
  std::vector<LaunchId> launches_;
  std::vector<int> launch_numbers_[4];  // by pass and index: launch, or -1
  std::vector<int> backward_of_;
  std::vector<FlowId> flow_ids_;
  std::vector<LoadSource> load_sources_;                   // a tensor
  std::vector<std::pair<int, int>> producers_;             // a tensor: (operator, operand), or -1
  std::vector<std::vector<std::pair<int, int>>> readers_;  // a tensor: (operator, operand)
  std::vector<std::vector<int>> lookups_of_;     // a tensor: the operators that look its tokens up
  std::vector<std::vector<OutFlow>> out_flows_;  // a launch
  std::vector<std::vector<InFlow>> in_flows_;    // a launch
  std::vector<std::vector<int>> ops_of_flow_;
  std::vector<std::vector<int>> gradient_flows_;  // a backward launch: flows of its outputs
  // What depends on an operator's configuration.
  std::vector<std::vector<int>> blocks_of_op_, flows_of_op_;

  std::vector<Config> configs_;
  std::vector<Block> blocks_;
  std::vector<FlowPtr> flows_;
  std::vector<std::int64_t> load_, memory_;
  // Flows that were built, by group and configurations; see kCachedBytes.
  struct KeyHash {
    std::size_t operator()(const std::pair<std::uint64_t, std::uint64_t>& key) const {
      return key.first;
    }
  };
  std::unordered_map<std::pair<std::uint64_t, std::uint64_t>, FlowPtr, KeyHash> built_;
  std::int64_t built_bytes_ = 0;
  std::vector<int> group_size_;

  // Scratch.
  std::vector<int> dirty_blocks_, dirty_flows_;
  std::vector<char> is_dirty_block_, is_dirty_flow_;
  std::vector<std::int64_t> bound_;
  Contributions contributions_;
  struct Piece {
    const Family* family;
    int distinct;
  };
  std::vector<Piece> pieces_;  // as contributions_ numbers them
  std::vector<int> party_of_launch_;
  // A launch: when its first, and its last task can end at the earliest.
  std::vector<std::int64_t> first_end_, last_end_, tails_;
  // A launch: its shortest task, and the time it takes the device that has most of it.
  std::vector<std::int64_t> shortest_, longest_turn_;
  std::vector<std::int64_t> turn_;  // a device
  struct Return {
    int memory, rect, family;
  };
  std::vector<Return> returns_;
  std::vector<std::vector<int>> returned_;  // a memory: rectangles
  std::vector<int> returned_memories_;
  struct Boxes {
    Rect read, written;
  };
  std::vector<Boxes> boxes_;
  std::vector<int> boxed_;
};

}  // namespace flexlegion
