// take: elements of one dimension, by numbers that are constants.
//
// Inputs: x; `numbers` (1, m), the element that each output element is; and, so that gradients are
// sums of one order, `order` (1, m), the outputs sorted by number, and `starts` (1, e + 1), where
// in it those of each of x's e elements begin. A task has x's dimension whole, and a part of the
// outputs.
#pragma once

#include "ops/kernel.h"

namespace flexlegion {

// A tile as (outer, elements of the dimension, inner), dense.
struct TakeTile {
  std::int64_t outer = 1, in = 0, out = 0, inner = 1;
  std::int64_t out_lo = 0;

  TakeTile(const TensorView& x, const TensorView& y, int axis)
      : in(x.extent(axis)), out(y.extent(axis)), out_lo(y.tile.lo[axis]) {
    for (int d = 0; d < y.rank(); ++d) {
      if (d < axis) outer *= y.extent(d);
      if (d > axis) inner *= y.extent(d);
    }
  }
};

}  // namespace flexlegion
