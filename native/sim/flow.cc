// Lays out what a flow carries (flow.h), from needs that come in any order.
//
// 1. need(): a reading task needs elements that a writing task wrote. Within one memory this is an
//    edge. Otherwise it goes into a cell, one a (writer, reading memory), which will be one
//    transfer: the runtime copies what a memory needs once, however many tasks read it there.
// 2. finish(): cells become transfers, writer by writer and destination by destination. So equal
//    configurations give equal flows, whatever the order of needs, and the simulation is
//    reproducible.
// 3. Each transfer gets one hop a link of its route.
// 4. find_bounds(): how long readers wait at least, for the bounds that reject proposals
//    unsimulated.
//
// A cell sums the volumes of its needs, which is right as long as they do not overlap. Rectangles
// of one disjoint partition never do. Where others meet in one array, the cell is marked, and only
// then the volume of a union is computed.
//
// All lists are chains of indices in vectors that keep their storage, because a search builds flows
// for every proposal.
#include "sim/flow.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include "sim/charges.h"

namespace flexlegion {

namespace {

template <typename T>
std::int64_t bytes_of(const std::vector<T>& items) {
  return static_cast<std::int64_t>(items.capacity() * sizeof(T));
}

}  // namespace

std::int64_t Flow::own_bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(Flow));
  for (const auto& times : fed_times) bytes += bytes_of(times);
  return bytes + bytes_of(first_writer) + bytes_of(touched) + bytes_of(apart) +
         bytes_of(sketch.first_edges) + bytes_of(sketch.first_bundle) + bytes_of(first_edge) +
         bytes_of(first_transfer) + bytes_of(edges) + bytes_of(transfers) + bytes_of(bundle_of) +
         bytes_of(hops) + bytes_of(consumers) + bytes_of(around) + bytes_of(link_load) +
         bytes_of(memory) + bytes_of(local) + bytes_of(bounds) + bytes_of(sketch.edges) +
         bytes_of(sketch.bundles) + bytes_of(sketch.readers) + bytes_of(sketch.pairs) +
         bytes_of(sketch.parts);
}

FlowBuilder::FlowBuilder(const MachineModel& machine, const Geometry& geometry, Detail detail)
    : machine_(machine),
      geometry_(geometry),
      detail_(detail),
      routes_(machine.routes, machine.memories),
      cell_at_(static_cast<std::size_t>(machine.memories), 0),
      load_(machine.links.size(), 0),
      held_(static_cast<std::size_t>(machine.memories) * kContents, 0) {}

// Forgets the flow before, and numbers the writers: launch by launch, part by part.
void FlowBuilder::begin(const std::vector<int>& parts) {
  first_writer_.clear();
  int writers = 0;
  for (int n : parts) {
    first_writer_.push_back(writers);
    writers += n;
  }
  writer_memory_.assign(static_cast<std::size_t>(writers), -1);
  first_cell_.assign(static_cast<std::size_t>(writers), -1);
  last_edge_.assign(static_cast<std::size_t>(writers), -1);
  cells_.clear();
  needs_.clear();
  edges_.clear();
  consumers_.clear();
  present_ = -1;
}

int FlowBuilder::first_of(int party) const {
  const auto p = static_cast<std::size_t>(party);
  return p < first_writer_.size() ? first_writer_[p] : static_cast<int>(writer_memory_.size());
}

// One edge a pair, however many pieces the reader takes from the writer.
void FlowBuilder::edge(int writer, TaskRef to) {
  const int last = last_edge_[writer];
  // A writer has few edges, so they are compared one by one.
  for (int e = last; e >= 0; e = edges_[e].next) {
    if (edges_[e].ref == to) return;
  }
  last_edge_[writer] = static_cast<int>(edges_.size());
  edges_.push_back({to, last});
}

