// Large memory in large pages: faults and look-ups of 4 KiB pages take a good part of the time of
// what streams through it. Where the system gives huge pages on request ("madvise"), this asks.
#pragma once

#include <sys/mman.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace flexlegion {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Asks for the huge pages that lie within the memory; best before its first use.
inline void use_huge_pages(void* memory, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t from = (first + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t to = (first + bytes) / kHugePage * kHugePage;
  // A system without them says no, which changes nothing.
  if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
}

// The addresses [first, end) of a mapping.
struct MappedRange {
  std::uintptr_t first = 0, end = 0;
  bool contains(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return first <= at && at < end;
  }
};

// Asks for huge pages in the whole mapping that an address lies in, and returns it; just the
// address where the system does not tell. For a pool of much memory, of which little was used yet:
// of pieces smaller than some huge pages, hardly any of the pages lies within one piece.
inline MappedRange use_huge_pages_around(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "r"),
                                                             &std::fclose);
  MappedRange range;
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &range.first, &range.end) == 2 &&
        range.contains(address)) {
      madvise(reinterpret_cast<void*>(range.first), range.end - range.first, MADV_HUGEPAGE);
      return range;
    }
  }
  return {at, at + 1};
}

}  // namespace flexlegion
