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

// A dense matrix in scratch memory.
Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols);

// The counterpart for a result: multiply into view(), with adds(), then call commit(). With `add`,
// the result is added to what stands in the tile. If not `in_place`, view() is dense scratch
// memory.
class OutputTile {
 public:
  OutputTile(const TensorView& tile, int slot, bool add, bool in_place);
  const TensorView& view() const { return view_; }
  bool adds() const { return add_ && in_place_; }
  void commit() const;

 private:
  TensorView tile_, view_;
  bool add_, in_place_;
};

// The same, with all dimensions but the last as rows.
class OutputMatrix : public OutputTile {
 public:
  OutputMatrix(const TensorView& tile, int slot, bool add = false);
  const Matrix& matrix() const { return matrix_; }

 private:
  Matrix matrix_;
};

}  // namespace flexlegion::gpu
