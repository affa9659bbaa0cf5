// Bytes on the links of a machine, where every device sends to every other one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/machine_model.h"

namespace flexlegion {

// The ways between the devices of a machine, one after the other; and whether every way back passes
// the same kinds of links as the way there, so that what is sent back takes as long as what was
// sent.
//
// On most machines a way between two nodes consists of a way out, which depends on the device that
// sends alone, and a way in, which depends on the device that receives alone. Then whoever knows
// what each device exchanges with other nodes, in all, knows the load of every link
// (search/exchanges.h).
class Ways {
 public:
  explicit Ways(const MachineModel& machine) : Ways(machine, machine.routes.node_of) {}
  // Where memories are in other nodes than the routes say.
  Ways(const MachineModel& machine, const std::vector<int>& node_of);

  struct Way {
    int first = 0, last = 0;  // of `links`; none within a memory
    std::int64_t latency = 0;
  };
  const Way& way(int from, int to) const {
    const auto devices = static_cast<std::size_t>(machine_.devices());
    return ways_[static_cast<std::size_t>(from) * devices + static_cast<std::size_t>(to)];
  }
  const MachineModel& machine() const { return machine_; }
  const std::vector<int>& links() const { return links_; }
  bool back_alike() const { return back_alike_; }

  // Whether ways between nodes are ways out and ways in.
  bool by_node() const { return by_node_; }
  // The devices of each node, and the node of each device.
  const std::vector<std::vector<int>>& nodes() const { return nodes_; }
  int node(int device) const { return node_[static_cast<std::size_t>(device)]; }
  // If by_node(): of a device.
  const Way& out(int device) const { return out_[static_cast<std::size_t>(device)]; }
  const Way& in(int device) const { return in_[static_cast<std::size_t>(device)]; }
  // All devices, those with the longest latencies first.
  const std::vector<int>& by_way_out() const { return by_way_out_; }
  const std::vector<int>& by_way_in() const { return by_way_in_; }

 private:
  void divide(const std::vector<int>& node_of);

  const MachineModel& machine_;
  std::vector<Way> ways_;
  std::vector<int> links_;
  bool back_alike_;
  bool by_node_ = false;
  std::vector<std::vector<int>> nodes_;
  std::vector<int> node_;
  std::vector<Way> out_, in_;
  std::vector<int> by_way_out_, by_way_in_;
};

// Bytes between devices, and how long the links take for them. A message counts as `least` bytes,
// at least.
class Traffic {
 public:
  explicit Traffic(const Ways& ways, std::int64_t least = 0)
      : ways_(ways), least_(least), load_(ways.machine().links.size(), 0) {}

  const Ways& ways() const { return ways_; }
  // What a message of so many bytes counts as.
  std::int64_t counted(std::int64_t bytes) const { return std::max(bytes, least_); }
  // Messages within a memory take nothing.
  void send(int from, int to, std::int64_t bytes) {
    const Ways::Way& way = ways_.way(from, to);
    if (way.first == way.last || bytes == 0) return;
    load(way, counted(bytes));
    wait_for(way.latency);
  }
  // All messages together that a device sends to other nodes, or has from them: as many bytes as
  // they count. wait_for() tells of their latency.
  void leave(int device, std::int64_t counted) { load(ways_.out(device), counted); }
  void arrive(int device, std::int64_t counted) { load(ways_.in(device), counted); }
  void wait_for(std::int64_t latency) { latency_ = std::max(latency_, latency); }
  // The busiest link's time plus the longest way's latency, in ns; and begins anew.
  std::int64_t time();

 private:
  void load(const Ways::Way& way, std::int64_t bytes) {
    for (int i = way.first; i < way.last; ++i) {
      const int link = ways_.links()[static_cast<std::size_t>(i)];
      if (load_[static_cast<std::size_t>(link)] == 0) used_.push_back(link);
      load_[static_cast<std::size_t>(link)] += bytes;
    }
  }

  const Ways& ways_;
  const std::int64_t least_;
  std::vector<std::int64_t> load_;  // a link: bytes
  std::vector<int> used_;
  std::int64_t latency_ = 0;
};

}  // namespace flexlegion
