// Totals of messages from the lengths of overlaps in each dimension (exchanges.h).
#include "search/exchanges.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace flexlegion {

namespace {

// How many overlaps there are of each size: elements, and a number of them.
struct Sized {
  std::int64_t size, number;
};

// For each interval of a dimension, its overlaps with those of another launch.
struct Along {
  std::vector<Sized> sizes;
  std::vector<int> first;  // of each interval, in `sizes`; and the end of the last one
};

// Both rise, so the intervals that overlap the next one begin no earlier. Neighbours overlap an
// interval in the same length more often than not, and what is told twice counts twice.
Along overlaps(const TileGrid::Row& mine, const TileGrid::Row& its) {
  Along result;
  result.first.reserve(mine.lo.size() + 1);
  result.sizes.reserve(3 * mine.lo.size());
  std::size_t first = 0;
  for (std::size_t i = 0; i < mine.lo.size(); ++i) {
    const std::size_t begin = result.sizes.size();
    result.first.push_back(static_cast<int>(begin));
    while (first < its.hi.size() && its.hi[first] <= mine.lo[i]) ++first;
    for (std::size_t j = first; j < its.lo.size() && its.lo[j] < mine.hi[i]; ++j) {
      const std::int64_t size = std::min(mine.hi[i], its.hi[j]) - std::max(mine.lo[i], its.lo[j]);
      if (result.sizes.size() > begin && result.sizes.back().size == size) {
        ++result.sizes.back().number;
      } else {
        result.sizes.push_back({size, 1});
      }
    }
  }
  result.first.push_back(static_cast<int>(result.sizes.size()));
  return result;
}

// What a tile exchanges with all tasks of the other launch.
struct Total {
  std::int64_t bytes = 0, counted = 0;
};

// Of each distinct rectangle of `mine`: its messages with `each` tasks for every tile of `its`.
std::vector<Total> totals(const TileGrid& mine, const TileGrid& its, std::int64_t each,
                          std::int64_t element_bytes, const Traffic& traffic) {
  const std::size_t rank = mine.rows.size();
  std::vector<Along> by_dimension;
  for (std::size_t d = 0; d < rank; ++d) {
    by_dimension.push_back(overlaps(mine.rows[d], its.rows[d]));
  }
  std::vector<Total> result(mine.tiles.parts.rects.size());
  std::vector<Sized> sizes, more;
  for (std::size_t rect = 0; rect < result.size(); ++rect) {
    sizes.assign(1, {1, each});
    for (std::size_t d = 0; d < rank; ++d) {
      more.clear();
      const auto& [along, first] = by_dimension[d];
      const auto interval = static_cast<std::size_t>(mine.at[rect * rank + d]);
      for (int i = first[interval]; i < first[interval + 1]; ++i) {
        for (const Sized& across : sizes) {
          more.push_back({across.size * along[i].size, across.number * along[i].number});
        }
      }
      std::swap(sizes, more);
    }
    Total& total = result[rect];
    for (const Sized& of : sizes) {
      const std::int64_t bytes = of.size * element_bytes;
      total.bytes += of.number * bytes;
      total.counted += of.number * traffic.counted(bytes);
    }
  }
  return result;
}

std::int64_t common(const Rect& a, const Rect& b) {
  std::int64_t volume = 1;
  for (int d = 0; d < a.rank && volume > 0; ++d) {
    volume *= std::max<std::int64_t>(0, std::min(a.hi[d], b.hi[d]) - std::max(a.lo[d], b.lo[d]));
  }
  return volume;
}

// Waits for the longest way of a message between two nodes. Devices that send or receive some are
// looked at by their ways, longest first, so that the first few pairs that exchange anything
// decide.
void wait_between_nodes(const Tiles& from, const Tiles& to, const std::vector<char>& sends,
                        const std::vector<char>& receives, Traffic& values) {
  const Ways& ways = values.ways();
  std::int64_t longest = -1;
  for (int k : ways.by_way_out()) {
    if (!sends[static_cast<std::size_t>(k)]) continue;
    for (int j : ways.by_way_in()) {
      const std::int64_t latency = ways.out(k).latency + ways.in(j).latency;
      if (latency <= longest) break;
      if (!receives[static_cast<std::size_t>(j)] || ways.node(k) == ways.node(j)) continue;
      if (common(from.of_task(k), to.of_task(j)) == 0) continue;
      longest = latency;
      break;
    }
  }
  values.wait_for(std::max<std::int64_t>(longest, 0));
}

}  // namespace

