// The tasks that are ready, the first of them first: by ready time, then by turn, then by number.
//
// (ready time, turn, task) is one number of 128 bits, so one comparison orders two of them. Four
// children a node halve the depth of a binary heap, and stand in one or two cache lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flexlegion {

class EventHeap {
 public:
  bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

  std::int64_t first_time() const { return static_cast<std::int64_t>(entries_[0] >> 64); }
  void push(std::int64_t ready, std::uint32_t task) { push(ready, 0, task); }
  // Up the heap, from the end, past all that come later.
  void push(std::int64_t ready, std::uint32_t turn, std::uint32_t task) {
    const auto entry = (static_cast<Entry>(ready) << 64) | (static_cast<Entry>(turn) << 32) | task;
    std::size_t i = entries_.size();
    entries_.push_back(entry);
    while (i > 0) {
      const std::size_t parent = (i - 1) / 4;
      if (entries_[parent] <= entry) break;
      entries_[i] = entries_[parent];
      i = parent;
    }
    entries_[i] = entry;
  }

  // Takes the first one out. The last entry goes down from the top, below all that come before it.
  std::uint32_t pop() {
    const auto task = static_cast<std::uint32_t>(entries_[0]);
    const Entry moved = entries_.back();
    entries_.pop_back();
    const std::size_t n = entries_.size();
    std::size_t i = 0;
    while (4 * i + 1 < n) {
      std::size_t least = 4 * i + 1;
      const std::size_t end = std::min(least + 4, n);
      for (std::size_t c = least + 1; c < end; ++c) {
        if (entries_[c] < entries_[least]) least = c;
      }
      if (moved <= entries_[least]) break;
      entries_[i] = entries_[least];
      i = least;
    }
    if (n > 0) entries_[i] = moved;
    return task;
  }

 private:
  using Entry = unsigned __int128;
  std::vector<Entry> entries_;
};

}  // namespace flexlegion
