#include "gpu/blas.h"

#include <stdexcept>

namespace flexlegion::gpu {

namespace {

Matrix packed_matrix(float* data, const TensorView& view) {
  const std::int64_t cols = view.extent(view.rank() - 1);
  return Matrix::row_major(data, cols == 0 ? 0 : view.volume() / cols, cols, cols);
}

bool rows_at_equal_distances(const TensorView& view) {
  Matrix matrix;
  return matrix_in_place(view, matrix);
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
  const int rows = static_cast<int>(c.cols), columns = static_cast<int>(c.rows);
  const int inner = static_cast<int>(a.cols);
  const int ld = static_cast<int>(std::max<std::int64_t>({1, c.row, c.cols}));
  if (c.batch == 1) {
    check(cublasGemmEx(blas(), left.operation, right.operation, rows, columns, inner, &scale,
                       b.data, CUDA_R_32F, left.ld, a.data, CUDA_R_32F, right.ld, &beta, c.data,
                       CUDA_R_32F, ld, compute, CUBLAS_GEMM_DEFAULT));
    return;
  }
  const auto stride = [](const Matrix& m) { return m.batch == 1 ? 0 : m.batch_stride; };
  check(cublasGemmStridedBatchedEx(
      blas(), left.operation, right.operation, rows, columns, inner, &scale, b.data, CUDA_R_32F,
      left.ld, stride(b), a.data, CUDA_R_32F, right.ld, stride(a), &beta, c.data, CUDA_R_32F, ld,
      c.batch_stride, static_cast<int>(c.batch), compute, CUBLAS_GEMM_DEFAULT));
}

#else

void multiply_on_host(const Matrix& a, const Matrix& b, const Matrix& c, bool adds, float scale) {
  const auto element = [](const Matrix& m, std::int64_t batch, std::int64_t r,
                          std::int64_t k) -> float& {
    return m.f32()[(m.batch == 1 ? 0 : batch * m.batch_stride) + r * m.row + k * m.col];
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

Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols) {
  return Matrix::row_major(scratch(slot, rows * cols), rows, cols, cols);
}

OutputTile::OutputTile(const TensorView& tile, int slot, bool add, bool in_place)
    : tile_(tile), view_(tile), add_(add), in_place_(in_place) {
  if (!in_place) view_ = dense_view(scratch(slot, tile.volume()), tile.tile, tile.shape);
}

void OutputTile::commit() const {
  if (!in_place_) gpu::write_or_add_view(tile_, view_, add_);
}

OutputMatrix::OutputMatrix(const TensorView& tile, int slot, bool add)
    : OutputTile(tile, slot, add, rows_at_equal_distances(tile)) {
  matrix_in_place(view(), matrix_);
}

}  // namespace flexlegion::gpu