// The cell of a writer and a memory, which is made when it is first asked for. Needs come writer by
// writer, so it is enough to know in one step the cells of the present one.
int FlowBuilder::cell_of(int writer, int memory) {
  if (writer != present_) {
    present_ = writer;
    for (int c = first_cell_[writer]; c >= 0; c = cells_[c].next) cell_at_[cells_[c].memory] = c;
  }
  int& cell = cell_at_[memory];
  const int number = static_cast<int>(cells_.size());
  // An entry that another writer or an earlier flow left says so itself.
  if (cell < number && cells_[cell].writer == writer && cells_[cell].memory == memory) return cell;
  cell = number;
  cells_.push_back({writer, memory, first_cell_[writer], -1, -1, false, 0});
  first_cell_[writer] = number;
  return number;
}

// What several tasks of one memory read alike is one need: it travels once.
void FlowBuilder::need(int writer, const Need& need, int memory, TaskRef reader) {
  if (writer_memory_[writer] == memory) {
    if (reader.party >= 0) edge(writer, reader);
    return;
  }
  Cell& cell = cells_[cell_of(writer, memory)];
  bool known = false;
  for (int n = cell.first_need; n >= 0; n = needs_[n].next) {
    const Need& old = needs_[n].need;
    if (old.stack != need.stack) continue;
    if (old.wrote == need.wrote && old.reads == need.reads) {
      known = true;
      break;
    }
    // Two rectangles of one disjoint partition have nothing in common, and any others might.
    if (old.partition != need.partition || need.partition < 0) cell.overlapping = true;
  }
  if (!known) {
    needs_.push_back({need, cell.first_need});
    cell.first_need = static_cast<int>(needs_.size()) - 1;
    cell.bytes += need.volume * need.bytes;
  }
  if (reader.party < 0) return;
  for (int c = cell.last_consumer; c >= 0; c = consumers_[c].next) {
    if (consumers_[c].ref == reader) return;
  }
  consumers_.push_back({reader, cell.last_consumer});
  cell.last_consumer = static_cast<int>(consumers_.size()) - 1;
}

void FlowBuilder::hold(int memory, Content content, std::int64_t bytes) {
  if (bytes == 0) return;
  const int entry = memory * kContents + static_cast<int>(content);
  // What was touched is listed, so that a flow between few memories never walks all of them.
  if (held_[entry] == 0) touched_memories_.push_back(entry);
  held_[entry] += bytes;
}

// The rare case: the union of what overlaps, array by array.
std::int64_t FlowBuilder::bytes_of(const Cell& cell) const {
  if (!cell.overlapping) return cell.bytes;
  struct Stack {
    RectUnion rects;
    std::int64_t bytes = 0;
  };
  std::map<int, Stack> stacks;
  for (int n = cell.first_need; n >= 0; n = needs_[n].next) {
    const Need& need = needs_[n].need;
    Stack& stack = stacks[need.stack];
    stack.rects.add(geometry_.rect(need.wrote).intersect(geometry_.rect(need.reads)));
    stack.bytes = need.bytes;
  }
  std::int64_t sum = 0;
  for (const auto& [number, stack] : stacks) sum += stack.rects.volume() * stack.bytes;
  return sum;
}

// Of the transfer that comes next.
void FlowBuilder::add_hop(int link, std::int64_t time, Flow& flow) {
  flow.hops.push_back({static_cast<int>(flow.transfers.size()), link, time});
  if (load_[link] == 0) touched_links_.push_back(link);
  load_[link] += time;
}

// Makes a transfer of a cell: its hops along the route, and its consumers.
void FlowBuilder::emit(int writer, const Cell& cell, Flow& flow) {
  Transfer transfer;
  transfer.writer = writer;
  transfer.from = writer_memory_[writer];
  transfer.to = cell.memory;
  transfer.bytes = bytes_of(cell);
  transfer.first_hop = static_cast<int>(flow.hops.size());
  transfer.first_consumer = static_cast<int>(flow.consumers.size());
  const KnownRoutes::Links route = routes_(transfer.from, transfer.to);
  if (route.empty()) {
    throw std::invalid_argument("no route from memory " + std::to_string(transfer.from) +
                                " to memory " + std::to_string(transfer.to));
  }
  std::int64_t bandwidth = 0, time = 0;
  flow.all_hops += static_cast<std::int64_t>(route.size());
  for (int link : route) {
    const CommunicationDevice& its = machine_.links[static_cast<std::size_t>(link)];
    // Most links of a route are alike, and a division saved for each hop shows in a search.
    if (its.bandwidth != bandwidth) {
      bandwidth = its.bandwidth;
      time = hop_time(its, transfer.bytes);
    }
    add_hop(link, time, flow);
  }
  for (int c = cell.last_consumer; c >= 0; c = consumers_[c].next) {
    flow.consumers.push_back(consumers_[c].ref);
  }
  flow.bytes += transfer.bytes;
  flow.transfers.push_back(transfer);
}

