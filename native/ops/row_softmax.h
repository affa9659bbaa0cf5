// exp() and the softmax of one row, for the kernels that need them, in a form that vectorises.
#pragma once

#include <cstdint>
#include <cstring>

namespace flexlegion {

// exp(x) to about two units in the last place; the argument is clamped to where the result is a
// normal number. x = n ln 2 + r with |r| <= ln(2) / 2; then 2^n times the Taylor series of exp(r).
inline float vector_exp(float x) {
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
  series = series * r + 1.0f;
  std::uint32_t bits;  // the low bits of `shifted` are n
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 127u) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return series * scale;
}

struct RowSoftmax {
  float maximum = 0;
  float sum = 0;  // of exp(x - maximum)
};

// Writes exp(x - maximum) to `exponentials`.
RowSoftmax row_softmax(const float* x, std::int64_t n, float* exponentials);

struct RowLogSum {
  double log_sum = 0;     // log(sum of exp(x))
  std::int64_t rank = 0;  // how many stand before x[which]: larger ones, and equal ones before it
};

// In one pass over the row.
RowLogSum row_log_sum(const float* x, std::int64_t n, std::int64_t which);

// y = exp(x - log_sum) * scale
void scaled_softmax(const float* x, std::int64_t n, float log_sum, float scale, float* y);

}  // namespace flexlegion
