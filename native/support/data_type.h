// What elements of tensors are stored as.
#pragma once

#include <cstdint>

namespace flexlegion {

// bfloat16 is the upper half of a float32. Nothing is computed in it: kernels read it, and round
// their results to it.
enum class DataType { float32, int32, bfloat16 };

constexpr std::int64_t element_bytes(DataType type) { return type == DataType::bfloat16 ? 2 : 4; }

}  // namespace flexlegion
