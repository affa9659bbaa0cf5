// A flow: everything that passes from the tasks that write one tensor field to those that read it.
//
// The task graph of an iteration is cut into blocks (the tasks of one launch) and flows (the
// dependencies and transfers between launches). A flow depends on the configurations of the few
// operators at its ends alone, so a proposal replaces few of them.
//
// - A transfer exists for each (writing task, reading memory): the union of what the readers there
//   need, once. Within a memory there is none, just an edge. All weights of one operator travel
//   together.
// - A transfer over several links is a chain of communication tasks (hops), one a link,
//   cut-through: a hop is ready when the hop before it has started (the writer ended), plus the
//   link's latency, and does not end before the hop before it.
//
// A search on a large machine may look at less (Detail::bundles): see sim/sketch.h.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/geometry.h"
#include "sim/problem.h"

namespace flexlegion {

// The tasks of one launch.
struct Block {
  std::vector<int> device;             // a part
  std::vector<std::int64_t> exe_time;  // ns, while no neighbour computes
  // How much longer beside neighbours that all compute, in units of 1 / kContentionUnit of that
  // time; empty: no longer. See sim/contention.h.
  std::vector<std::int32_t> contention;
};

// A task at an end of a flow: which of the flow's parties (launches), and which part. So flows that
// differ in their launches alone are the same: those between the unrolled steps of a layer, say.
struct TaskRef {
  int party = -1;
  int part = 0;

  bool operator==(const TaskRef& o) const { return party == o.party && part == o.part; }
};

enum class Detail { transfers, bundles };

struct Transfer {
  int writer = 0;        // index among the flow's writers; of a bundle, the first of them
  int from = 0, to = 0;  // memories; of a bundle, those of one of the transfers in it
  std::int64_t bytes = 0;
  int first_hop = 0;         // its hops end where the next transfer's begin
  int first_consumer = 0;    // likewise
  int writers = 1;           // of a bundle, how many there are
  bool bundled = false;      // its hops are side by side, not one after the other
  std::int64_t latency = 0;  // ns, of a bundle: passes after its last hop
};

struct Hop {
  int transfer = 0;
  int link = 0;
  std::int64_t time = 0;  // ns
};

constexpr std::int64_t kNotFed = -1;

// What memory is for.
enum class Content {
  batch,            // the user's data, and the next batch of them
  activation,       // what operators compute
  gradient,         // of an activation, partial values included
  weight,           // trained or not, and operators' states
  weight_gradient,  // partial values included
  optimizer_state,
};
constexpr int kContents = 6;

struct Held {
  int memory;
  Content content;
  std::int64_t bytes;
};

// A range of a flow's writing parties.
struct Parties {
  int first = 0, end = 0;

