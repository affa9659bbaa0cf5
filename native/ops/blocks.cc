// The innermost loops of ops/blocks.h: sums of a block, and blocks that are written or added to
// results.
//
// They stand here and not in the header because FLEXLEGION_SIMD makes a version for each generation
// of processors, which has to be one function with one address. A block has 512 elements, so a call
// costs little.
#include "ops/blocks.h"

#include "ops/simd.h"

namespace flexlegion {

FLEXLEGION_SIMD void add_to_sums(double* to, const float* more, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += more[i];
}
FLEXLEGION_SIMD void give(float* to, const float* from, std::int64_t n, bool adds) {
  write_or_add(adds, to, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return from[i]; });
}
// Adding to numbers of two bytes: widened, summed as floats and rounded once.
void give(DataType type, Narrow* to, const float* from, std::int64_t n, bool adds) {
  if (!adds) return round_off(type, from, to, n);
  float sums[kBlock];
  widen(type, to, sums, n);
  give(sums, from, n, true);
  round_off(type, sums, to, n);
}
FLEXLEGION_SIMD float sum_of(const float* x, std::int64_t n) {
  // Sixteen partial sums, which a processor adds independently of each other. The order of
  // additions is fixed, whatever the width of the machine's vectors.
  float lanes[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int k = 0; k < 16; ++k) lanes[k] += x[i + k];
  }
  float sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

}  // namespace flexlegion
