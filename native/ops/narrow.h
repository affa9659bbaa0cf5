// Real numbers of two bytes. bfloat16 is the upper half of a float32: it has a float's range, and 8
// bits of its precision. float16 has 11 bits of it, but holds nothing above 65,504, and loses bits
// below 1/16,384: training in it needs gradients that are scaled up (runtime/updates.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu/portable.h"
#include "ops/simd.h"
#include "support/data_type.h"

namespace flexlegion {

using Narrow = std::uint16_t;  // the bits of either
using Bfloat16 = Narrow;

// Moves the nearest bfloat16s into the upper halves of the bits of floats: of two that are as near,
// the one whose last bit is zero. NaN stays NaN, of which rounding might make an infinity. `Bits`
// is a number or a vector.
template <typename Bits, typename IsNan>
FL_DEVICE FLEXLEGION_INLINE void round_bits(Bits& bits, const IsNan& is_nan) {
  bits = is_nan ? bits | 0x400000U : bits + 0x7fffU + (bits >> 16 & 1U);
}

// Whether this machine has instructions that multiply bfloat16s: AVX512-BF16, which AMX comes with.
bool has_bfloat16();

template <typename To, typename From>
FL_DEVICE FLEXLEGION_INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// A number of that narrow type as a float, and a float rounded to it: to the nearest, and of two
// that are as near, to the one whose last bit is zero.
FL_DEVICE FLEXLEGION_INLINE float widened(DataType type, Narrow narrow);
FL_DEVICE FLEXLEGION_INLINE Narrow rounded(DataType type, float value);

// The same, of n numbers.
void widen(DataType type, const Narrow* from, float* to, std::int64_t n);
void round_off(DataType type, const float* from, Narrow* to, std::int64_t n);

// float16 has a sign, 5 bits of exponent, biased by 15, and 10 of fraction; a float has 8, biased
// by 127, and 23. Numbers below the least exponent are whole multiples of 2^-24.
struct Float16 {
  static constexpr int kFraction = 23 - 10;  // bits of a float's that are dropped
  static constexpr std::uint32_t kSign = 0x8000, kInfinity = 0x7c00, kNan = 0x7e00;
  static constexpr std::uint32_t kNormal = 0x400;  // from here on, numbers have an exponent
  static constexpr std::uint32_t kFloatInfinity = 0x7f800000;
  static constexpr std::uint32_t kBias = (127 - 15) << 23;
  static constexpr std::uint32_t kTooLarge = (16 + 127) << 23;  // 2^16, and what is above
  static constexpr std::uint32_t kLeast = (127 - 14) << 23;     // 2^-14: with an exponent

  FL_DEVICE static FLEXLEGION_INLINE float widened(Narrow narrow) {
    const std::uint32_t magnitude = narrow & 0x7fffU, fraction = magnitude << kFraction;
    const std::uint32_t sign = static_cast<std::uint32_t>(narrow & kSign) << 16;
    const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
    const std::uint32_t bits = magnitude < kNormal     ? same_bits<std::uint32_t>(small)
                               : magnitude < kInfinity ? fraction + kBias
                                                       : fraction | kFloatInfinity;
    return same_bits<float>(bits | sign);
  }

  FL_DEVICE static FLEXLEGION_INLINE Narrow rounded(float value) {
    const auto bits = same_bits<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffU, sign = bits >> 16 & kSign;
    // Beside 0.5, whose last bit is worth 2^-24, an addition rounds to multiples of that.
    const std::uint32_t half = same_bits<std::uint32_t>(0.5f);
    const std::uint32_t small = same_bits<std::uint32_t>(same_bits<float>(magnitude) + 0.5f) - half;
    const std::uint32_t odd = magnitude >> kFraction & 1U;
    const std::uint32_t normal = (magnitude - kBias + 0xfffU + odd) >> kFraction;
    const std::uint32_t above = magnitude > kFloatInfinity ? kNan : kInfinity;
    const std::uint32_t result = magnitude < kLeast      ? small
                                 : magnitude < kTooLarge ? normal
                                                         : above;
    return static_cast<Narrow>(result | sign);
  }
};

FL_DEVICE FLEXLEGION_INLINE float widened(DataType type, Narrow narrow) {
  if (type == DataType::float16) return Float16::widened(narrow);
  return same_bits<float>(static_cast<std::uint32_t>(narrow) << 16);
}

FL_DEVICE FLEXLEGION_INLINE Narrow rounded(DataType type, float value) {
  if (type == DataType::float16) return Float16::rounded(value);
  auto bits = same_bits<std::uint32_t>(value);
  round_bits(bits, (bits & 0x7fffffffU) > Float16::kFloatInfinity);
  return static_cast<Narrow>(bits >> 16);
}

}  // namespace flexlegion
