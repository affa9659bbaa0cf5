// How views become matrices and back, and reading their rows as floats (ops/matrix.h).
//
// A matrix is a description of memory: pointer, extents and strides. Whether a tile is one without
// a copy depends on whether the rows, which are all dimensions but the last, lie at equal
// distances. A tile of columns does, a tile of an inner dimension need not.
#include "ops/matrix.h"

#include <algorithm>

#include "ops/simd.h"

namespace flexlegion {

namespace {

FLEXLEGION_SIMD void add_row(const float* row, std::int64_t n, float* sums) {
  for (std::int64_t c = 0; c < n; ++c) sums[c] += row[c];
}

}  // namespace

void add_rows(const Matrix& rows, float* sums) {
  // Sums of so many columns stay in the first cache while all rows pass.
  constexpr std::int64_t kPiece = 1024;  // columns
  // Narrow rows are widened a piece at a time.
  float copy[kPiece];
  for (std::int64_t c = 0; c < rows.cols; c += kPiece) {
    const std::int64_t n = std::min(kPiece, rows.cols - c);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      void* const row = rows.at(r * rows.row + c);
      const bool narrow = is_narrow(rows.type);
      if (narrow) widen(rows.type, static_cast<const Narrow*>(row), copy, n);
      add_row(narrow ? copy : static_cast<const float*>(row), n, sums + c);
    }
  }
}

const float* read_row(const Matrix& m, std::int64_t r, int slot) {
  void* const row = m.at(r * m.row);
  if (!is_narrow(m.type)) return static_cast<const float*>(row);
  float* const floats = scratch(slot, m.cols);
  widen(m.type, static_cast<const Narrow*>(row), floats, m.cols);
  return floats;
}

TensorView view_of(const Matrix& m) {
  TensorView view = dense_view(m.data, Rect::of_shape({m.batch, m.rows, m.cols}), {}, m.type);
  view.stride[0] = m.batch_stride;
  view.stride[1] = m.row;
  view.stride[2] = m.col;
  return view;
}

Matrix columns(const Matrix& m, std::int64_t first, std::int64_t count) {
  Matrix some = m;
  some.data = m.at(first * m.col);
  some.cols = count;
  return some;
}

Matrix by_sample(const Matrix& rows, std::int64_t samples) {
  Matrix batch = rows;
  batch.rows = rows.rows / samples;
  batch.batch = samples;
  batch.batch_stride = batch.rows * rows.row;
  return batch;
}

Matrix matrices(const TensorView& view, std::int64_t offset, int first_of_batch) {
  const int last = view.rank() - 1;
  Matrix m = Matrix::row_major(view.at(offset), view.extent(last - 1), view.extent(last),
                               std::max(view.stride[last - 1], view.extent(last)), view.type);
  for (int d = first_of_batch; d < last - 1; ++d) m.batch *= view.extent(d);
  m.batch_stride = view.stride[last - 2];
  return m;
}

bool matrix_in_place(const TensorView& view, Matrix& matrix) {
  const int last = view.rank() - 1;
  if (!view.dense_from(last)) return false;
  matrix = Matrix::row_major(view.data, 1, view.extent(last), view.extent(last), view.type);
  for (int d = last - 1; d >= 0; --d) {
    if (view.extent(d) == 1) continue;
    // The first dimension of more than one element, from the inside, fixes the distance; others
    // have to continue it.
    if (matrix.rows == 1) matrix.row = view.stride[d];
    if (view.stride[d] != matrix.row * matrix.rows) return false;
    matrix.rows *= view.extent(d);
  }
  return true;
}

}  // namespace flexlegion
