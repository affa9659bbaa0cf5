#include "ops/matrix.h"

namespace flexlegion {

bool matrix_in_place(const TensorView& view, Matrix& matrix) {
  const int last = view.rank() - 1;
  if (!view.dense_from(last)) return false;
  matrix = Matrix::row_major(view.f32(), 1, view.extent(last), view.extent(last));
  for (int d = last - 1; d >= 0; --d) {
    if (view.extent(d) == 1) continue;
    if (matrix.rows == 1) matrix.row = view.stride[d];
    if (view.stride[d] != matrix.row * matrix.rows) return false;
    matrix.rows *= view.extent(d);
  }
  return true;
}

}  // namespace flexlegion
