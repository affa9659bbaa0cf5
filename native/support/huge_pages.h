// Large memory in large pages: faults and look-ups of 4 KiB pages take a good part of the time of
// what streams through it. Where the system gives huge pages on request ("madvise"), this asks.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

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

}  // namespace flexlegion
