// exp() and the functions made of it, in a form that vectorises.
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu/portable.h"
#include "ops/simd.h"

namespace flexlegion {

// exp(x) = scale * (1 + series), where scale is a power of two.
struct ExpParts {
  float scale, series;
};

// The argument is clamped to where exp(x) is a normal number. x = n ln 2 + r with |r| <= ln(2) / 2;
// then scale = 2^n, and the Taylor series of exp(r) - 1.
FL_DEVICE FLEXLEGION_INLINE ExpParts exp_parts(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  std::uint32_t bits;  // the low bits of `shifted` are n
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 127u) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return {scale, series * r};
}

// To about two units in the last place, as the others are.
FL_DEVICE FLEXLEGION_INLINE float vector_exp(float x) {
  const ExpParts e = exp_parts(x);
  return (e.series + 1.0f) * e.scale;
}

FL_DEVICE FLEXLEGION_INLINE float vector_sigmoid(float x) { return 1.0f / (1.0f + vector_exp(-x)); }

// By exp(2x) - 1, which is precise near 0, too.
FL_DEVICE FLEXLEGION_INLINE float vector_tanh(float x) {
  const ExpParts e = exp_parts(2.0f * x);
  const float minus_one = e.series * e.scale + (e.scale - 1.0f);
  return minus_one / (minus_one + 2.0f);
}

}  // namespace flexlegion
