// The softmax of rows, for the kernels that need it.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/launch.h"
#include "gpu/real.h"

namespace flexlegion::gpu {

struct RowSoftmax {
  float maximum = 0;
  float sum = 0;  // of exp(x - maximum)
};

// Of one row of a team: floats, or Reals.
template <typename Values>
FL_DEVICE RowSoftmax row_softmax(const Team& team, const Values& x, std::int64_t n) {
  float maximum = -INFINITY;
  for (std::int64_t j = team.rank; j < n; j += team.size) {
    const float value = x[j];
    maximum = value > maximum ? value : maximum;
  }
  maximum = team.maximum(maximum);
  float sum = 0;
  for (std::int64_t j = team.rank; j < n; j += team.size) sum += expf(x[j] - maximum);
  return {maximum, team.sum(sum)};
}

// How many elements of a row count; the softmax of the others is zero.
struct RowLengths {
  std::int64_t most = 0;
  // In causal attention, one more in each row of a matrix of `rows`, until these are all.
  bool causal = false;
  std::int64_t first = 0, rows = 1;

  FL_DEVICE std::int64_t of(std::int64_t row) const {
    const std::int64_t grown = first + row % rows;
    return causal && grown < most ? grown : most;
  }
};

// y = softmax(x), over dense rows of `width`; y may lie where x does. Of a row of -infinity, all
// results are zero.
void softmax_rows(const float* x, const Reals& y, std::int64_t rows, std::int64_t width,
                  const RowLengths& lengths);

// From the gradients of its results y to those of its arguments: dx_j = y_j (dy_j - sum over k of
// y_k dy_k). Where dropout made z of the results, and dz are the gradients of z: dx_j = z_j dz_j -
// y_j * sum over k of z_k dz_k. dx may lie where dz does.
void softmax_rows_backward(const Reals& y, const Reals& z, const float* dz, const Reals& dx,
                           std::int64_t rows, std::int64_t width);

}  // namespace flexlegion::gpu
