// Matrix products: cuBLAS on the device, plain loops on the host.
#pragma once

#include "gpu/view.h"
#include "ops/matrix.h"

namespace flexlegion::gpu {

// c = scale * a b, or c += scale * a b. Any of the three may be transposed. A batch of matrices has
// as many of a, b and c, but a or b may be one for all (batch 1). The factors are of one type, c of
// that or floats; sums are floats.
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false,
              float scale = 1.0f);

// A factor of several products, or a copy of it in scratch memory that is worth it: each product
// would copy the factor anew. `met` is how many rows or columns of the other factors meet its
// elements.
Matrix aligned_factor(const Matrix& m, std::int64_t met, int slot);

#if FLEXLEGION_CUDA

// A row-major matrix is its transpose, stored by columns, which is what cuBLAS calls a matrix.
struct ColumnMajor {
  cublasOperation_t operation;
  int ld;
  explicit ColumnMajor(const Matrix& m);
};

// Whether multiply() computes c, of a and another factor, by way of a copy.
bool aligns_result(const Matrix& a, const Matrix& c);

cudaDataType_t cuda_type(DataType type);
cublasComputeType_t compute_type(DataType factors, Precision precision);

#endif

// Its elements; of a dense matrix, in their order.
FL_DEVICE inline Reals reals(const Matrix& m) { return {m.data, m.type}; }

// All dimensions but the last as rows; packed into scratch `slot` where they do not lie at equal
// distances, or are not of that type.
Matrix input_matrix(const TensorView& view, int slot, DataType type = DataType::float32);

// A dense matrix in scratch memory.
Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols,
                      DataType type = DataType::float32);

// The counterpart for a result: multiply into view(), with adds(), then call commit(). With `add`,
// the result is added to what stands in the tile. If not `in_place`, or of another type, view() is
// dense scratch memory.
class OutputTile {
 public:
  OutputTile(const TensorView& tile, int slot, bool add, bool in_place,
             DataType type = DataType::float32);
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
  OutputMatrix(const TensorView& tile, int slot, bool add = false,
               DataType type = DataType::float32);
  const Matrix& matrix() const { return matrix_; }

 private:
  Matrix matrix_;
};

// a b, written to a tile or added to it, by way of scratch `slot` if need be: all dimensions but
// the last are rows.
void multiply_into(const TensorView& tile, int slot, bool adds, const Matrix& a, const Matrix& b);

}  // namespace flexlegion::gpu
