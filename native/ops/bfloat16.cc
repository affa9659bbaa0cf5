#include "ops/bfloat16.h"

#include <cstring>

namespace flexlegion {

bool has_bfloat16() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

FLEXLEGION_SIMD void widen(const Bfloat16* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

FLEXLEGION_SIMD void round_off(const float* from, Bfloat16* to, std::int64_t n) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    round_bits(bits, (bits & 0x7fffffff) > kInfinity);
    to[i] = static_cast<Bfloat16>(bits >> 16);
  }
}

}  // namespace flexlegion
