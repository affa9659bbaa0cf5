// bfloat16: the upper half of a float32, so that it has a float's range and 8 bits of its
// precision.
#pragma once

#include <cstdint>

#include "gpu/portable.h"
#include "ops/simd.h"

namespace flexlegion {

using Bfloat16 = std::uint16_t;

// Moves the nearest bfloat16s into the upper halves of the bits of floats: of two that are as near,
// the one whose last bit is zero. NaN stays NaN, of which rounding might make an infinity. `Bits`
// is a number or a vector.
template <typename Bits, typename IsNan>
FL_DEVICE FLEXLEGION_INLINE void round_bits(Bits& bits, const IsNan& is_nan) {
  bits = is_nan ? bits | 0x400000U : bits + 0x7fffU + (bits >> 16 & 1U);
}

// Whether this machine has instructions that multiply them: AVX512-BF16, which AMX comes with.
bool has_bfloat16();

void widen(const Bfloat16* from, float* to, std::int64_t n);
void round_off(const float* from, Bfloat16* to, std::int64_t n);

}  // namespace flexlegion
