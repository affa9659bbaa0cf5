// The ways of a machine, and what is known of them as a whole (traffic.h).
#include "search/traffic.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace flexlegion {

// Lists the links between all pairs of devices. At the same time, each link that a way passes is
// matched with the link that the way back passes in its place. If these pairs are the same for all
// ways, and both links of a pair have equal rates, then gradients load the links of the way back
// exactly as values load those of the way there, and one direction is enough to look at.
Ways::Ways(const MachineModel& machine, const std::vector<int>& node_of)
    : machine_(machine), back_alike_(true) {
  const int devices = machine.devices();
  std::vector<int> reverse(machine.links.size(), -1);
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      const int from = machine.memory_of[a], to = machine.memory_of[b];
      Way& way = ways_.emplace_back();
      way.first = way.last = static_cast<int>(links_.size());
      if (from == to) continue;
      const Route there = machine.route(from, to);
      const Route back = machine.route(to, from);
      back_alike_ = back_alike_ && there.size() == back.size();
      for (std::size_t i = 0; i < there.size(); ++i) {
        links_.push_back(there[i]);
        way.latency += machine.links[there[i]].latency;
        if (!back_alike_) continue;
        int& other = reverse[there[i]];
        if (other < 0) other = back[back.size() - 1 - i];
        const CommunicationDevice &x = machine.links[there[i]], &y = machine.links[other];
        back_alike_ = other == back[back.size() - 1 - i] && x.bandwidth == y.bandwidth &&
                      x.latency == y.latency;
      }
      way.last = static_cast<int>(links_.size());
    }
  }
  divide(node_of);
}

// A device's way out is what its ways to other nodes have in common. Ways between nodes divide if,
// for each receiver, what is left of them is the same whoever sends.
void Ways::divide(const std::vector<int>& node_of) {
  const int devices = machine_.devices();
  nodes_.resize(static_cast<std::size_t>(*std::max_element(node_of.begin(), node_of.end())) + 1);
  for (int d = 0; d < devices; ++d) {
    node_.push_back(node_of[static_cast<std::size_t>(machine_.memory_of[d])]);
    nodes_[static_cast<std::size_t>(node_.back())].push_back(d);
  }
  out_.assign(static_cast<std::size_t>(devices), {-1, -1, 0});
  in_ = out_;
  for (int a = 0; a < devices; ++a) {
    Way& out = out_[static_cast<std::size_t>(a)];
    for (int b = 0; b < devices; ++b) {
      if (node(a) == node(b)) continue;
      const Way& its = way(a, b);
      if (out.first < 0) out = its;
      const auto [end, other] =
          std::mismatch(links_.begin() + out.first, links_.begin() + out.last,
                        links_.begin() + its.first, links_.begin() + its.last);
      out.last = static_cast<int>(end - links_.begin());
    }
  }
  for (int a = 0; a < devices; ++a) {
    const Way& out = out_[static_cast<std::size_t>(a)];
    for (int b = 0; b < devices; ++b) {
      if (node(a) == node(b)) continue;
      Way& in = in_[static_cast<std::size_t>(b)];
      const Way& its = way(a, b);
      const int middle = its.first + out.last - out.first;
      if (in.first < 0) in = {middle, its.last, 0};
      if (!std::equal(links_.begin() + middle, links_.begin() + its.last, links_.begin() + in.first,
                      links_.begin() + in.last)) {
        return;
      }
    }
  }
  const auto by_latency = [this](std::vector<Way>& ways) {
    for (Way& its : ways) {
      its.latency = 0;
      for (int i = its.first; i < its.last; ++i) its.latency += machine_.links[links_[i]].latency;
    }
    std::vector<int> order(ways.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&ways](int a, int b) { return ways[a].latency > ways[b].latency; });
    return order;
  };
  by_way_out_ = by_latency(out_);
  by_way_in_ = by_latency(in_);
  by_node_ = std::all_of(in_.begin(), in_.end(), [](const Way& its) { return its.first >= 0; });
}

// Links work side by side, so the busiest one decides.
std::int64_t Traffic::time() {
  std::int64_t most = 0;
  for (int link : used_) {
    most = std::max(most, transfer_time(load_[link], ways_.machine().links[link].bandwidth));
    load_[link] = 0;
  }
  used_.clear();
  return most + std::exchange(latency_, 0);
}

}  // namespace flexlegion
