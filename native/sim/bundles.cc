// Which transfers of a flow are a bundle, and what it occupies (sketch.h).
//
// 1. find_bundles(): writers of one launch that send to the same memory are joined, in a forest
//    where each tree is a bundle, or too small to be one.
// 2. emit_bundles(): each bundle becomes one transfer with one hop a link, behind the flow's other
//    transfers, the longest hop first.
#include <algorithm>
#include <numeric>

#include "sim/charges.h"
#include "sim/flow.h"

namespace flexlegion {

namespace {

constexpr int kLeastBundled = 4;

}  // namespace

// The root of a writer's tree, by path halving: on the way there, writers are made to lead past
// their next one. So trees stay flat, and a look-up takes a few steps.
int FlowBuilder::root_of(int writer) {
  while (leads_to_[writer] != writer) {
    leads_to_[writer] = leads_to_[leads_to_[writer]];
    writer = leads_to_[writer];
  }
  return writer;
}

// The writers of one launch: whoever sends to a memory goes with the first who does. The smaller
// number is the root, so that bundles are found in the order of their first writers.
void FlowBuilder::join(int party) {
  const int first = first_of(party), end = first_of(party + 1);
  for (int w = first; w < end; ++w) {
    for (int c = first_cell_[w]; c >= 0; c = cells_[c].next) {
      int& other = sends_to_[cells_[c].memory];
      if (other < 0) {
        other = w;
        continue;
      }
      const int a = root_of(w), b = root_of(other);
      leads_to_[std::max(a, b)] = std::min(a, b);
    }
  }
  // Memories are walked as before, so that a launch which sends to few never clears all of them.
  for (int w = first; w < end; ++w) {
    for (int c = first_cell_[w]; c >= 0; c = cells_[c].next) sends_to_[cells_[c].memory] = -1;
  }
}

// Afterwards each writer leads to the first one of its bundle, or, if its tree has too few
// transfers to be one, nowhere (-1). A cell is a transfer in the making.
void FlowBuilder::find_bundles() {
  const int writers = static_cast<int>(writer_memory_.size());
  leads_to_.resize(writer_memory_.size());
  std::iota(leads_to_.begin(), leads_to_.end(), 0);
  sends_to_.resize(static_cast<std::size_t>(machine_.memories), -1);
  for (int party = 0; party < static_cast<int>(first_writer_.size()); ++party) join(party);
  bundle_size_.assign(writer_memory_.size(), 0);
  for (int w = 0; w < writers; ++w) {
    leads_to_[w] = root_of(w);
    for (int c = first_cell_[w]; c >= 0; c = cells_[c].next) ++bundle_size_[leads_to_[w]];
  }
  for (int& root : leads_to_) {
    if (bundle_size_[root] < kLeastBundled) root = -1;
  }
}

// Bundles come launch by launch, and in a launch in the order of their first writers.
void FlowBuilder::emit_bundles(Flow& flow) {
  const int writers = static_cast<int>(writer_memory_.size());
  link_bytes_.resize(machine_.links.size(), 0);
  for (int party = 0; party < static_cast<int>(first_writer_.size()); ++party) {
    const int end = first_of(party + 1);
    for (int first = first_of(party); first < end; ++first) {
      if (leads_to_[first] != first) continue;
      bundled_.clear();
      for (int w = first; w < end; ++w) {
        if (leads_to_[w] == first) bundled_.push_back(w);
      }
      if (flow.bundle_of.empty()) flow.bundle_of.assign(static_cast<std::size_t>(writers), -1);
      emit_bundle(flow);
    }
  }
}

// Lists a reader of the present bundle once, however many of its transfers the reader needs. Each
// task keeps the number of the bundle that it was listed for last. As no number is used twice, also
// in later flows, nothing has to be cleared.
void FlowBuilder::add_reader(const TaskRef& reader, Flow& flow) {
  if (reads_.size() <= static_cast<std::size_t>(reader.party)) {
    reads_.resize(static_cast<std::size_t>(reader.party) + 1);
  }
  std::vector<int>& party = reads_[reader.party];
  if (party.size() <= static_cast<std::size_t>(reader.part)) {
    party.resize(static_cast<std::size_t>(reader.part) + 1, 0);
  }
  if (party[reader.part] == bundles_) return;
  party[reader.part] = bundles_;
  flow.consumers.push_back(reader);
}

// The bundle of the writers in bundled_: one hop for each link that any of its transfers passes,
// with all their bytes over it.
void FlowBuilder::emit_bundle(Flow& flow) {
  Transfer bundle;
  bundle.bundled = true;
  bundle.writer = bundled_.front();
  bundle.from = writer_memory_[bundle.writer];
  bundle.to = cells_[first_cell_[bundle.writer]].memory;
  bundle.writers = static_cast<int>(bundled_.size());
  bundle.first_hop = static_cast<int>(flow.hops.size());
  bundle.first_consumer = static_cast<int>(flow.consumers.size());
  ++bundles_;
  for (int w : bundled_) {
    flow.bundle_of[w] = static_cast<int>(flow.transfers.size());
    for (int c = first_cell_[w]; c >= 0; c = cells_[c].next) {
      const std::int64_t bytes = bytes_of(cells_[c]);
      bundle.bytes += bytes;
      std::int64_t latency = 0;
      const KnownRoutes::Links route = routes_(writer_memory_[w], cells_[c].memory);
      flow.all_hops += static_cast<std::int64_t>(route.size());
      for (const int link : route) {
        if (link_bytes_[link] == 0) bundle_links_.push_back(link);
        link_bytes_[link] += bytes;
        latency += machine_.links[static_cast<std::size_t>(link)].latency;
      }
      bundle.latency = std::max(bundle.latency, latency);
      for (int k = cells_[c].last_consumer; k >= 0; k = consumers_[k].next) {
        add_reader(consumers_[k].ref, flow);
      }
    }
  }
  // The longest first; then by number, so that a flow is a function of the configurations alone.
  std::vector<std::pair<std::int64_t, int>> hops;
  for (int link : bundle_links_) {
    hops.emplace_back(-hop_time(machine_.links[static_cast<std::size_t>(link)], link_bytes_[link]),
                      link);
    link_bytes_[link] = 0;
  }
  bundle_links_.clear();
  std::sort(hops.begin(), hops.end());
  for (const auto& [time, link] : hops) add_hop(link, -time, flow);
  flow.bytes += bundle.bytes;
  flow.transfers.push_back(bundle);
}

}  // namespace flexlegion