  bool contains(int party) const { return first <= party && party < end; }
};

// What a sketch has to know of a flow (sim/sketch.h): its edges and transfers by the launches at
// their ends, which are the flow's parties.
struct FlowSketch {
  // Tasks of a writing party whom tasks of another party, in the same memory, wait for.
  struct Edges {
    int writer, reader;      // parties
    bool alike;              // the k-th task waits for the k-th one, of all tasks
    int first = 0, end = 0;  // otherwise in `pairs`
  };
  // A bundle, or a transfer by itself.
  struct Bundle {
    int writer;                            // a party
    int first_part = 0, end_part = 0;      // of it, in `parts`; none: all
    int first_hop = 0, end_hop = 0;        // in Flow::hops
    int first_reader = 0, end_reader = 0;  // in `readers`
    std::int64_t latency = 0;              // passes after its last hop, in ns
  };
  struct Reader {
    int party;
    int first_part = 0, end_part = 0;  // of it, in `parts`; none: all
  };
  std::vector<int> first_edges, first_bundle;  // by writing party, and one more
  std::vector<Edges> edges;
  std::vector<Bundle> bundles;
  std::vector<Reader> readers;
  std::vector<std::pair<int, int>> pairs;  // (writer's part, reader's part)
  std::vector<int> parts;
};

// Writers are numbered launch by launch (in the order of issue), part by part.
struct Flow {
  Parties writing;                  // who wrote what is read; others' tasks have no part in it
  std::vector<int> first_writer;    // by writing launch
  std::vector<int> first_edge;      // by writer, and one more
  std::vector<int> first_transfer;  // by writer, and one more
  std::vector<TaskRef> edges;       // successors in the same memory
  // Bundles stand behind all others, and one more ends the lists.
  std::vector<Transfer> transfers;
  std::vector<int> bundle_of;  // by writer: the number of its bundle, or -1; empty: there is none
  std::vector<Hop> hops;
  std::vector<TaskRef> consumers;
  // Of a register that rounds take in turn: who is the first to write it in a round waits for those
  // who are the last to use it in an earlier one. Both by their launches among the parties.
  std::vector<std::pair<TaskRef, TaskRef>> around;  // (used last, writes first)
  // A launch that is fed (FlowId::fed), a task of it: how much longer it takes for what the flow
  // brings, in ns. Tasks combine partial values before they start on them; an update is nothing
  // else. Empty: none takes longer.
  std::vector<std::vector<std::int64_t>> fed_times;
  std::vector<std::pair<int, std::int64_t>> link_load;  // (link, ns)
  std::vector<Held> memory;                             // a (memory, content) once
  // Of a tensor that has a register (plan/registers.h): with tenants of the same key it shares this
  // memory. 0: it does not share.
  std::uint64_t tenant = 0;
  // If that is one for tensors of any shape: what it takes there in the parts of devices, in bytes.
  // Then `memory` is what it would hold alone.
  std::vector<std::pair<int, std::int64_t>> local;
  int buffers = 1;  // that rounds take in turn of its place
  // If it does, and its tasks do not all touch the same: a use of its place, whether they touch
  // anything. Otherwise empty.
  std::vector<char> touched;
  std::int64_t bytes = 0;  // moved between memories
  // Bounds, for each reading party, in ns (kNotFed: some of its tasks need nothing of this flow):
  // none of its tasks is ready before `wait` after the first writer's end, and not all are before
  // `all_wait`. If the party is `joined`, each of its tasks needs something of every writer.
  struct Bound {
    std::int64_t wait = kNotFed, all_wait = 0;
    bool joined = false;
  };
  std::vector<Bound> bounds;  // a party
  int reading = 0;            // parties of which some task waits
  // A party: the last writing party whose tasks were not given all that its tasks need, so that the
  // two cannot be fused (plan/fusion.h); or -1.
  std::vector<int> apart;
  // If every one of `writing` is read, so long passes at least between a writer's end and some
  // reader's being ready.
  std::int64_t out_delay = 0;
  bool all_read = false;
  FlowSketch sketch;          // of a flow with bundles
  std::int64_t all_hops = 0;  // how many hops its transfers have, if each is looked at

  int transfer_count() const { return static_cast<int>(transfers.size()) - 1; }
  // The first bundle among the transfers; behind them, if there is none.
  int first_bundle() const { return first_transfer.back(); }
  // body(who waits for something that this writer sends to another memory).
  template <typename Body>
  void for_each_consumer(int writer, const Body& body) const {
    const auto tell = [&](int first, int end) {
      for (int c = transfers[first].first_consumer; c < transfers[end].first_consumer; ++c) {
        body(consumers[c]);
      }
    };
    tell(first_transfer[writer], first_transfer[writer + 1]);
    if (!bundle_of.empty() && bundle_of[writer] >= 0) {
      tell(bundle_of[writer], bundle_of[writer] + 1);
    }
  }
  bool carries_nothing() const { return edges.empty() && hops.empty(); }
  std::int64_t own_bytes() const;  // what it takes of this process's memory
};

using FlowPtr = std::shared_ptr<const Flow>;

// Collects what a flow carries, in any order, and lays it out. Reused, so that it allocates little.
class FlowBuilder {
 public:
  FlowBuilder(const MachineModel& machine, const Geometry& geometry, Detail detail);

  // `parts`: of each writing launch, its number of tasks.
  void begin(const std::vector<int>& parts);
  int writer(int launch_slot, int part) const { return first_writer_[launch_slot] + part; }
  void set_memory(int writer, int memory) { writer_memory_[writer] = memory; }

  void edge(int writer, TaskRef to);

