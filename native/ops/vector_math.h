// Elementary functions in a form that vectorises: to a few units in the last place.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

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

// Of all arguments: the square of exp(x / 2) becomes 0 or infinity by itself.
FL_DEVICE FLEXLEGION_INLINE float vector_whole_exp(float x) {
  const float root = vector_exp(0.5f * x);
  return root * root;
}

// 0 where the result is no normal number any more, so that its logarithm is -infinity and a mask's
// weight nothing.
FL_DEVICE FLEXLEGION_INLINE float vector_exp_or_zero(float x) {
  return x < -87.0f ? 0.0f : vector_exp(x);
}

// exp(x) - 1, which is precise near 0.
FL_DEVICE FLEXLEGION_INLINE float vector_expm1(float x) {
  const ExpParts e = exp_parts(x);
  const float near = e.series * e.scale + (e.scale - 1.0f), far = vector_whole_exp(x);
  return x > 80.0f ? far : near;
}

// x = 2^n m with m in [sqrt(1/2), sqrt(2)); then the series of the inverse hyperbolic tangent of
// s = (m - 1) / (m + 1), which is log(m) / 2.
FL_DEVICE FLEXLEGION_INLINE float vector_log(float x) {
  constexpr float kTiny = std::numeric_limits<float>::min();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool tiny = x < kTiny;  // and 0, and what is negative: see below
  const float normal = tiny ? x * 8388608.0f : x;
  std::uint32_t bits;
  std::memcpy(&bits, &normal, sizeof(bits));
  constexpr std::uint32_t kRootHalf = 0x3f3504f3u;
  const std::int32_t n = static_cast<std::int32_t>(bits - kRootHalf) >> 23;
  bits -= static_cast<std::uint32_t>(n) << 23;
  float m;
  std::memcpy(&m, &bits, sizeof(m));
  const float s = (m - 1.0f) / (m + 1.0f), q = s * s;
  float series = 1.0f / 9.0f;
  series = series * q + 1.0f / 7.0f;
  series = series * q + 1.0f / 5.0f;
  series = series * q + 1.0f / 3.0f;
  const float doublings = static_cast<float>(n) - (tiny ? 23.0f : 0.0f);
  const float twice = 2.0f * s;
  float log =
      doublings * 0.693145752f + (twice + (twice * q * series + doublings * 1.42860677e-6f));
  log = x < kInfinity ? log : x;  // infinity and NaN
  log = x > 0.0f || x != x ? log : -kInfinity;
  return x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : log;
}

// log(1 + x): what the sum's rounding loses is made good.
FL_DEVICE FLEXLEGION_INLINE float vector_log1p(float x) {
  const float u = 1.0f + x, rest = u - 1.0f;
  const float log = vector_log(u);
  const float corrected = log * (x / (rest == 0.0f ? 1.0f : rest));
  return rest == 0.0f ? x : u > 1e8f || u <= 0.0f ? log : corrected;
}

// Of an angle: beyond tan(pi / 8), the rest of a quarter or half of a right angle, whose tangent is
// (x - 1) / (x + 1) or -1 / x; up to there, the Taylor series.
FL_DEVICE FLEXLEGION_INLINE float vector_arctangent(float x) {
  const float t = std::fabs(x);
  const bool steep = t > 2.41421356f, middle = t > 0.41421356f;
  const float rest = steep ? -1.0f / t : middle ? (t - 1.0f) / (t + 1.0f) : t;
  const float whole = steep ? 1.57079633f : middle ? 0.785398163f : 0.0f;
  const float q = rest * rest;
  float series = 1.0f / 17.0f;
  series = 1.0f / 15.0f - series * q;
  series = 1.0f / 13.0f - series * q;
  series = 1.0f / 11.0f - series * q;
  series = 1.0f / 9.0f - series * q;
  series = 1.0f / 7.0f - series * q;
  series = 1.0f / 5.0f - series * q;
  series = 1.0f / 3.0f - series * q;
  return std::copysign(whole + (rest - rest * q * series), x);
}

// By half of the angle, whose tangent is sin / (1 + cos), and of the other one sqrt((1 - cos) / (1
// + cos)).
FL_DEVICE FLEXLEGION_INLINE float vector_arcsine(float x) {
  return 2.0f * vector_arctangent(x / (1.0f + std::sqrt((1.0f - x) * (1.0f + x))));
}

FL_DEVICE FLEXLEGION_INLINE float vector_arccosine(float x) {
  return 2.0f * vector_arctangent(std::sqrt((1.0f - x) / (1.0f + x)));
}

// Up to 1 an odd polynomial; beyond, 1 - exp(-polynomial): both fitted to Chebyshev's nodes.
FL_DEVICE FLEXLEGION_INLINE float vector_erf(float x) {
  const float q = x * x;
  float near = -9.673590170e-06f;
  near = near * q + 1.126825367e-04f;
  near = near * q - 8.484396519e-04f;
  near = near * q + 5.221053410e-03f;
  near = near * q - 2.686543831e-02f;
  near = near * q + 1.128378222e-01f;
  near = near * q - 3.761263848e-01f;
  near = near * q + 1.128379167e+00f;
  const float z = std::fabs(x) < 4.0f ? std::fabs(x) : 4.0f;
  float far = -1.614061600e-06f;
  far = far * z + 4.559062239e-05f;
  far = far * z - 5.927695374e-04f;
  far = far * z + 4.740222340e-03f;
  far = far * z - 2.636469736e-02f;
  far = far * z + 1.099782451e-01f;
  far = far * z + 6.319370937e-01f;
  far = far * z + 1.130166675e+00f;
  far = far * z - 3.032129690e-04f;
  const float beyond = std::copysign(1.0f - vector_exp(-far), x);
  return x != x || q < 1.0f ? near * x : beyond;
}

// sin(x + quarters * pi / 2) for quarters 0 or 1; x is not large (kLargestAngle).
constexpr float kLargestAngle = 8192.0f;
FL_DEVICE FLEXLEGION_INLINE float vector_sine(float x, float quarters) {
  constexpr float kRound = 12582912.0f;
  const float half = 0.5f * quarters;
  const float shifted = (x * 0.318309886f + half) + kRound;
  const float n = (shifted - kRound) - half;  // x = n pi + r
  std::uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  float r = x - n * 3.140625f;  // pi in three parts
  r = r - n * 9.67502594e-04f;
  r = r - n * 1.50995803e-07f;
  const float q = r * r;
  float series = 1.0f / 6227020800.0f;
  series = series * q - 1.0f / 39916800.0f;
  series = series * q + 1.0f / 362880.0f;
  series = series * q - 1.0f / 5040.0f;
  series = series * q + 1.0f / 120.0f;
  series = series * q - 1.0f / 6.0f;
  const float sine = r + r * (q * series);
  return (bits & 1u) != 0 ? -sine : sine;
}

}  // namespace flexlegion
