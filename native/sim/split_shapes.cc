// A shape is looked for by a hash of its extents, among those of the same hash one by one. Shapes
// are numbered as tasks first have them, so equal lists of splits give equal numbers.
//
// Costs: tasks times operands times dimensions.
#include "sim/split_shapes.h"

#include <algorithm>
#include <cstddef>

#include "flexlegion_core.h"

namespace flexlegion {

SplitShapes::SplitShapes(const Graph& graph, OpId op, const std::vector<std::vector<int>>& degrees)
    : width_(graph.operators[op].operands.size() * FL_MAX_RANK) {
  const auto& operands = graph.operators[op].operands;
  std::vector<std::int64_t> row;
  for (std::vector<int> its : degrees) {
    // The parts of a linear input (DimKind::part) share out its partial values, and each of them
    // touches the whole tile. So tiles are taken as if there were one part, and the shape of a tile
    // is listed once for each part: these tasks follow each other, as parts are the last dimension.
    const int parts = parts_of(graph.operators[op], its);
    if (parts > 1) its.back() = 1;
    std::vector<std::vector<Rect>> touched;
    for (const Operand& operand : operands) {
      touched.push_back(accessed_rects(graph, op, operand, its));
    }
    const std::size_t tiles = touched.empty() ? 0 : touched.front().size();
    for (std::size_t k = 0; k < tiles; ++k) {
      row.assign(width_, 0);
      for (std::size_t i = 0; i < touched.size(); ++i) {
        const Rect& rect = touched[i][k];
        for (int d = 0; d < rect.rank; ++d) row[i * FL_MAX_RANK + d] = rect.extent(d);
      }
      shape_of_.insert(shape_of_.end(), static_cast<std::size_t>(parts), number(row.data()));
    }
  }
}

// The number of a shape, which may be new. Shapes of one hash are chained: `latest_` has the last
// one, and `before_` leads from each to the one found before it.
std::int32_t SplitShapes::number(const std::int64_t* extents) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a, a number at a time
  for (std::size_t i = 0; i < width_; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(extents[i])) * 1099511628211u;
  }
  const auto [latest, fresh] = latest_.try_emplace(hash, -1);
  for (std::int32_t s = latest->second; s >= 0; s = before_[static_cast<std::size_t>(s)]) {
    const auto its = extents_.begin() + static_cast<std::ptrdiff_t>(s * width_);
    if (std::equal(extents, extents + width_, its)) return s;
  }
  before_.push_back(latest->second);
  latest->second = static_cast<std::int32_t>(before_.size()) - 1;
  extents_.insert(extents_.end(), extents, extents + width_);
  return latest->second;
}

}  // namespace flexlegion