// What a transfer takes at least, if each of its links is free.
static std::int64_t passage_time(const MachineModel& machine, const Flow& flow, int t) {
  const Transfer& transfer = flow.transfers[t];
  const int end = flow.transfers[t + 1].first_hop;
  // The first hop of a bundle is the longest one, and the others run beside it.
  if (transfer.bundled) return flow.hops[transfer.first_hop].time + transfer.latency;
  Passage passage;
  for (int h = transfer.first_hop; h < end; ++h) {
    passage.pass(machine.links[static_cast<std::size_t>(flow.hops[h].link)], flow.hops[h].time);
  }
  return passage.time();
}

// For each reading task, how many writers it needs and what their transfers take at least, alone or
// one after the other; for each party, the least and the largest of its tasks.
void FlowBuilder::find_bounds(const std::vector<int>& reading_parts, Flow& flow) {
  std::vector<int> first;  // by party
  int readers = 0;
  for (int parts : reading_parts) {
    first.push_back(readers);
    readers += parts;
  }
  readings_.assign(static_cast<std::size_t>(readers), {});
  for (const TaskRef& to : flow.edges) {
    if (reading_parts[to.party] > 0) ++readings_[first[to.party] + to.part].writers;
  }
  std::int64_t least = flow.edges.empty() ? kMaxTime : 0;
  for (int t = 0; t < flow.transfer_count(); ++t) {
    const Transfer& transfer = flow.transfers[t];
    const Transfer& next = flow.transfers[t + 1];
    const std::int64_t time = passage_time(machine_, flow, t);
    least = std::min(least, time);
    // What comes to a task over one link comes one after the other, in whatever order. All of it
    // goes into the task's memory; where the last links differ, it may come at the same time.
    const bool single =
        !transfer.bundled && machine_.single_entry[static_cast<std::size_t>(transfer.to)];
    const std::int64_t last = flow.hops[next.first_hop - 1].time;
    for (int c = transfer.first_consumer; c < next.first_consumer; ++c) {
      const TaskRef& to = flow.consumers[c];
      if (reading_parts[to.party] == 0) continue;
      Reading& its = readings_[first[to.party] + to.part];
      its.writers += transfer.writers;
      its.longest = std::max(its.longest, time);
      if (single) its.all += last;
    }
  }
  flow.out_delay = least;
  const int writers = first_of(flow.writing.end) - first_of(flow.writing.first);
  flow.bounds.assign(reading_parts.size(), {});
  for (std::size_t p = 0; p < reading_parts.size(); ++p) {
    if (reading_parts[p] == 0) continue;
    Flow::Bound& bound = flow.bounds[p];
    bound.wait = std::numeric_limits<std::int64_t>::max();
    bound.joined = true;
    bound.all_wait = kNotFed;
    for (int k = first[p]; k < first[p] + reading_parts[p]; ++k) {
      const Reading& its = readings_[k];
      const std::int64_t wait = std::max(its.longest, its.all);
      bound.wait = std::min(bound.wait, its.writers > 0 ? wait : kNotFed);
      if (its.writers > 0) bound.all_wait = std::max(bound.all_wait, wait);
      bound.joined = bound.joined && its.writers == writers;
    }
    if (bound.all_wait == kNotFed) continue;
    ++flow.reading;
    bound.all_wait = std::max(bound.all_wait, party_load(static_cast<int>(p), flow));
  }
}

