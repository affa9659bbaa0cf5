#include "plan/graph.h"

#include <stdexcept>

namespace flexlegion {

namespace {

// Division that rounds towards minus infinity, respectively plus infinity; den > 0.
std::int64_t floor_div(std::int64_t a, std::int64_t den) {
  return a >= 0 ? a / den : -((-a + den - 1) / den);
}
std::int64_t ceil_div(std::int64_t a, std::int64_t den) { return -floor_div(-a, den); }

}  // namespace

const Operand& Operator::primary_output() const {
  for (const Operand& operand : operands) {
    if (operand.role == Role::output) return operand;
  }
  throw std::invalid_argument("operator '" + name + "' has no output");
}

Rect accessed(const Operand& operand, const Tensor& tensor, const Rect& tile) {
  Rect r = Rect::of_shape(tensor.shape);
  for (int d = 0; d < r.rank; ++d) {
    const DimMap& m = operand.map[d];
    if (m.out_dim < 0) continue;
    const std::int64_t lo = floor_div(tile.lo[m.out_dim] * m.num, m.den) + m.lo_offset;
    const std::int64_t hi = ceil_div(tile.hi[m.out_dim] * m.num, m.den) + m.hi_offset;
    r.lo[d] = std::clamp(lo, r.lo[d], r.hi[d]);
    r.hi[d] = std::max(r.lo[d], std::min(r.hi[d], hi));  // nothing, rather than less than nothing
  }
  return r;
}

Rect tile_of(const Rect& whole, const std::vector<int>& degrees, int k) {
  Rect tile = whole;
  for (int d = whole.rank - 1; d >= 0; --d) {
    const std::int64_t part = k % degrees[d];
    k /= degrees[d];
    tile.lo[d] = whole.lo[d] + part * whole.extent(d) / degrees[d];
    tile.hi[d] = whole.lo[d] + (part + 1) * whole.extent(d) / degrees[d];
  }
  return tile;
}

}  // namespace flexlegion
