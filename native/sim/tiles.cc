// Rectangles that overlap another one, without comparing all (tiles.h).
//
// lay_out() finds the rows: in each dimension the different intervals, sorted, whose lower and
// upper ends have to rise together. Then a table over all combinations of intervals names the
// rectangle there. If one interval lies inside another, or if the table would be much larger than
// the list of rectangles (a diagonal, say), the rows are given up, and find() compares one by one.
//
// With rows, a search costs a bisection a dimension and what it finds. For two launches of n tiles
// that overlap in few, this is about n log n instead of n * n.
#include "sim/tiles.h"

#include <algorithm>
#include <numeric>

namespace flexlegion {

RectIndex::RectIndex(const std::vector<Rect>& rects) : rects_(&rects) {
  if (lay_out()) return;
  rows_.clear();
  table_.clear();
}

// Whether the rectangles lie in rows.
bool RectIndex::lay_out() {
  const std::vector<Rect>& rects = *rects_;
  if (rects.size() < 2) return false;  // one is compared as fast as it is found
  const int rank = rects.front().rank;
  std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
  std::size_t combinations = 1;
  for (int d = 0; d < rank; ++d) {
    intervals.clear();
    for (const Rect& rect : rects) {
      if (!rect.empty()) intervals.emplace_back(rect.lo[d], rect.hi[d]);
    }
    std::sort(intervals.begin(), intervals.end());
    intervals.erase(std::unique(intervals.begin(), intervals.end()), intervals.end());
    Row& row = rows_.emplace_back();
    for (const auto& [lo, hi] : intervals) {
      if (!row.hi.empty() && hi < row.hi.back()) return false;
      row.lo.push_back(lo);
      row.hi.push_back(hi);
    }
    combinations *= intervals.size();
    // A table of mostly empty places would cost more than it saves.
    if (combinations > 4 * rects.size()) return false;
  }
  table_.assign(combinations, -1);
  for (std::size_t i = 0; i < rects.size(); ++i) {
    if (rects[i].empty()) continue;
    // The rectangle's place in the table, row-major over the dimensions' intervals.
    std::size_t at = 0;
    for (int d = 0; d < rank; ++d) {
      const Row& row = rows_[static_cast<std::size_t>(d)];
      // Intervals that begin alike are told apart by their ends.
      auto place = std::lower_bound(row.lo.begin(), row.lo.end(), rects[i].lo[d]) - row.lo.begin();
      while (row.hi[static_cast<std::size_t>(place)] != rects[i].hi[d]) ++place;
      at = at * row.lo.size() + static_cast<std::size_t>(place);
    }
    table_[at] = static_cast<int>(i);
  }
  return true;
}

void RectIndex::find(const Rect& rect, std::vector<Item>& items) const {
  const auto begin = static_cast<std::ptrdiff_t>(items.size());
  visit(rect, [&items](int other, std::int64_t volume) { items.push_back({other, volume}); });
  // Only where intervals begin alike, combinations do not come in the order of rectangles.
  const auto ascending = [](const Item& a, const Item& b) { return a.rect < b.rect; };
  if (!std::is_sorted(items.begin() + begin, items.end(), ascending)) {
    std::sort(items.begin() + begin, items.end(), ascending);
  }
}

// Counting sort of the tasks by their rectangle.
Tiles::Tiles(const std::vector<Rect>& of_tasks)
    : parts(distinct(of_tasks)),
      last_task(parts.rects.size()),
      tasks(of_tasks.size()),
      first_of(parts.rects.size() + 1, 0),
      index(parts.rects) {
  for (int rect : parts.of_part) ++first_of[static_cast<std::size_t>(rect) + 1];
  std::partial_sum(first_of.begin(), first_of.end(), first_of.begin());
  std::vector<int> next(first_of.begin(), first_of.end() - 1);
  for (std::size_t k = 0; k < of_tasks.size(); ++k) {
    const auto rect = static_cast<std::size_t>(parts.of_part[k]);
    tasks[static_cast<std::size_t>(next[rect]++)] = static_cast<int>(k);
    last_task[rect] = static_cast<int>(k);
  }
}

// For each rectangle of `a`, those of `b` that it overlaps.
Overlaps::Overlaps(const Tiles& a, const Tiles& b) {
  first.reserve(a.parts.rects.size() + 1);
  items.reserve(a.parts.rects.size() + b.parts.rects.size());
  for (const Rect& mine : a.parts.rects) {
    first.push_back(static_cast<int>(items.size()));
    b.index.find(mine, items);
  }
  first.push_back(static_cast<int>(items.size()));
}

}  // namespace flexlegion
