// Machines have devices that nothing tells apart, such as the four GPUs of a node. Exchanging two
// such devices in a strategy changes no time, so a search would look at each strategy many times
// over.
//
// symmetric_devices() finds them: two devices of equal kind, each with a memory of its own, are
// exchangeable if exchanging their memories maps every route onto a route over links of equal
// rates, and each link always onto the same one. make_canonical() gives a proposal's free devices
// the lowest numbers of their kind. Free are those that no other operator uses: renaming a used
// device would change where other tensors come from.
//
// Costs: pairs of memories times the length of routes, once; then for each neighbouring pair of
// devices the routes that begin or end there. A proposal costs one pass over the operators until
// all devices are seen in use.
#include "search/symmetry.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>

namespace flexlegion {

namespace {

class Exchanges {
 public:
  explicit Exchanges(const MachineModel& machine)
      : machine_(machine),
        uses_(machine.links.size(), 0),
        met_(machine.links.size(), 0),
        onto_(machine.links.size(), -1),
        users_(machine.devices_by_memory()) {
    for (int x = 0; x < machine.memories; ++x) {
      for (int y = 0; y < machine.memories; ++y) {
        if (x == y) continue;
        for (int link : machine.route(x, y)) ++uses_[static_cast<std::size_t>(link)];
      }
    }
  }

  // Whether devices a and b can be exchanged without changing any time: every route becomes another
  // route, and each of its links one with the same rates. Routes between others stay as they are,
  // so a link that one of these passes has to stay the same.
  bool possible(int a, int b) {
    const int from = machine_.memory_of[a], to = machine_.memory_of[b];
    if (machine_.kind_of[a] != machine_.kind_of[b] || from == to ||
        machine_.capacity[from] != machine_.capacity[to] || users_[from].size() > 1 ||
        users_[to].size() > 1) {
      return false;
    }
    bool alike = maps(from, to, from, to) && maps(to, from, from, to);
    for (int x = 0; alike && x < machine_.memories; ++x) {
      if (x == from || x == to) continue;
      alike = maps(x, from, from, to) && maps(from, x, from, to) && maps(x, to, from, to) &&
              maps(to, x, from, to);
    }
    for (int link : touched_) {
      const auto l = static_cast<std::size_t>(link);
      if (uses_[l] > met_[l] && onto_[l] != link) alike = false;
      met_[l] = 0;
      onto_[l] = -1;
    }
    touched_.clear();
    return alike;
  }

 private:
  // Whether a route's image is a route over links of equal rates, and each link goes where it went
  // before.
  bool maps(int x, int y, int from, int to) {
    const auto image = [from, to](int memory) {
      return memory == from ? to : memory == to ? from : memory;
    };
    const Route route = machine_.route(x, y);
    const Route other = machine_.route(image(x), image(y));
    if (route.size() != other.size()) return false;
    for (std::size_t h = 0; h < route.size(); ++h) {
      const auto l = static_cast<std::size_t>(route[h]);
      const CommunicationDevice& one = machine_.links[l];
      const CommunicationDevice& its = machine_.links[static_cast<std::size_t>(other[h])];
      if (met_[l]++ == 0) {
        touched_.push_back(route[h]);
        onto_[l] = other[h];
      }
      if (onto_[l] != other[h] || one.bandwidth != its.bandwidth || one.latency != its.latency) {
        return false;
      }
    }
    return true;
  }

  const MachineModel& machine_;
  std::vector<std::int64_t> uses_, met_;  // a link: by how many routes; of those that were met
  std::vector<int> onto_, touched_;
  std::vector<std::vector<int>> users_;  // a memory
};

}  // namespace

std::vector<int> symmetric_devices(const MachineModel& machine, const Graph& graph) {
  // Where a node has several devices, sums inside nodes depend on who is in which.
  std::map<int, int> in_node;
  for (int d = 0; d < machine.devices(); ++d) ++in_node[graph.node(d)];
  const auto of_one_kind = [&](int a, int b) {
    const int one = graph.node(a), other = graph.node(b);
    return one == other || (in_node[one] == 1 && in_node[other] == 1);
  };
  std::vector<int> first(static_cast<std::size_t>(machine.devices()));
  std::iota(first.begin(), first.end(), 0);
  Exchanges exchanges(machine);
  // Neighbours in number suffice where machines are numbered node by node.
  for (int d = 1; d < machine.devices(); ++d) {
    if (of_one_kind(d - 1, d) && exchanges.possible(d - 1, d)) first[d] = first[d - 1];
  }
  return first;
}

void make_canonical(const std::vector<int>& symmetric, const std::vector<OpId>& operators,
                    const PricedStrategy& strategy, PartialStrategy& configs) {
  const int machine_devices = static_cast<int>(symmetric.size());
  std::vector<char> used(static_cast<std::size_t>(machine_devices), 0);
  IdVector<OpId, char> changes(strategy.size(), 0);
  for (const auto& [op, config] : configs) changes[op] = 1;
  int unused = machine_devices;
  for (OpId op : operators) {
    if (changes[op]) continue;
    for (int device : strategy[op].devices) {
      unused -= !used[device];
      used[device] = 1;
    }
    if (unused == 0) return;  // as a rule, after a few operators
  }
  std::vector<int> onto(static_cast<std::size_t>(machine_devices));
  std::iota(onto.begin(), onto.end(), 0);
  std::vector<char> taken = used;
  const std::vector<int>& devices = configs.front().second.devices;  // the same in all of them
  bool moved = false;
  for (int device : devices) {
    if (taken[device] && onto[device] != device) continue;  // a device that repeats
    if (used[device]) continue;
    int least = symmetric[device];
    while (least < device && (taken[least] || symmetric[least] != symmetric[device])) ++least;
    taken[least] = 1;
    onto[device] = least;
    moved = moved || least != device;
  }
  if (!moved) return;
  for (auto& [op, config] : configs) {
    for (int& device : config.devices) device = onto[device];
    std::sort(config.devices.begin(), config.devices.end());
  }
}

}  // namespace flexlegion
