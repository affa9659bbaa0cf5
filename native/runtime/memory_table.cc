#include "runtime/memory_table.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

namespace {

// In the order of Content.
constexpr std::array<const char*, kContents> kHeadings = {"weights",     "gradients", "optimizer",
                                                          "activations", "batches",   "other"};

// Columns are as wide as their widest cell; all but the first are aligned to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (const auto& row : rows) {
    if (&row != &rows.front()) text += '\n';
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[c].size());
      const std::string blanks(width - row[c].size(), ' ');
      text += c == 0 ? row[c] + blanks : "  " + blanks + row[c];
    }
  }
  return text;
}

std::string mib(std::int64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20); }

}  // namespace

std::string name_of(const Memory& memory) {
  std::vector<std::string> names;
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

std::string memory_table(const std::map<Memory, ContentBytes>& needed,
                         const std::map<Memory, std::int64_t>& others) {
  std::vector<std::vector<std::string>> rows = {{"MiB"}};
  rows.front().insert(rows.front().end(), kHeadings.begin(), kHeadings.end());
  for (const char* heading : {"total", "taken", "capacity"}) rows.front().push_back(heading);
  for (const auto& [memory, contents] : needed) {
    std::vector<std::string> row = {name_of(memory)};
    for (std::int64_t bytes : contents) row.push_back(mib(bytes));
    row.push_back(mib(std::accumulate(contents.begin(), contents.end(), std::int64_t{0})));
    const auto taken = others.find(memory);
    row.push_back(mib(taken == others.end() ? 0 : taken->second));
    row.push_back(std::to_string(memory.capacity() >> 20));
    rows.push_back(std::move(row));
  }
  return aligned(rows) +
         "\nactivations: with their gradients; batches: the present one and the one that is "
         "staged; taken: by other models and as scratch memory";
}

}  // namespace flexlegion