// How long the transfers that a party reads occupy the busiest link.
std::int64_t FlowBuilder::party_load(int party, const Flow& flow) {
  party_load_.resize(load_.size(), 0);
  std::int64_t most = 0;
  for (int t = 0; t < flow.transfer_count(); ++t) {
    const Transfer& next = flow.transfers[t + 1];
    bool reads = false;
    for (int c = flow.transfers[t].first_consumer; c < next.first_consumer && !reads; ++c) {
      reads = flow.consumers[c].party == party;
    }
    if (!reads) continue;
    for (int h = flow.transfers[t].first_hop; h < next.first_hop; ++h) {
      most = std::max(most, party_load_[flow.hops[h].link] += flow.hops[h].time);
    }
  }
  for (const Hop& hop : flow.hops) party_load_[hop.link] = 0;
  return most;
}

void FlowBuilder::LaidOut::swap(Flow& flow) {
  flow.transfers.swap(transfers);
  flow.hops.swap(hops);
  flow.consumers.swap(consumers);
}

void FlowBuilder::LaidOut::copy_to(Flow& flow) {
  flow.transfers = transfers;
  flow.hops = hops;
  flow.consumers = consumers;
  transfers.clear();
  hops.clear();
  consumers.clear();
}

// Lays the lists out one after the other, by writer. The simulator walks them in that order,
// whenever a task ends.
Flow FlowBuilder::finish(const std::vector<int>& parts, const std::vector<int>& reading_parts,
                         Parties writing) {
  Flow flow;
  flow.writing = writing;
  const int writers = static_cast<int>(writer_memory_.size());
  flow.first_writer = first_writer_;
  if (detail_ == Detail::bundles) find_bundles();
  flow.first_edge.reserve(static_cast<std::size_t>(writers) + 1);
  flow.first_transfer.reserve(static_cast<std::size_t>(writers) + 1);
  flow.edges.reserve(edges_.size());
  laid_out_.swap(flow);
  for (int w = 0; w < writers; ++w) {
    flow.first_edge.push_back(static_cast<int>(flow.edges.size()));
    flow.first_transfer.push_back(static_cast<int>(flow.transfers.size()));
    for (int e = last_edge_[w]; e >= 0; e = edges_[e].next) flow.edges.push_back(edges_[e].ref);
    sorted_.clear();
    if (detail_ == Detail::transfers || leads_to_[w] < 0) {
      for (int c = first_cell_[w]; c >= 0; c = cells_[c].next) sorted_.push_back(c);
    }
    // By destination, so that a flow is a function of the configurations alone.
    std::sort(sorted_.begin(), sorted_.end(),
              [this](int a, int b) { return cells_[a].memory < cells_[b].memory; });
    for (int c : sorted_) emit(w, cells_[c], flow);
  }
  flow.first_edge.push_back(static_cast<int>(flow.edges.size()));
  flow.first_transfer.push_back(static_cast<int>(flow.transfers.size()));
  if (detail_ == Detail::bundles) emit_bundles(flow);
  Transfer last;
  last.first_hop = static_cast<int>(flow.hops.size());
  last.first_consumer = static_cast<int>(flow.consumers.size());
  flow.transfers.push_back(last);
  laid_out_.swap(flow);
  laid_out_.copy_to(flow);
  for (int link : touched_links_) {
    flow.link_load.emplace_back(link, load_[link]);
    load_[link] = 0;
  }
  for (int entry : touched_memories_) {
    flow.memory.push_back(
        {entry / kContents, static_cast<Content>(entry % kContents), held_[entry]});
    held_[entry] = 0;
  }
  touched_links_.clear();
  touched_memories_.clear();
  find_bounds(reading_parts, flow);
  flow.all_read = true;
  // Whether somebody waits for every writer: then a writer's end bounds the end of the iteration.
  const int end = first_of(writing.end);
  for (int w = first_of(writing.first); w < end && flow.all_read; ++w) {
    flow.all_read = flow.first_edge[w] < flow.first_edge[w + 1];
    flow.for_each_consumer(w, [&](const TaskRef&) { flow.all_read = true; });
  }
  if (detail_ == Detail::bundles) find_sketch(parts, flow);
  return flow;
}

}  // namespace flexlegion
