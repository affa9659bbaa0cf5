// What tensor cores keep of a single-precision number.
#pragma once

#include <cstdint>
#include <cstring>

namespace soft_gpu {

// The nearest number with `bits` bits of fraction: 7 of bf16, 10 of tf32.
inline float rounded_to(float value, int bits) {
  std::uint32_t word = 0;
  std::memcpy(&word, &value, sizeof(word));
  const std::uint32_t unit = 1U << (23 - bits), odd = (word >> (23 - bits)) & 1U;
  word = (word + unit / 2 - 1 + odd) & ~(unit - 1);
  std::memcpy(&value, &word, sizeof(word));
  return value;
}

}  // namespace soft_gpu
