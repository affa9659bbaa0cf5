// What our own products of matrices are made of: vectors of floats, and tiles of a result that lie
// in a processor's registers while the products for them are summed.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/simd.h"

namespace flexlegion {

// Whether this machine has AVX-512, or AVX2 and nothing wider.
inline bool wide_vectors() {
  static const bool supported = __builtin_cpu_supports("avx512f") != 0;
  return supported;
}
inline bool narrow_vectors() {
  static const bool supported =
      !wide_vectors() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return supported;
}

template <int Lanes>
struct VectorOf;
template <>
struct VectorOf<16> {
  using Floats = float __attribute__((vector_size(64)));
  using Indices = std::int32_t __attribute__((vector_size(64)));
  using Unaligned = float __attribute__((vector_size(64), aligned(4), may_alias));
};
template <>
struct VectorOf<8> {
  using Floats = float __attribute__((vector_size(32)));
  using Indices = std::int32_t __attribute__((vector_size(32)));
  using Unaligned = float __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct VectorOf<4> {
  using Floats = float __attribute__((vector_size(16)));
  using Unaligned = float __attribute__((vector_size(16), aligned(4), may_alias));
};
template <typename Floats>
constexpr int kLanesOf = sizeof(Floats) / sizeof(float);

// Values go by reference: a vector as a result would depend on the machine it is compiled for.
template <typename Floats>
FLEXLEGION_INLINE void load(Floats& v, const float* from) {
  v = *reinterpret_cast<const typename VectorOf<kLanesOf<Floats>>::Unaligned*>(from);
}
template <typename Floats>
FLEXLEGION_INLINE void store(float* to, const Floats& v) {
  *reinterpret_cast<typename VectorOf<kLanesOf<Floats>>::Unaligned*>(to) = v;
}

// Calls body(first row, constant number of rows) for `rows` in tiles of nearly equal sizes, of at
// most Most rows (6 at most).
template <int Most, typename Body>
FLEXLEGION_INLINE void for_each_row_tile(std::int64_t rows, Body&& body) {
  const std::int64_t tiles = (rows + Most - 1) / Most;
  for (std::int64_t tile = 0, row = 0; tile < tiles; ++tile) {
    const std::int64_t n = rows / tiles + (tile < rows % tiles);
    if (n == 1) body(row, std::integral_constant<int, 1>());
    if (n == 2) body(row, std::integral_constant<int, 2>());
    if (n == 3) body(row, std::integral_constant<int, 3>());
    if constexpr (Most > 3) {
      if (n == 4) body(row, std::integral_constant<int, 4>());
      if (n == 5) body(row, std::integral_constant<int, 5>());
      if (n == 6) body(row, std::integral_constant<int, 6>());
    }
    row += n;
  }
}

}  // namespace flexlegion
