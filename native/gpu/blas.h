// Matrix products: cuBLAS on the device, plain loops on the host.
#pragma once

#include "gpu/view.h"
#include "ops/matrix.h"

namespace flexlegion::gpu {

// c = scale * a b, or c += scale * a b. Any of the three may be transposed. A batch of matrices has
// as many of a, b and c, but a or b may be one for all (batch 1).
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false,
              float scale = 1.0f);

// All dimensions but the last as rows; packed into scratch `slot` where they do not lie at equal
// distances.
Matrix input_matrix(const TensorView& view, int slot);

// The counterpart for a result: write matrix(), or add to it if adds(), then call commit().
class OutputMatrix {
 public:
  OutputMatrix(const TensorView& tile, int slot, bool add = false);
  const Matrix& matrix() const { return matrix_; }
  bool adds() const { return add_ && in_place_; }
  void commit() const;

 private:
  TensorView tile_;
  Matrix matrix_;
  bool add_, in_place_;
};

}  // namespace flexlegion::gpu
