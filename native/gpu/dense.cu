// dense: output(..., o) = f(sum over i of input(..., i) * kernel(o, i) + bias(o)).
//
// Forwards one product, with bias and activation in the same kernel where cuBLASLt has one
// (fused_product.h). Backwards, dz = dy f'(y) is one pass, then dx = dz W and dW = dz^T x. Both
// products read dz: where its rows are not aligned, it is copied once for both.
#include "gpu/activation.h"
#include "gpu/fused_product.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class Dense : public Kernel {
 public:
  explicit Dense(const Attributes& attributes)
      : activation_(activation_of(attributes)), use_bias_(attributes.integer("use_bias") != 0) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const DataType type = task.outputs[0].type;
    const Matrix x = input_matrix(task.inputs[0], 0, type);
    const Matrix w = input_matrix(task.weights[0], 1, type);
    const DenseOutput y(task.outputs[0], 2, false, type);
    const std::int64_t rows = x.rows, columns = w.rows;
    // Without memory: no bias, or another part's.
    Reals bias;
    if (use_bias_) bias = {DenseInput(task.weights[1], 3).memory(), DataType::float32};
    multiply_and_activate(x, w.transposed(),
                          Matrix::row_major(y.memory(), rows, columns, columns, type), bias,
                          activation_, 6);
    y.commit();
  }

  void backward(KernelTask& task) override {
    const DataType type = task.output_grads[0].type;
    const Matrix dy = input_matrix(before_activation(task), 1, type);
    const bool twice = task.wants_input_grad(0) && task.wants_weight_grad(0);
    const TensorView& x = task.inputs[0];
    const Matrix factor = twice ? aligned_factor(dy, x.extent(x.rank() - 1), 6) : dy;
    if (task.wants_input_grad(0)) {
      multiply_into(task.input_grads[0], 4, task.adds_to_input_grad(0), factor,
                    input_matrix(task.weights[0], 3, type));
    }
    if (task.wants_weight_grad(0)) {
      multiply_into(task.weight_grads[0], 4, task.adds_to_weight_grad(0), factor.transposed(),
                    input_matrix(task.inputs[0], 3, type));
    }
    if (use_bias_ && task.wants_weight_grad(1)) {
      bias_gradient(dy, task.weight_grads[1], 5, task.adds_to_weight_grad(1));
    }
  }

 private:
  // The gradient with respect to what the activation was applied to (scratch slot 0).
  TensorView before_activation(const KernelTask& task) const {
    const TensorView& dy = task.output_grads[0];
    if (activation_ == Activation::none) return dy;
    const TensorView result = gpu::scratch_view(0, dy, dy.type);
    gpu::activation_backward(activation_, dy, task.outputs[0], result);
    return result;
  }

  Activation activation_;
  bool use_bias_;
};

const RegisterKernel registered(
    "dense", [](const Attributes& a) { return std::make_unique<Dense>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