TileGrid::TileGrid(const std::vector<Rect>& of_tasks) : tiles(of_tasks) {
  const std::vector<Rect>& rects = tiles.parts.rects;
  const auto rank = static_cast<std::size_t>(rects.front().rank);
  if (rank == 0) return;
  std::size_t combinations = 1;
  std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
  rows.resize(rank);
  at.resize(rects.size() * rank);
  for (std::size_t d = 0; d < rank; ++d) {
    intervals.clear();
    for (const Rect& rect : rects) {
      if (rect.empty()) return;
      intervals.emplace_back(rect.lo[d], rect.hi[d]);
    }
    std::sort(intervals.begin(), intervals.end());
    intervals.erase(std::unique(intervals.begin(), intervals.end()), intervals.end());
    for (const auto& [lo, hi] : intervals) {
      if (!rows[d].hi.empty() && hi < rows[d].hi.back()) return;
      rows[d].lo.push_back(lo);
      rows[d].hi.push_back(hi);
    }
    for (std::size_t rect = 0; rect < rects.size(); ++rect) {
      const std::pair<std::int64_t, std::int64_t> its{rects[rect].lo[d], rects[rect].hi[d]};
      const auto place = std::lower_bound(intervals.begin(), intervals.end(), its);
      at[rect * rank + d] = static_cast<int>(place - intervals.begin());
    }
    combinations *= intervals.size();
  }
  // Distinct rectangles are distinct combinations, so as many are all.
  if (combinations != rects.size()) return;
  tasks_each = tiles.first_of[1] - tiles.first_of[0];
  for (std::size_t rect = 0; rect < rects.size(); ++rect) {
    if (tiles.first_of[rect + 1] - tiles.first_of[rect] != tasks_each) return;
  }
  full = true;
}

void exchange(const TileGrid& written, const TileGrid& read, int partial_values,
              std::int64_t element_bytes, Traffic& values, std::vector<std::int64_t>& partial,
              bool by_grid) {
  const Ways& ways = values.ways();
  const Tiles &from = written.tiles, &to = read.tiles;
  if (!by_grid || !ways.by_node() || !written.full || !read.full) {
    for_each_exchange(to, from, partial_values, [&](int j, int k, std::int64_t elements) {
      values.send(k, j, elements * element_bytes);
      partial[static_cast<std::size_t>(k)] += elements * element_bytes;
    });
    return;
  }
  const std::vector<Total> sent = totals(written, read, read.tasks_each, element_bytes, values);
  const std::vector<Total> had = totals(read, written, partial_values, element_bytes, values);
  const int writers = static_cast<int>(from.parts.of_part.size());
  const int readers = static_cast<int>(to.parts.of_part.size());
  // Of the tasks that have a tile, the last ones send it.
  const auto sends = [&](int k) {
    return k < writers && k >= from.first_task(from.parts.of_part[k], partial_values);
  };
  for (int k = 0; k < writers; ++k) {
    if (sends(k)) partial[static_cast<std::size_t>(k)] += sent[from.parts.of_part[k]].bytes;
  }
  std::vector<std::int64_t> inside;  // by reader of the node: what counts of its own node
  const std::size_t all = static_cast<std::size_t>(ways.machine().devices());
  std::vector<char> sends_out(all, 0), has_in(all, 0);
  for (const std::vector<int>& devices : ways.nodes()) {
    inside.assign(devices.size(), 0);
    for (int k : devices) {
      if (!sends(k)) continue;
      std::int64_t others = sent[from.parts.of_part[k]].counted;
      for (std::size_t i = 0; i < devices.size(); ++i) {
        const int j = devices[i];
        if (j >= readers) continue;
        const std::int64_t bytes = common(from.of_task(k), to.of_task(j)) * element_bytes;
        if (bytes == 0) continue;
        values.send(k, j, bytes);
        others -= values.counted(bytes);
        inside[i] += values.counted(bytes);
      }
      if (others == 0) continue;
      values.leave(k, others);
      sends_out[static_cast<std::size_t>(k)] = 1;
    }
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const int j = devices[i];
      if (j >= readers) continue;
      const std::int64_t others = had[to.parts.of_part[j]].counted - inside[i];
      if (others == 0) continue;
      values.arrive(j, others);
      has_in[static_cast<std::size_t>(j)] = 1;
    }
  }
  wait_between_nodes(from, to, sends_out, has_in, values);
}

}  // namespace flexlegion