  // A reading task (or, without one, just a memory) needs `volume` elements that `writer` wrote, of
  // `bytes` each: what rectangles `wrote` and `reads` have in common. Equal values of `stack` mean
  // that the rectangles live in one array, where overlaps are sent once; `partition` is a disjoint
  // one that has them, or -1.
  struct Need {
    std::int64_t bytes;
    int stack = 0, wrote = 0, reads = 0, partition = -1;
    std::int64_t volume = 0;
  };
  void need(int writer, const Need& need, int memory, TaskRef reader);

  void hold(int memory, Content content, std::int64_t bytes);  // memory that the flow occupies

  // `reading_parts`: of each party, the number of its tasks if the wait of them is wanted, or 0.
  // `parts`: of each party, how many tasks it has.
  Flow finish(const std::vector<int>& parts, const std::vector<int>& reading_parts,
              Parties writing);

 private:
  struct Cell {  // a transfer in the making
    int writer, memory, next, first_need, last_consumer;
    bool overlapping;
    std::int64_t bytes;
  };
  struct Listed {
    Need need;
    int next;
  };
  struct Link {
    TaskRef ref;
    int next;
  };

  // The first writer of a party, or if there is none such, the number of writers.
  int first_of(int party) const;
  int cell_of(int writer, int memory);
  std::int64_t bytes_of(const Cell& cell) const;
  void emit(int writer, const Cell& cell, Flow& flow);
  void add_hop(int link, std::int64_t time, Flow& flow);
  // Bundles (sim/bundles.cc).
  void find_bundles();
  void join(int party);
  int root_of(int writer);
  void emit_bundles(Flow& flow);
  void emit_bundle(Flow& flow);
  void add_reader(const TaskRef& reader, Flow& flow);
  // Sketches (sim/flow_sketch.cc).
  void find_sketch(const std::vector<int>& parts, Flow& flow);
  void sketch_edges(int party, const std::vector<int>& parts, Flow& flow);
  void sketch_transfer(int party, int number, const std::vector<int>& parts, Flow& flow);
  void find_bounds(const std::vector<int>& reading_parts, Flow& flow);
  std::int64_t party_load(int party, const Flow& flow);

  const MachineModel& machine_;
  const Geometry& geometry_;
  const Detail detail_;
  KnownRoutes routes_;
  std::vector<int> first_writer_;
  std::vector<int> writer_memory_;
  std::vector<int> first_cell_, last_edge_;  // a writer
  std::vector<Cell> cells_;
  std::vector<Listed> needs_;
  std::vector<Link> edges_, consumers_;
  int present_ = -1;          // the writer whose need came last
  std::vector<int> cell_at_;  // a memory: the present writer's cell, if it says so itself
  std::vector<std::int64_t> load_;
  std::vector<std::int64_t> held_;  // [memory * kContents + content]
  std::vector<int> touched_links_, touched_memories_;
  std::vector<int> sorted_;
  // What is laid out: lists whose length is not known before. They keep their storage, and what a
  // flow gets is as long as it has to be: searches hold thousands of flows, and large ones fill
  // gigabytes.
  struct LaidOut {
    std::vector<Transfer> transfers;
    std::vector<Hop> hops;
    std::vector<TaskRef> consumers;

    void swap(Flow& flow);
    void copy_to(Flow& flow);
  } laid_out_;
  // Of a reading task: how many writers it needs, how long the slowest transfer of these takes, and
  // all of them over the one link into its memory.
  struct Reading {
    int writers = 0;
    std::int64_t longest = 0, all = 0;
  };
  std::vector<Reading> readings_;
  std::vector<std::int64_t> party_load_;  // a link
  // Of bundles: by writer, one whose transfers go with its own, which leads to the bundle's number;
  // how many transfers a bundle has; by memory, a writer that sends there; by link, the bytes.
  std::vector<int> leads_to_, bundle_size_, sends_to_;
  std::vector<int> bundled_;  // writers of one bundle
  std::vector<std::int64_t> link_bytes_;
  std::vector<int> bundle_links_;
  std::vector<std::vector<int>> reads_;  // a party, a part: the last bundle that it was found to
                                         // read, by a number that no other bundle had
  int bundles_ = 0;
};

}  // namespace flexlegion
