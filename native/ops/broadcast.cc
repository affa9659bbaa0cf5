// How an operand that is broadcast lies beside the output: one stride for each dimension of the
// output, 0 where the operand is repeated.
//
// Neighbouring dimensions that follow each other in memory become one: an operand of the output's
// own shape ends as a single dimension of stride 1, a bias over the channels as two. So the loops
// that use a Spread divide as few indices as possible.
#include "ops/broadcast.h"

#include <array>

namespace flexlegion {

Spread::Spread(const TensorView& operand, const TensorView& output, bool packed) {
  std::array<std::int64_t, kMaxRegionRank> strides = operand.stride;
  if (packed) strides = dense_view(nullptr, operand.tile, operand.shape).stride;
  for (int d = 0; d < output.rank(); ++d) {
    const std::int64_t n = output.extent(d);
    const int mine = matching_dim(d, operand.rank(), output.rank());
    const bool spreads = mine < 0 || (operand.shape[mine] == 1 && output.shape[d] != 1);
    broadcast = broadcast || spreads;
    // A dimension of extent 1 is never stepped along: it may not keep its neighbours from joining.
    if (n == 1) continue;
    const std::int64_t step = spreads ? 0 : strides[mine];
    // A whole run of this dimension takes as many elements as one step of the dimension before. The
    // condition holds for two repeated dimensions as well, whose strides are 0.
    if (rank > 0 && stride[rank - 1] == n * step) {
      extent[rank - 1] *= n;
    } else {
      extent[rank++] = n;
    }
    stride[rank - 1] = step;
  }
}

}  // namespace flexlegion
