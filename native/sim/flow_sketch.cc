// What a sketch has to know of a flow, found once the flow is laid out (flow.h).
//
// 1. Edges are listed by writing task. Those of one party to another one are put together; mostly
//    the k-th task waits for the k-th one, and then nothing else is kept of them.
// 2. Each bundle's readers are put together by party likewise, and so are the tasks that write it.
#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/flow.h"

namespace flexlegion {

void FlowBuilder::find_sketch(const std::vector<int>& parts, Flow& flow) {
  FlowSketch& its = flow.sketch;
  const auto writing = static_cast<int>(first_writer_.size());
  const auto tasks_of = [&](int party) { return parts[static_cast<std::size_t>(party)]; };
  // The parts in a sorted list, or nothing, if these are all.
  const auto list = [&](int party, const std::vector<int>& some) {
    const int first = static_cast<int>(its.parts.size());
    if (static_cast<int>(some.size()) == tasks_of(party)) return std::pair(first, first);
    its.parts.insert(its.parts.end(), some.begin(), some.end());
    return std::pair(first, static_cast<int>(its.parts.size()));
  };
  std::vector<std::pair<int, std::pair<int, int>>> found;  // (reader, (its part, writer's part))
  std::vector<TaskRef> readers;
  std::vector<int> some;
  const auto add_bundle = [&](int party, int t) {
    const Transfer& transfer = flow.transfers[t];
    FlowSketch::Bundle bundle{party};
    some.clear();
    for (int w = first_of(party); w < first_of(party + 1); ++w) {
      const bool writes = transfer.bundled ? flow.bundle_of[w] == t : w == transfer.writer;
      if (writes) some.push_back(w - first_of(party));
    }
    std::tie(bundle.first_part, bundle.end_part) = list(party, some);
    bundle.first_hop = transfer.first_hop;
    bundle.end_hop = (&transfer + 1)->first_hop;
    bundle.latency = transfer.latency;
    for (int h = bundle.first_hop; !transfer.bundled && h < bundle.end_hop; ++h) {
      bundle.latency += machine_.links[static_cast<std::size_t>(flow.hops[h].link)].latency;
    }
    readers.assign(flow.consumers.begin() + transfer.first_consumer,
                   flow.consumers.begin() + (&transfer + 1)->first_consumer);
    std::sort(readers.begin(), readers.end(), [](const TaskRef& a, const TaskRef& b) {
      return a.party != b.party ? a.party < b.party : a.part < b.part;
    });
    bundle.first_reader = static_cast<int>(its.readers.size());
    for (std::size_t i = 0; i < readers.size();) {
      const int reader = readers[i].party;
      some.clear();
      for (; i < readers.size() && readers[i].party == reader; ++i) some.push_back(readers[i].part);
      const auto [first, end] = list(reader, some);
      its.readers.push_back({reader, first, end});
    }
    bundle.end_reader = static_cast<int>(its.readers.size());
    its.bundles.push_back(bundle);
  };
  for (int party = 0; party < writing; ++party) {
    its.first_edges.push_back(static_cast<int>(its.edges.size()));
    its.first_bundle.push_back(static_cast<int>(its.bundles.size()));
    found.clear();
    for (int w = first_of(party); w < first_of(party + 1); ++w) {
      for (int e = flow.first_edge[w]; e < flow.first_edge[w + 1]; ++e) {
        const TaskRef& to = flow.edges[e];
        found.push_back({to.party, {to.part, w - first_of(party)}});
      }
    }
    std::sort(found.begin(), found.end());
    for (std::size_t i = 0; i < found.size();) {
      const int reader = found[i].first;
      std::size_t end = i;
      bool alike = true;
      for (; end < found.size() && found[end].first == reader; ++end) {
        const auto& [part, writer] = found[end].second;
        alike = alike && part == writer && part == static_cast<int>(end - i);
      }
      alike = alike && static_cast<int>(end - i) == tasks_of(reader) &&
              tasks_of(reader) == tasks_of(party);
      FlowSketch::Edges edges{party, reader, alike};
      edges.first = static_cast<int>(its.pairs.size());
      for (; i < end; ++i) {
        if (!alike) its.pairs.emplace_back(found[i].second.second, found[i].second.first);
      }
      edges.end = static_cast<int>(its.pairs.size());
      its.edges.push_back(edges);
    }
    for (int t = flow.first_transfer[first_of(party)]; t < flow.first_transfer[first_of(party + 1)];
         ++t) {
      add_bundle(party, t);
    }
    for (int t = flow.first_bundle(); t < flow.transfer_count(); ++t) {
      const int writer = flow.transfers[t].writer;
      if (first_of(party) <= writer && writer < first_of(party + 1)) add_bundle(party, t);
    }
  }
  its.first_edges.push_back(static_cast<int>(its.edges.size()));
  its.first_bundle.push_back(static_cast<int>(its.bundles.size()));
}

}  // namespace flexlegion
