// What a sketch has to know of a flow, found once the flow is laid out (flow.h).
//
// 1. sketch_edges(): edges are listed by writing task. Those of one party to another one are put
//    together; mostly the k-th task waits for the k-th one, and then nothing else is kept of them.
// 2. sketch_transfer(): the readers of a bundle, or of a transfer, are put together by party
//    likewise, and so are the tasks that write it.
#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/flow.h"

namespace flexlegion {

namespace {

// A range of FlowSketch::parts with these of a party's tasks, which are sorted; an empty one, if
// they are all.
std::pair<int, int> listed(const std::vector<int>& some, int all, FlowSketch& sketch) {
  const int first = static_cast<int>(sketch.parts.size());
  if (static_cast<int>(some.size()) < all) {
    sketch.parts.insert(sketch.parts.end(), some.begin(), some.end());
  }
  return {first, static_cast<int>(sketch.parts.size())};
}

}  // namespace

// `parts`: of each party, how many tasks it has. Transfers stand writer by writer, and bundles
// behind them launch by launch, so one walk finds those of each party.
void FlowBuilder::find_sketch(const std::vector<int>& parts, Flow& flow) {
  FlowSketch& its = flow.sketch;
  int bundle = flow.first_bundle();
  for (int party = 0; party < static_cast<int>(first_writer_.size()); ++party) {
    its.first_edges.push_back(static_cast<int>(its.edges.size()));
    its.first_bundle.push_back(static_cast<int>(its.bundles.size()));
    sketch_edges(party, parts, flow);
    const int end = flow.first_transfer[first_of(party + 1)];
    for (int t = flow.first_transfer[first_of(party)]; t < end; ++t) {
      sketch_transfer(party, t, parts, flow);
    }
    for (; bundle < flow.transfer_count(); ++bundle) {
      if (flow.transfers[bundle].writer >= first_of(party + 1)) break;
      sketch_transfer(party, bundle, parts, flow);
    }
  }
  its.first_edges.push_back(static_cast<int>(its.edges.size()));
  its.first_bundle.push_back(static_cast<int>(its.bundles.size()));
}

void FlowBuilder::sketch_edges(int party, const std::vector<int>& parts, Flow& flow) {
  struct Found {
    int reader, part, writer;

    bool operator<(const Found& o) const {
      if (reader != o.reader) return reader < o.reader;
      return part != o.part ? part < o.part : writer < o.writer;
    }
  };
  std::vector<Found> found;
  const int first = first_of(party);
  for (int w = first; w < first_of(party + 1); ++w) {
    for (int e = flow.first_edge[w]; e < flow.first_edge[w + 1]; ++e) {
      found.push_back({flow.edges[e].party, flow.edges[e].part, w - first});
    }
  }
  std::sort(found.begin(), found.end());
  FlowSketch& its = flow.sketch;
  for (std::size_t i = 0; i < found.size();) {
    const int reader = found[i].reader;
    FlowSketch::Edges edges{party, reader, parts[reader] == parts[party]};
    edges.first = static_cast<int>(its.pairs.size());
    for (int k = 0; i < found.size() && found[i].reader == reader; ++i, ++k) {
      edges.alike = edges.alike && found[i].part == k && found[i].writer == k;
      its.pairs.emplace_back(found[i].writer, found[i].part);
    }
    edges.alike = edges.alike && its.pairs.size() == static_cast<std::size_t>(edges.first) +
                                                         static_cast<std::size_t>(parts[party]);
    if (edges.alike) its.pairs.resize(static_cast<std::size_t>(edges.first));
    edges.end = static_cast<int>(its.pairs.size());
    its.edges.push_back(edges);
  }
}

void FlowBuilder::sketch_transfer(int party, int number, const std::vector<int>& parts,
                                  Flow& flow) {
  const Transfer &transfer = flow.transfers[number], &next = flow.transfers[number + 1];
  FlowSketch& its = flow.sketch;
  FlowSketch::Bundle bundle{party};
  const int first = first_of(party);
  std::vector<int> some;
  if (!transfer.bundled) some.push_back(transfer.writer - first);
  for (int w = first; transfer.bundled && w < first_of(party + 1); ++w) {
    if (flow.bundle_of[w] == number) some.push_back(w - first);
  }
  std::tie(bundle.first_part, bundle.end_part) = listed(some, parts[party], its);
  bundle.first_hop = transfer.first_hop;
  bundle.end_hop = next.first_hop;
  bundle.latency = transfer.latency;
  for (int h = bundle.first_hop; !transfer.bundled && h < bundle.end_hop; ++h) {
    bundle.latency += machine_.links[static_cast<std::size_t>(flow.hops[h].link)].latency;
  }
  std::vector<std::pair<int, int>> readers;  // (party, part)
  for (int c = transfer.first_consumer; c < next.first_consumer; ++c) {
    readers.emplace_back(flow.consumers[c].party, flow.consumers[c].part);
  }
  std::sort(readers.begin(), readers.end());
  bundle.first_reader = static_cast<int>(its.readers.size());
  for (std::size_t i = 0; i < readers.size();) {
    FlowSketch::Reader reader{readers[i].first};
    some.clear();
    for (; i < readers.size() && readers[i].first == reader.party; ++i) {
      some.push_back(readers[i].second);
    }
    std::tie(reader.first_part, reader.end_part) = listed(some, parts[reader.party], its);
    its.readers.push_back(reader);
  }
  bundle.end_reader = static_cast<int>(its.readers.size());
  its.bundles.push_back(bundle);
}

}  // namespace flexlegion
