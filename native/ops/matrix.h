// Matrices, as tiles hold them.
#pragma once

#include <cstdint>

#include "ops/tensor_view.h"

namespace flexlegion {

// A matrix in memory, or a batch of them: element (b, r, c) at
// data[b * batch_stride + r * row + c * col]. One of row and col is 1.
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row = 0, col = 1;  // strides, in elements
  std::int64_t batch = 1, batch_stride = 0;

  static Matrix row_major(float* data, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
    return {data, rows, cols, ld};
  }
  Matrix transposed() const { return {data, cols, rows, col, row, batch, batch_stride}; }
};

// All dimensions but the last as rows, if they lie at equal distances; else false.
bool matrix_in_place(const TensorView& view, Matrix& matrix);

}  // namespace flexlegion
