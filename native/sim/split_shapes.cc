// What a task touches along a dimension of a tensor follows from its part of one dimension of the
// operator's space. Most parts of a dimension are alike in that: they have one of two lengths, and
// those at the ends may touch less. So rectangles are found for one task of each combination of
// parts that are not alike, and all tasks of that combination have its shape.
//
// A shape is looked for by a hash of its extents, among those of the same hash one by one. Shapes
// are numbered as tasks first have them, so equal lists of splits give equal numbers.
//
// Costs of a split: one step a task; and parts, summed over dimensions, times operands times
// dimensions.
#include "sim/split_shapes.h"

#include <algorithm>
#include <cstddef>

#include "flexlegion_core.h"

namespace flexlegion {

namespace {

// What tasks of an operator touch.
class Touched {
 public:
  Touched(const Graph& graph, const Operator& op)
      : graph_(graph), op_(op), space_(space_of(graph, op)) {}

  // The extents of what a task touches of each operand, until the next one is asked for.
  const std::vector<std::int64_t>& by(const std::vector<int>& degrees, int task) {
    const Rect tile = tile_of(space_, degrees, task);
    row_.assign(op_.operands.size() * FL_MAX_RANK, 0);
    for (std::size_t i = 0; i < op_.operands.size(); ++i) {
      const Operand& operand = op_.operands[i];
      const Rect rect = accessed(operand, graph_.tensors[operand.tensor], tile);
      for (int d = 0; d < rect.rank; ++d) row_[i * FL_MAX_RANK + d] = rect.extent(d);
    }
    return row_;
  }

  // Numbers the parts of dimension `d` by what they touch, as far as they are alike; `step`: so
  // many tasks lie between those of two neighbours, which are the first ones of all other
  // dimensions. Where the first part alone touches an operand (Operand::once), it is like no other
  // one. Returns how many kinds of parts there are.
  int kinds(const std::vector<int>& degrees, std::size_t d, int step, std::vector<int>& of_part) {
    const bool once = std::any_of(op_.operands.begin(), op_.operands.end(),
                                  [d](const Operand& o) { return (o.once >> d & 1) != 0; });
    std::vector<std::vector<std::int64_t>> rows;
    for (int part = 0; part < degrees[d]; ++part) {
      const auto& row = by(degrees, part * step);
      const auto found = std::find(rows.begin() + (once && part > 0 ? 1 : 0), rows.end(), row);
      of_part.push_back(static_cast<int>(found - rows.begin()));
      if (found == rows.end()) rows.push_back(row);
    }
    return static_cast<int>(rows.size());
  }

 private:
  const Graph& graph_;
  const Operator& op_;
  const Rect space_;
  std::vector<std::int64_t> row_;
};

}  // namespace

SplitShapes::SplitShapes(const Graph& graph, OpId op, const std::vector<std::vector<int>>& degrees)
    : width_(graph.operators[op].operands.size() * FL_MAX_RANK) {
  Touched touched(graph, graph.operators[op]);
  for (std::vector<int> its : degrees) {
    // The parts of a linear input (DimKind::part) share out its partial values, and each of them
    // touches the whole tile. So tiles are taken as if there were one part, and the shape of a tile
    // is listed once for each part: these tasks follow each other, as parts are the last dimension.
    const int parts = parts_of(graph.operators[op], its);
    if (parts > 1) its.back() = 1;
    // Combinations of kinds of parts are numbered as tasks are, with the last dimension the
    // fastest.
    const std::size_t rank = its.size();
    std::vector<std::vector<int>> kinds(rank);  // of each part of a dimension
    std::vector<int> stride(rank), part(rank, 0);
    int tiles = 1, combinations = 1;
    for (std::size_t d = rank; d-- > 0;) {
      stride[d] = combinations;
      combinations *= touched.kinds(its, d, tiles, kinds[d]);
      tiles *= its[d];
    }
    std::vector<std::int32_t> known(static_cast<std::size_t>(combinations), -1);
    for (int k = 0; k < tiles; ++k) {
      int combination = 0;
      for (std::size_t d = 0; d < rank; ++d) combination += kinds[d][part[d]] * stride[d];
      std::int32_t& shape = known[static_cast<std::size_t>(combination)];
      if (shape < 0) shape = number(touched.by(its, k).data());
      shape_of_.insert(shape_of_.end(), static_cast<std::size_t>(parts), shape);
      for (std::size_t d = rank; d-- > 0 && ++part[d] == its[d];) part[d] = 0;
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
