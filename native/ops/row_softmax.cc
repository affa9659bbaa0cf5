// The softmax of a row, and its logarithm of the sum of exponentials, over one read of the row.
//
// Rows of a softmax fit the caches, and are read twice there: for the maximum, and for
// exponentials. Rows of logits may be long (a vocabulary), so their sum is made block by block with
// a running maximum: when a block raises the maximum, what was summed is scaled by exp(old - new).
// Subtracting the maximum keeps every exponential at 1 or below.
#include "ops/row_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/simd.h"

namespace flexlegion {
namespace {

// A sum of exponentials that is being made: of exp(x - maximum) over what was seen so far.
struct LogSum {
  float maximum = std::numeric_limits<float>::lowest();
  double sum = 0;
  std::int64_t above = 0;
};

// Goes on with n more; counts those above `bound`. Blocks stay in the first cache between looking
// for their maximum and summing their exponentials.
FLEXLEGION_SIMD void add_to(LogSum& result, const float* x, std::int64_t n, float bound) {
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t lo = 0; lo < n; lo += kBlock) {
    const std::int64_t hi = std::min(n, lo + kBlock);
    float maximum = result.maximum;
    std::int32_t above = 0;
#pragma omp simd reduction(max : maximum) reduction(+ : above)
    for (std::int64_t i = lo; i < hi; ++i) {
      maximum = x[i] > maximum ? x[i] : maximum;
      above += x[i] > bound ? 1 : 0;
    }
    if (maximum > result.maximum) {
      result.sum *= std::exp(static_cast<double>(result.maximum) - maximum);
      result.maximum = maximum;
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = lo; i < hi; ++i) sum += vector_exp(x[i] - maximum);
    result.sum += sum;
    result.above += above;
  }
}

}  // namespace

FLEXLEGION_SIMD RowSoftmax row_softmax(const float* x, std::int64_t n, float* exponentials,
                                       float scale) {
  float maximum = x[0];
#pragma omp simd reduction(max : maximum)
  for (std::int64_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    exponentials[i] = vector_exp_or_zero(scale * (x[i] - maximum));
    sum += exponentials[i];
  }
  return {maximum, sum};
}

RowLogSum row_log_sum(const float* x, std::int64_t n, float own, std::int64_t place) {
  const std::int64_t before = std::clamp<std::int64_t>(place, 0, n);
  LogSum result;
  // Of those before it, equal ones count as well: those above the next smaller number.
  add_to(result, x, before, std::nextafter(own, -std::numeric_limits<float>::infinity()));
  add_to(result, x + before, n - before, own);
  const std::int64_t rank = std::isnan(own) ? n : result.above;
  return {result.maximum + std::log(result.sum), rank};
}

FLEXLEGION_SIMD void scaled_softmax(const float* x, std::int64_t n, float log_sum, float scale,
                                    float* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = vector_exp_or_zero(x[i] - log_sum) * scale;
}

}  // namespace flexlegion
