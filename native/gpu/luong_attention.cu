// The GPU's side of ops/luong_attention.h: products by cuBLAS, of matrices and of batches of one
// matrix a sample, and row-wise functions by teams of threads.
//
// The algorithm is told there. Each function is one launch, in place where its operands allow it.
#include "ops/luong_attention.h"

#include "gpu/activation.h"
#include "gpu/blas.h"
#include "gpu/row_softmax.h"

namespace flexlegion::gpu {
namespace {

// What the algorithm needs of a kind of device.
struct Gpu {
  using Output = DenseOutput;
  using OutputMatrix = gpu::OutputMatrix;

  static bool takes(DataType) { return true; }
  static Matrix input_matrix(const TensorView& view, int slot, DataType type) {
    return gpu::input_matrix(view, slot, type);
  }
  static Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols,
                               DataType type = DataType::float32) {
    return gpu::scratch_matrix(slot, rows, cols, type);
  }
  static void write(const TensorView& to, const TensorView& from, bool adds) {
    gpu::write_or_add_view(to, from, adds);
  }
  static void tanh(const Matrix& m) {
    add_bias_and_activate(reals(m), reals(m), Reals(), m.rows, m.cols, Activation::tanh);
  }
  static void tanh_backward(const TensorView& dy, const TensorView& y, const TensorView& dz) {
    gpu::activation_backward(Activation::tanh, dy, y, dz);
  }
  static void softmax_rows(const Matrix& m) {
    gpu::softmax_rows(m.f32(), reals(m), m.rows, m.cols, {m.cols});
  }
  static void softmax_rows_backward(const Matrix& y, const Matrix& dy) {
    gpu::softmax_rows_backward(reals(y), reals(y), dy.f32(), reals(dy), dy.rows, dy.cols);
  }
  static void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds = false) {
    gpu::multiply(a, b, c, adds);
  }
};

const RegisterKernel registered(
    "luong_attention", [](const Attributes&) { return std::make_unique<LuongAttention<Gpu>>(); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
