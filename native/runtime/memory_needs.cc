// Names and numbers for the sentence that says which memory is too small, and for the table below
// it: what each memory would hold, by content, and what other programs have taken of it.
//
// All memories that the program needs are listed, not only the one that is too small: what to
// change depends on what fills it, and on whether others have room.
#include "runtime/memory_needs.h"

#include <algorithm>

#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

// The devices of a memory are numbered one after the other, so the first and the last name them
// all. A memory that no device has as its own is pinned memory of a rank's host.
std::string name_of(const Memory& memory) {
  std::vector<std::string> names;
  // Devices are called by kind and number, as in files of strategies; a memory by the devices that
  // have it.
  int counts[] = {0, 0};
  for (const Device& device : MachineState::get().devices()) {
    const bool gpu = device.kind == DeviceKind::gpu;
    const std::string name = (gpu ? "gpu:" : "cpu:") + std::to_string(counts[gpu ? 1 : 0]++);
    if (device.memory == memory) names.push_back(name);
  }
  if (names.empty()) return "rank " + std::to_string(memory.address_space()) + ", pinned";
  return names.size() == 1 ? names.front() : names.front() + " to " + names.back();
}

// Legate reserves each kind of memory when it starts, so an option of Legate's makes it larger.
const char* option_of(const Memory& memory) {
  return memory.kind() == Memory::GPU_FB_MEM   ? "--fbmem"
         : memory.kind() == Memory::Z_COPY_MEM ? "--zcmem"
                                               : "--sysmem";
}

// `contents` are in the order of fl_held. A name is cut to fit, and ends with a 0 in any case.
std::vector<fl_memory_need> memory_needs(const std::map<Memory, ContentBytes>& needed,
                                         const std::map<Memory, std::int64_t>& others) {
  std::vector<fl_memory_need> needs;
  for (const auto& [memory, contents] : needed) {
    const auto taken = others.find(memory);
    fl_memory_need& need = needs.emplace_back();
    need.taken = taken == others.end() ? 0 : taken->second;
    need.capacity = static_cast<std::int64_t>(memory.capacity());
    name_of(memory).copy(need.name, sizeof(need.name) - 1);
    std::copy(contents.begin(), contents.end(), need.held);
  }
  return needs;
}

}  // namespace flexlegion
