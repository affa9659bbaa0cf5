// Sums over what an operand repeats.
#pragma once

#include "gpu/view.h"
#include "ops/broadcast.h"

namespace flexlegion::gpu {

// A tile's elements as a table: those that go with one of a broadcast operand are a column.
struct Folded {
  struct Side {
    int rank = 0;
    std::int64_t volume = 1;
    std::int64_t extent[kMaxRegionRank] = {}, stride[kMaxRegionRank] = {};

    FL_DEVICE std::int64_t operator()(std::int64_t i) const {
      std::int64_t offset = 0;
      for (int d = rank - 1; d >= 0; --d) {
        offset += i % extent[d] * stride[d];
        i /= extent[d];
      }
      return offset;
    }
    void add(std::int64_t n, std::int64_t step) {
      extent[rank] = n;
      stride[rank++] = step;
      volume *= n;
    }
  };
  Side rows, columns;  // to the elements of the tile, numbered row-major
  Side kept;           // a column's element of the operand

  Folded(const TensorView& operand, const TensorView& output) {
    const auto dense = dense_view(nullptr, output.tile, output.shape);
    for (int d = 0; d < output.rank(); ++d) {
      const int mine = matching_dim(d, operand.rank(), output.rank());
      if (mine < 0 || (operand.shape[mine] == 1 && output.shape[d] != 1)) {
        rows.add(output.extent(d), dense.stride[d]);
      } else {
        columns.add(output.extent(d), dense.stride[d]);
        kept.add(output.extent(d), operand.stride[mine]);
      }
    }
  }
};

}  // namespace flexlegion::gpu
