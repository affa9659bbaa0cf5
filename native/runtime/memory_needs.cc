// Names and numbers for the sentence that says which memory is too small, and for the table below
// it: what each memory would hold, by content, and what other programs have taken of it.
#include "runtime/memory_needs.h"

#include <algorithm>

#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

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

const char* option_of(const Memory& memory) {
  return memory.kind() == Memory::GPU_FB_MEM   ? "--fbmem"
         : memory.kind() == Memory::Z_COPY_MEM ? "--zcmem"
                                               : "--sysmem";
}

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
