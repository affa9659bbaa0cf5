#include "gpu/blas.h"

#include <stdexcept>

namespace flexlegion::gpu {

namespace {

Matrix packed_matrix(float* data, const TensorView& view) {
  const std::int64_t cols = view.extent(view.rank() - 1);
  return Matrix::row_major(data, cols == 0 ? 0 : view.volume() / cols, cols, cols);
}

#if FLEXLEGION_CUDA

// A row-major matrix is its transpose, stored by columns, which is what cuBLAS calls a matrix.
struct Factor {
  cublasOperation_t operation;
  int ld;
  explicit Factor(const Matrix& m)
      : operation(m.col == 1 ? CUBLAS_OP_N : CUBLAS_OP_T),
        ld(static_cast<int>(std::max<std::int64_t>(
            {1, m.col == 1 ? m.row : m.col, m.col == 1 ? m.cols : m.rows}))) {}
};

void multiply_on_device(const Matrix& a, const Matrix& b, const Matrix& c, float beta,
                        float scale) {
  // c^T = b^T a^T
  const Factor left(b), right(a);
  const auto compute = precision() == Precision::bf16   ? CUBLAS_COMPUTE_32F_FAST_16BF
                       : precision() == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                        : CUBLAS_COMPUTE_32F;
  check(cublasGemmStridedBatchedEx(
      blas(), left.operation, right.operation, static_cast<int>(c.cols), static_cast<int>(c.rows),
      static_cast<int>(a.cols), &scale, b.data, CUDA_R_32F, left.ld,
      b.batch == 1 ? 0 : b.batch_stride, a.data, CUDA_R_32F, right.ld,
      a.batch == 1 ? 0 : a.batch_stride, &beta, c.data, CUDA_R_32F, static_cast<int>(c.row),
      c.batch_stride, static_cast<int>(c.batch), compute, CUBLAS_GEMM_DEFAULT));
}

#else

void multiply_on_host(const Matrix& a, const Matrix& b, const Matrix& c, bool adds, float scale) {
  const auto element = [](const Matrix& m, std::int64_t batch, std::int64_t r,
                          std::int64_t k) -> float& {
    return m.data[(m.batch == 1 ? 0 : batch * m.batch_stride) + r * m.row + k * m.col];
  };
  for (std::int64_t i = 0; i < c.batch; ++i) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t k = 0; k < c.cols; ++k) {
        double sum = 0;
        for (std::int64_t j = 0; j < a.cols; ++j) {
          sum += static_cast<double>(element(a, i, r, j)) * element(b, i, j, k);
        }
        put(element(c, i, r, k), scale * static_cast<float>(sum), adds);
      }
    }
  }
}

#endif

}  // namespace

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds, float scale) {
  if (a.cols != b.rows || c.rows != a.rows || c.cols != b.cols) {
    throw std::logic_error("factors and product do not fit");
  }
  if (c.col != 1) {
    return multiply(b.transposed(), a.transposed(), c.transposed(), adds, scale);
  }
  if (c.rows == 0 || c.cols == 0 || c.batch == 0) return;
#if FLEXLEGION_CUDA
  multiply_on_device(a, b, c, adds ? 1.0f : 0.0f, scale);
#else
  multiply_on_host(a, b, c, adds, scale);
#endif
}

Matrix input_matrix(const TensorView& view, int slot) {
  Matrix matrix;
  if (matrix_in_place(view, matrix)) return matrix;
  return packed_matrix(DenseInput(view, slot).data(), view);
}

OutputMatrix::OutputMatrix(const TensorView& tile, int slot, bool add) : tile_(tile), add_(add) {
  in_place_ = matrix_in_place(tile, matrix_);
  if (!in_place_) matrix_ = packed_matrix(scratch(slot, tile.volume()), tile);
}

void OutputMatrix::commit() const {
  if (in_place_) return;
  gpu::write_or_add_view(tile_, dense_view(matrix_.data, tile_.tile, tile_.shape), add_);
}

}  // namespace flexlegion::gpu
