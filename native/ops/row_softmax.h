// The softmax of one row, for the kernels that need it.
#pragma once

#include <cstdint>

#include "ops/vector_math.h"

namespace flexlegion {

struct RowSoftmax {
  float maximum = 0;
  float sum = 0;  // of exp(scale * (x - maximum))
};

// Writes exp(scale * (x - maximum)), scale > 0, to `exponentials`, which may be x.
RowSoftmax row_softmax(const float* x, std::int64_t n, float* exponentials, float scale = 1.0f);

struct RowLogSum {
  double log_sum = 0;     // log(sum of exp(x))
  std::int64_t rank = 0;  // how many rank before `own`
};

// In one pass over the row. The logit `own` may stand in it, at `place`, or outside, before it
// (place <= 0) or behind it (place >= n); larger ones rank before it, and equal ones that stand
// before it. All do if it is NaN.
RowLogSum row_log_sum(const float* x, std::int64_t n, float own, std::int64_t place);

// y = exp(x - log_sum) * scale
void scaled_softmax(const float* x, std::int64_t n, float log_sum, float scale, float* y);

}  // namespace flexlegion
