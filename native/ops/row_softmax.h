// The softmax of one row, for the kernels that need it.
#pragma once

#include <cstdint>

#include "ops/vector_math.h"

namespace flexlegion {

struct RowSoftmax {
  float maximum = 0;
  float sum = 0;  // of exp(x - maximum)
};

// Writes exp(x - maximum) to `exponentials`.
RowSoftmax row_softmax(const float* x, std::int64_t n, float* exponentials);

}  // namespace flexlegion
