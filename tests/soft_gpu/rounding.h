// Numbers as GPUs have them: of which types, and what tensor cores keep of single precision.
#pragma once

#include <library_types.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "support/data_type.h"

namespace soft_gpu {

// Of those that our kernels store.
inline std::optional<flexlegion::DataType> type_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return flexlegion::DataType::float32;
    case CUDA_R_16BF:
      return flexlegion::DataType::bfloat16;
    case CUDA_R_16F:
      return flexlegion::DataType::float16;
    default:
      return std::nullopt;
  }
}

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
