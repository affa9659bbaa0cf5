// The CPU's side of ops/luong_attention.h: which memory, which products, and the row-wise
// functions.
//
// A softmax's row is read while it is in the cache: for its maximum, for exponentials and their
// sum, and to be scaled. Backwards dx = y (dy - sum of y dy), in place of dy.
#include "ops/luong_attention.h"

#include "ops/products.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void scale(float* x, float by, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= by;
}

// Of softmax's output y: from the gradient with respect to it to that with respect to its input.
FLEXLEGION_SIMD void softmax_backward(const float* y, float* dy, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += y[i] * dy[i];
  for (std::int64_t i = 0; i < n; ++i) dy[i] = y[i] * (dy[i] - sum);
}

// What the algorithm needs of a kind of device: products by ops/products.h, and passes over rows.
class Cpu {
 public:
  using Output = DenseOutput;
  using OutputMatrix = flexlegion::OutputMatrix;

  static bool takes(DataType type) { return type == DataType::bfloat16; }
  static Matrix input_matrix(const TensorView& view, int slot, DataType type) {
    return flexlegion::input_matrix(view, slot, type);
  }
  static Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols,
                               DataType type = DataType::float32) {
    const std::int64_t floats = floats_for(rows * cols, type);
    return Matrix::row_major(scratch(slot, floats), rows, cols, cols, type);
  }
  static void write(const TensorView& to, const TensorView& from, bool adds) {
    write_or_add_view(to, from, adds);
  }
  static void tanh(const Matrix& m) { activate(Activation::tanh, view_of(m)); }
  static void tanh_backward(const TensorView& dy, const TensorView& y, const TensorView& dz) {
    activation_backward(Activation::tanh, dy, y, dz);
  }
  static void softmax_rows(const Matrix& m) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      float* const row = m.f32() + r * m.row;
      // Exponentials in place, then their sum is divided out: one division a row.
      scale(row, 1.0f / row_softmax(row, m.cols, row).sum, m.cols);
    }
  }
  static void softmax_rows_backward(const Matrix& y, const Matrix& dy) {
    for (std::int64_t r = 0; r < y.rows; ++r) {
      softmax_backward(y.f32() + r * y.row, dy.f32() + r * dy.row, y.cols);
    }
  }
  void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false) {
    products_.multiply(a, b, c, adding(adds));
  }

 private:
  Products products_;
};

const RegisterKernel registered("luong_attention", [](const Attributes&) {
  return std::make_unique<LuongAttention<Cpu>>();
});

}  // namespace
}  // namespace flexlegion
