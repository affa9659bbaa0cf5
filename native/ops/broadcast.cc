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
    if (n == 1) continue;
    const std::int64_t step = spreads ? 0 : strides[mine];
    if (rank > 0 && stride[rank - 1] == n * step) {
      extent[rank - 1] *= n;
    } else {
      extent[rank++] = n;
    }
    stride[rank - 1] = step;
  }
}

}  // namespace flexlegion
