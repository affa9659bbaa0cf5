// The device topology D as the simulation needs it: who shares a memory with whom, and which
// communication devices a transfer between two memories passes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/routes.h"

namespace flexlegion {

// A hardware connection is a device for communication tasks (FlexFlow, section 5.1).
struct CommunicationDevice {
  std::int64_t bandwidth = 0;  // bytes a second
  std::int64_t latency = 0;    // ns
};

struct MachineModel {
  std::vector<int> memory_of;  // a compute device: its memory; equal ones exchange nothing
  std::vector<int> kind_of;    // a compute device: a number; equal ones take equal times
  int memories = 0;
  int kinds = 0;
  std::vector<std::int64_t> capacity;  // a memory: bytes
  std::vector<CommunicationDevice> links;
  Routes routes;
  std::vector<bool> single_entry;  // a memory: all routes to it end with the same link

  int devices() const { return static_cast<int>(memory_of.size()); }
  // Links are devices too: they come after the compute devices.
  int all_devices() const { return devices() + static_cast<int>(links.size()); }
  std::vector<std::vector<int>> devices_by_memory() const {
    std::vector<std::vector<int>> users(static_cast<std::size_t>(memories));
    for (int d = 0; d < devices(); ++d) {
      users[static_cast<std::size_t>(memory_of[static_cast<std::size_t>(d)])].push_back(d);
    }
    return users;
  }
  // The links that a transfer passes, in order.
  Route route(int from, int to) const { return routes(from, to); }
};

// Longer times are cut to this, so that their sums stay within 64 bits: ns, some three hours.
constexpr std::int64_t kMaxTime = 10'000'000'000'000;
constexpr std::int32_t kContentionUnit = 1000, kMaxContention = 100 * kContentionUnit;

// The time that `bytes` take, in ns, rounded up. In two ways, as bytes * 1e9 would leave 64 bits at
// 8 GB.
inline std::int64_t transfer_time(std::int64_t bytes, std::int64_t bandwidth) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (bytes < 8 * kSecond) {
    return std::min((bytes * kSecond + bandwidth - 1) / bandwidth, kMaxTime);
  }
  const auto wide = static_cast<unsigned __int128>(bytes) * kSecond +
                    static_cast<unsigned __int128>(bandwidth) - 1;
  const auto time = wide / static_cast<unsigned __int128>(bandwidth);
  return time > static_cast<unsigned __int128>(kMaxTime) ? kMaxTime
                                                         : static_cast<std::int64_t>(time);
}

}  // namespace flexlegion
