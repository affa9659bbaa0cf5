// Matrices, as tiles hold them.
#pragma once

#include <cassert>
#include <cstdint>

#include "gpu/portable.h"
#include "ops/tensor_view.h"

namespace flexlegion {

// A matrix in memory, or a batch of them: element (b, r, c) at
// b * batch_stride + r * row + c * col of `data`. One of row and col is 1.
struct Matrix {
  void* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row = 0, col = 1;  // strides, in elements
  std::int64_t batch = 1, batch_stride = 0;
  DataType type = DataType::float32;

  static Matrix row_major(void* data, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                          DataType type = DataType::float32) {
    return {data, rows, cols, ld, 1, 1, 0, type};
  }
  Matrix transposed() const { return {data, cols, rows, col, row, batch, batch_stride, type}; }
  FL_DEVICE float* f32() const {
    assert(type == DataType::float32);
    return static_cast<float*>(data);
  }
  // So many elements from the first.
  void* at(std::int64_t offset) const {
    return static_cast<char*>(data) + offset * element_bytes(type);
  }
};

// What a product of factors of that type is computed as, where its tile is stored as `stored`: it
// is of their type, or of floats.
inline DataType product_type(DataType factors, DataType stored) {
  return factors == stored ? stored : DataType::float32;
}

// sums[c] += the sum of column c, of a row-major matrix.
void add_rows(const Matrix& rows, float* sums);

// Row r of a row-major matrix as floats: where it lies, or widened into scratch `slot`.
const float* read_row(const Matrix& m, std::int64_t r, int slot);

// The same memory as a tile (batch, rows, cols).
TensorView view_of(const Matrix& m);

// Some of the columns of a matrix.
Matrix columns(const Matrix& m, std::int64_t first, std::int64_t count);

// The rows of all samples as a batch of one matrix a sample.
Matrix by_sample(const Matrix& rows, std::int64_t samples);

// The last two dimensions of a view with contiguous rows, `offset` elements from its start, as
// matrices. The dimensions from `first_of_batch` up to them number the batch; they lie at equal
// distances.
Matrix matrices(const TensorView& view, std::int64_t offset, int first_of_batch);

// All dimensions but the last as rows, if they lie at equal distances; else false.
bool matrix_in_place(const TensorView& view, Matrix& matrix);

}  // namespace flexlegion
