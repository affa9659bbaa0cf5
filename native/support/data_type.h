// What elements of tensors are stored as.
#pragma once

#include <cstdint>

namespace flexlegion {

// bfloat16 is the upper half of a float32; float16 is IEEE 754's. Nothing is computed in either:
// kernels read them, and round their results to them.
enum class DataType { float32, int32, bfloat16, float16 };

constexpr bool is_narrow(DataType type) {
  return type == DataType::bfloat16 || type == DataType::float16;
}

constexpr std::int64_t element_bytes(DataType type) { return is_narrow(type) ? 2 : 4; }

// As how many floats memory for so many elements is asked for.
constexpr std::int64_t floats_for(std::int64_t elements, DataType type) {
  return (elements * element_bytes(type) + 3) / 4;
}

}  // namespace flexlegion
