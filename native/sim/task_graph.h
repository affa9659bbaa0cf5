// The task graph T of one training iteration (FlexFlow, section 5.1): blocks, the tasks of each
// launch of the plan, and the flows between them. It holds one strategy at a time and replaces what
// a changed configuration touches.
//
// Tasks have a total order that depends on launch, part and transfer alone: launch by launch, part
// by part, then flow by flow, transfer by transfer, hop by hop. It breaks ties of ready times.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sim/flow_rules.h"
#include "sim/launch_graph.h"
#include "sim/local_registers.h"
#include "sim/path_bounds.h"
#include "sim/problem.h"
#include "sim/program_memory.h"

namespace flexlegion {

class TaskGraph {
 public:
  explicit TaskGraph(const Problem& problem, Detail detail = Detail::transfers);
  TaskGraph(const TaskGraph&) = delete;

  // Takes a whole strategy, one configuration an operator, and builds everything from nothing. As
  // soon as there are more than `most` tasks, or more than `most_transfers` if each transfer is
  // looked at, it gives up, says false, and holds nothing.
  bool set(const PricedStrategy& strategy,
           std::int64_t most = std::numeric_limits<std::int64_t>::max(),
           std::int64_t most_transfers = std::numeric_limits<std::int64_t>::max());

  // What a replacement put aside.
  struct Change {
    PartialStrategy configs;
    std::vector<std::pair<int, Block>> blocks;
    std::vector<std::pair<int, FlowPtr>> flows;
  };
  // Puts `configs` in place of the configurations of some operators; `change` then holds the old
  // ones. If the tasks' times alone load a device beyond `limit`, it changes nothing and says
  // false.
  bool replace(const PartialStrategy& configs, std::int64_t limit, Change& change);
  void undo(Change& change);

  const Problem& problem() const { return problem_; }
  Detail detail() const { return detail_; }
  const LaunchGraph& launch_graph() const { return launch_graph_; }
  const std::vector<LaunchKey>& launches() const { return launch_graph_.launches; }
  const std::vector<FlowId>& flow_ids() const { return launch_graph_.flows; }
  const PricedStrategy& strategy() const { return configs_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<FlowPtr>& flows() const { return flows_; }
  int launch_of(Pass pass, OpId op) const { return launch_graph_.launch_of(pass, op); }
  // Which launch (not party) and part a flow's writer is.
  TaskRef writer_of(int flow, int writer) const;

  // Time that a device or link is busy, all told; the iteration takes at least the largest.
  const std::vector<std::int64_t>& load() const { return load_; }
  std::int64_t heaviest_load() const;
  // What the iteration takes at least by its dependencies.
  PathBounds& paths() { return paths_; }
  // Bytes held in each memory throughout. Tenants that share a register hold it once.
  const std::vector<std::int64_t>& memory() const { return memory_; }
  const LocalRegisters& local_registers() const { return local_; }
  // By how many bytes memories do not suffice, all told; those of an exported program, if one is to
  // fit.
  std::int64_t missing_memory() const;
  // By pass: the time that its tasks take, all told; and the bytes of transfers of what it writes.
  std::vector<std::int64_t> computation() const;
  std::vector<std::int64_t> moved_bytes() const;
  // Dependencies between tasks of two devices that share a memory.
  std::int64_t crossings() const;
  // body(reading launch, its part), for each such dependency of a flow.
  template <typename Body>
  void for_each_crossing(int flow, const Body& body) const {
    const Flow& its = *flows_[flow];
    const FlowId& id = flow_ids()[flow];
    if (its.edges.empty()) return;
    for (int slot = 0; slot < id.writers; ++slot) {
      const Block& writer = blocks_[id.parties[slot]];
      for (int part = 0; part < static_cast<int>(writer.device.size()); ++part) {
        const int first = its.first_writer[slot] + part;
        for (int e = its.first_edge[first]; e < its.first_edge[first + 1]; ++e) {
          const int reader = id.parties[its.edges[e].party], at = its.edges[e].part;
          if (blocks_[reader].device[at] != writer.device[part]) body(reader, at);
        }
      }
    }
  }
  std::int64_t tasks() const;      // of all rounds, at most
  std::int64_t all_tasks() const;  // those that there are if each transfer is looked at
  // How many rounds of an iteration have a launch, or a transfer: all, or what ends the iteration,
  // and what all rounds have added up, one.
  int rounds_of(int launch) const;
  int rounds_of(int flow, const Transfer& transfer) const;
  int rounds_of_transfers(int flow, int writer) const;  // of those that a launch writes
  // From which round on the tasks of launch `writer` are waited for by those of `reader` in the
  // same memory. A reader that ends the iteration waits for the last round alone: what that round
  // contributes is added last. The exception is a reader of something that each round leaves apart.
  int first_told(int flow, int writer, int reader) const;

 private:
  std::int64_t launch_tasks() const;  // of a round
  std::vector<FlowPtr> built_ahead(std::int64_t left, std::int64_t transfers_left);
  void collect(const PartialStrategy& configs);
  void mark_fed(int flow);
  bool within(std::int64_t limit);
  void add_fed_times(int launch);
  void account_block(int launch, int sign);
  void account_flow(int flow, int sign);
  bool turns_up(int flow, int sign);

  const Problem& problem_;
  const Detail detail_;
  const LaunchGraph launch_graph_;
  PricedStrategy configs_;
  std::vector<Block> blocks_;
  std::vector<FlowPtr> flows_;
  std::vector<std::int64_t> load_, memory_;
  // A register: the keys of its tenants, and how many have each.
  struct Tenants {
    std::uint64_t key;
    int count;
  };
  std::vector<std::vector<Tenants>> tenants_;
  LocalRegisters local_;
  const ProgramMemory program_;
  FlowRules rules_;
  PathBounds paths_;

  // What a replacement changes; scratch.
  std::vector<int> dirty_blocks_, dirty_flows_;
  std::vector<char> is_dirty_block_, is_dirty_flow_;
  std::vector<std::int64_t> bound_;
};

}  // namespace flexlegion
