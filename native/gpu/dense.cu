// dense: output(..., o) = f(sum over i of input(..., i) * kernel(o, i) + bias(o)).
#include "gpu/activation.h"
#include "gpu/blas.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class Dense : public Kernel {
 public:
  explicit Dense(const Attributes& attributes)
      : activation_(activation_of(attributes)), use_bias_(attributes.integer("use_bias") != 0) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Matrix x = input_matrix(task.inputs[0], 0), w = input_matrix(task.weights[0], 1);
    const DenseOutput y(task.outputs[0], 2);
    const std::int64_t rows = x.rows, columns = w.rows;
    multiply(x, w.transposed(), Matrix::row_major(y.data(), rows, columns, columns));
    const float* bias = use_bias_ ? DenseInput(task.weights[1], 3).data() : nullptr;
    add_bias_and_activate(y.data(), bias, rows, columns, activation_);
    y.commit();
  }

  void backward(KernelTask& task) override {
    const Matrix dy = input_matrix(before_activation(task), 1);
    if (task.wants_input_grad(0)) {
      gradient(dy, input_matrix(task.weights[0], 3), task.input_grads[0],
               task.adds_to_input_grad(0));
    }
    if (task.wants_weight_grad(0)) {
      gradient(dy.transposed(), input_matrix(task.inputs[0], 3), task.weight_grads[0],
               task.adds_to_weight_grad(0));
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
    const TensorView result = dense_view(scratch(0, dy.volume()), dy.tile, dy.shape);
    gpu::activation_backward(activation_, dy, task.outputs[0], result);
    return result;
  }

  static void gradient(const Matrix& a, const Matrix& b, const TensorView& grad, bool adds) {
    const OutputMatrix result(grad, 4, adds);
    multiply(a, b, result.matrix(), result.adds());
    result.commit();
  }

  Activation activation_;
  bool use_bias_;
};

const RegisterKernel registered(
    "dense", [](const Attributes& a) { return std::make_unique<Dense>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
