// What the tasks of two launches exchange, summed up for each device.
//
// Task k of either launch is on device k. Every reader has a message from each writer whose tile
// overlaps its own. On 64 devices that may be 4,096 messages, and OptCNN asks for hundreds of
// thousands of such exchanges, so they are not sent one by one where both launches' tiles form
// grids, and the machine's ways between nodes divide into ways out and ways in (search/traffic.h):
//
// - In each dimension, an interval overlaps few others, in few different lengths. A tile's messages
//   are the combinations of these, so their number by size follows from one short list for each
//   dimension.
// - Messages inside a node are sent one by one, and taken off these totals. What is left is what
//   the device exchanges with other nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "search/traffic.h"
#include "sim/tiles.h"

namespace flexlegion {

// The tiles of a launch's tasks, and their grid.
struct TileGrid {
  explicit TileGrid(const std::vector<Rect>& of_tasks);
  TileGrid(const TileGrid&) = delete;

  struct Row {  // the different intervals of a dimension, whose ends rise together
    std::vector<std::int64_t> lo, hi;
  };

  Tiles tiles;
  // Whether all combinations of intervals are tiles, each of as many tasks as any other.
  bool full = false;
  int tasks_each = 0;
  std::vector<Row> rows;
  std::vector<int> at;  // [distinct rectangle * rank + dimension]: its interval in `rows`
};

// Adds the messages to `values`, from `written` to `read`; and to each of `partial`, by writer, the
// bytes that its readers have of its tile. So many partial values of each tile are sent, all of
// which every reader needs. `by_grid`: whether grids may be made use of, which changes nothing but
// the time that it takes.
void exchange(const TileGrid& written, const TileGrid& read, int partial_values,
              std::int64_t element_bytes, Traffic& values, std::vector<std::int64_t>& partial,
              bool by_grid = true);

}  // namespace flexlegion
