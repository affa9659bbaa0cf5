// What the tasks of a launch touch of a tensor, and which tiles of two launches overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/shards.h"
#include "support/rect.h"

namespace flexlegion {

// Finds among rectangles those that overlap another one.
//
// Tiles that follow from access maps lie in rows: in each dimension there are few different
// intervals, whose lower and upper ends rise together, and most combinations of these are tiles. A
// rectangle touches a range of the intervals in each dimension, which is found by bisection, and
// the product of these ranges has all that it overlaps. Where rectangles do not lie like that, one
// is compared after the other.
class RectIndex {
 public:
  explicit RectIndex(const std::vector<Rect>& rects);  // which have to live as long

  struct Item {
    int rect;             // index
    std::int64_t volume;  // elements in common
  };
  // Appends what `rect` overlaps, in ascending order.
  void find(const Rect& rect, std::vector<Item>& items) const;
  // Calls `visit(index, elements in common)` for the same, in any order.
  template <typename Visit>
  void visit(const Rect& rect, Visit&& visit) const;

 private:
  struct Row {  // the intervals of a dimension, in ascending order
    std::vector<std::int64_t> lo, hi;
  };
  bool lay_out();

  const std::vector<Rect>* rects_;
  std::vector<Row> rows_;
  std::vector<int> table_;  // a combination of intervals, row-major: a rectangle, or -1
};

template <typename Visit>
void RectIndex::visit(const Rect& rect, Visit&& visit) const {
  const auto common = [&rect](int d, std::int64_t lo, std::int64_t hi) {
    return std::max<std::int64_t>(0, std::min(rect.hi[d], hi) - std::max(rect.lo[d], lo));
  };
  if (table_.empty()) {
    for (std::size_t i = 0; i < rects_->size(); ++i) {
      const Rect& other = (*rects_)[i];
      std::int64_t volume = other.rank > 0 ? 1 : 0;
      for (int d = 0; d < other.rank; ++d) volume *= common(d, other.lo[d], other.hi[d]);
      if (volume > 0) visit(static_cast<int>(i), volume);
    }
    return;
  }
  const int rank = static_cast<int>(rows_.size());
  std::size_t first[kMaxRegionRank], last[kMaxRegionRank], at[kMaxRegionRank];
  for (int d = 0; d < rank; ++d) {
    const auto& [lo, hi] = rows_[static_cast<std::size_t>(d)];
    first[d] = 0;
    if (lo.size() > 1) {
      first[d] =
          static_cast<std::size_t>(std::upper_bound(hi.begin(), hi.end(), rect.lo[d]) - hi.begin());
    }
    last[d] = first[d];
    while (last[d] < lo.size() && lo[last[d]] < rect.hi[d]) ++last[d];
    at[d] = first[d];
    if (first[d] == last[d]) return;
  }
  // One line of combinations, along the last dimension, after the other.
  const Row& line = rows_.back();
  for (int d = 0; d >= 0;) {
    std::size_t place = 0;
    std::int64_t across = 1;
    for (int e = 0; e < rank - 1; ++e) {
      const auto& [lo, hi] = rows_[static_cast<std::size_t>(e)];
      place = place * lo.size() + at[e];
      across *= common(e, lo[at[e]], hi[at[e]]);
    }
    place *= line.lo.size();
    for (std::size_t i = first[rank - 1]; i < last[rank - 1]; ++i) {
      const std::int64_t volume = across * common(rank - 1, line.lo[i], line.hi[i]);
      if (volume > 0 && table_[place + i] >= 0) visit(table_[place + i], volume);
    }
    for (d = rank - 2; d >= 0 && ++at[d] == last[d]; --d) at[d] = first[d];
  }
}

struct Tiles {
  explicit Tiles(const std::vector<Rect>& of_tasks);
  Tiles(const Tiles&) = delete;

  const Rect& of_task(int k) const { return parts.rects[parts.of_part[k]]; }

  // The first of the tasks that computed a distinct rectangle of an output, if it has so many
  // partial values: they stand in a row, as reductions are the last dimensions.
  int first_task(int rect, int partial_values) const {
    return last_task[rect] - partial_values + 1;
  }

  // All tasks that have a distinct rectangle, in ascending order.
  struct Range {
    const int *first, *last;
    const int* begin() const { return first; }
    const int* end() const { return last; }
  };
  Range tasks_of(int rect) const {
    return {tasks.data() + first_of[rect], tasks.data() + first_of[rect + 1]};
  }

  DistinctRects parts;               // the rectangles, and which of them each task has
  std::vector<int> last_task;        // a distinct rectangle: the last task that has it
  std::vector<int> tasks, first_of;  // the tasks by rectangle; and where those of each begin
  RectIndex index;
};

// Calls `visit(reader, writer, elements in common)` for tasks that read what others wrote: so many
// partial values of each rectangle, all of which are read.
template <typename Visit>
void for_each_exchange(const Tiles& read, const Tiles& written, int partial_values, Visit visit) {
  for (int j = 0; j < static_cast<int>(read.parts.of_part.size()); ++j) {
    written.index.visit(read.of_task(j), [&](int rect, std::int64_t elements) {
      for (int k = written.first_task(rect, partial_values); k <= written.last_task[rect]; ++k) {
        visit(j, k, elements);
      }
    });
  }
}

// Of two launches, which distinct rectangles overlap, and in how many elements.
struct Overlaps {
  Overlaps(const Tiles& a, const Tiles& b);

  std::vector<int> first;              // by rectangle of the first launch, and one more
  std::vector<RectIndex::Item> items;  // rectangles of the second one
};

}  // namespace flexlegion
