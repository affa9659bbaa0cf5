// Tensors of which some dimensions are repeated, beside one that has them all.
#pragma once

#include <cstdint>

#include "gpu/portable.h"
#include "ops/tensor_view.h"

namespace flexlegion {

// Where an operand's elements lie, one for each of the output's tile: where it is broadcast, its
// stride is 0. Dimensions that follow each other in memory are one.
struct Spread {
  int rank = 0;
  std::int64_t extent[kMaxRegionRank] = {}, stride[kMaxRegionRank] = {};
  bool broadcast = false;

  Spread() = default;
  // Strides as if the operand's tile were dense memory, if `packed`.
  Spread(const TensorView& operand, const TensorView& output, bool packed = false);

  // The elements of the tile lie one after the other.
  bool dense() const { return rank == 0 || (rank == 1 && stride[0] == 1); }
  FL_DEVICE std::int64_t operator()(std::int64_t i) const {
    std::int64_t offset = 0;
    for (int d = rank - 1; d > 0; --d) {
      offset += i % extent[d] * stride[d];
      i /= extent[d];
    }
    return rank > 0 ? offset + i * stride[0] : 0;
  }
};

// The dimension of an operand that goes with the output's dimension d, or -1 if it has none: their
// first dimensions go together, the others from the last one on.
inline int matching_dim(int d, int operand_rank, int output_rank) {
  const int mine = d - (output_rank - operand_rank);
  return d == 0 ? 0 : mine > 0 ? mine : -1;
}

}  // namespace flexlegion
