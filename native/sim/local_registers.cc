// A device's part of a register is as large as its largest tenant (local_registers.h).
//
// Of each part, the sizes are kept in descending order with their counts, so that the next one is
// known when the largest goes. A change costs the number of different sizes, which are few.
#include "sim/local_registers.h"

#include <algorithm>

namespace flexlegion {

LocalRegisters::LocalRegisters(const MachineModel& machine, int registers)
    : machine_(machine),
      registers_(static_cast<std::size_t>(registers)),
      bytes_(static_cast<std::size_t>(machine.memories), 0) {}

void LocalRegisters::clear() {
  for (auto& shared : registers_) shared.clear();
  std::fill(bytes_.begin(), bytes_.end(), 0);
}

void LocalRegisters::change(int number, std::uint64_t key,
                            const std::vector<std::pair<int, std::int64_t>>& parts, int sign,
                            std::vector<std::int64_t>& memory) {
  auto& all = registers_[static_cast<std::size_t>(number)];
  auto shared =
      std::find_if(all.begin(), all.end(), [key](const Shared& its) { return its.key == key; });
  if (shared == all.end()) {
    all.push_back({key, std::vector<Sizes>(static_cast<std::size_t>(machine_.devices()))});
    shared = all.end() - 1;
  }
  for (const auto& [device, bytes] : parts) {
    Sizes& sizes = shared->of_device[static_cast<std::size_t>(device)];
    const std::int64_t before = sizes.empty() ? 0 : sizes.front().first;
    auto at = sizes.begin();
    while (at != sizes.end() && at->first > bytes) ++at;
    if (at == sizes.end() || at->first < bytes) at = sizes.insert(at, {bytes, 0});
    at->second += sign;
    if (at->second == 0) sizes.erase(at);
    const std::int64_t now = sizes.empty() ? 0 : sizes.front().first;
    const auto m = static_cast<std::size_t>(machine_.memory_of[static_cast<std::size_t>(device)]);
    bytes_[m] += now - before;
    memory[m] += now - before;
  }
}

}  // namespace flexlegion
