// The device topology D as the simulation needs it: who shares a memory with whom, and which
// communication devices a transfer between two memories passes.
#pragma once

#include <cstdint>
#include <vector>

namespace flexlegion {

// A hardware connection is a device for communication tasks (FlexFlow, section 5.1).
struct CommunicationDevice {
  std::int64_t bandwidth = 0;  // bytes a second
  std::int64_t latency = 0;    // ns
};

struct MachineModel {
  std::vector<int> memory_of;  // a compute device: its memory; equal ones exchange nothing
  int memories = 0;
  std::vector<CommunicationDevice> links;
  // [from * memories + to]: the links that a transfer passes, in order.
  std::vector<std::vector<int>> routes;

  int devices() const { return static_cast<int>(memory_of.size()); }
  const std::vector<int>& route(int from, int to) const {
    return routes[static_cast<std::size_t>(from * memories + to)];
  }
};

}  // namespace flexlegion
