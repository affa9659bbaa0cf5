// Loops that widen and round numbers of two bytes, and whether the machine multiplies them.
//
// A loop each, because FLEXLEGION_SIMD makes vector code for each generation of processors, in
// which the type is a constant.
#include "ops/narrow.h"

namespace flexlegion {

bool has_bfloat16() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

namespace {

FLEXLEGION_SIMD void widen_bfloat16(const Narrow* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = widened(DataType::bfloat16, from[i]);
}

FLEXLEGION_SIMD void widen_float16(const Narrow* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Float16::widened(from[i]);
}

FLEXLEGION_SIMD void round_bfloat16(const float* from, Narrow* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = rounded(DataType::bfloat16, from[i]);
}

FLEXLEGION_SIMD void round_float16(const float* from, Narrow* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Float16::rounded(from[i]);
}

}  // namespace

void widen(DataType type, const Narrow* from, float* to, std::int64_t n) {
  (type == DataType::float16 ? widen_float16 : widen_bfloat16)(from, to, n);
}

void round_off(DataType type, const float* from, Narrow* to, std::int64_t n) {
  (type == DataType::float16 ? round_float16 : round_bfloat16)(from, to, n);
}

}  // namespace flexlegion
