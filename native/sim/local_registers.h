// What registers for tensors of any shape take (plan/registers.h), while tenants come and go.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/machine_model.h"

namespace flexlegion {

class LocalRegisters {
 public:
  LocalRegisters(const MachineModel& machine, int registers);

  void clear();
  // A tenant comes (sign 1) or goes (-1): tenants of one register and key share it. `parts`: the
  // bytes that it takes in the parts of devices. What memories hold of it is added to `memory`.
  void change(int number, std::uint64_t key, const std::vector<std::pair<int, std::int64_t>>& parts,
              int sign, std::vector<std::int64_t>& memory);

  std::int64_t bytes(int memory) const { return bytes_[static_cast<std::size_t>(memory)]; }

 private:
  // The sizes of the tenants in a device's part, the largest first, and how many there are of each.
  // Networks have few sizes.
  using Sizes = std::vector<std::pair<std::int64_t, int>>;
  struct Shared {
    std::uint64_t key;
    std::vector<Sizes> of_device;
  };

  const MachineModel& machine_;
  std::vector<std::vector<Shared>> registers_;
  std::vector<std::int64_t> bytes_;  // a memory
};

}  // namespace flexlegion
