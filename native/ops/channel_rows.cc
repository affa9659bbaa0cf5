// Sums of channels in double precision: where they lie, and how they end as a gradient.
//
// In double precision, the order of millions of additions hardly shows in the result. The sums are
// few (two a channel), so their width costs nothing. What is added to stands in single precision
// and takes part in the double sum before the one rounding.
#include "ops/channel_rows.h"

namespace flexlegion {

double* doubles(int slot, std::int64_t elements) {
  return reinterpret_cast<double*>(scratch(slot, 2 * elements));
}

FLEXLEGION_SIMD void write_totals(float* gradient, const double* totals, std::int64_t n,
                                  bool adds) {
  for (std::int64_t i = 0; i < n; ++i) {
    gradient[i] = static_cast<float>(totals[i] + (adds ? gradient[i] : 0.0f));
  }
}

}  // namespace flexlegion
