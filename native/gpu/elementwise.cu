// relu, sigmoid, tanh (their gradients follow from the output) and gelu (from the input).
#include "gpu/activation.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class ElementWise : public Kernel {
 public:
  explicit ElementWise(Activation activation) : activation_(activation) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const Strided x(task.inputs[0]), y(task.outputs[0]);
    for_each(task.outputs[0].volume(),
             [x, y, f = activation_] FL_BODY(std::int64_t i) { y[i] = apply(f, x[i]); });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    gpu::activation_backward(activation_, task.output_grads[0], task.outputs[0],
                             task.input_grads[0], task.adds_to_input_grad(0));
  }

 private:
  Activation activation_;
};

class Gelu : public Kernel {
 public:
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const Strided x(task.inputs[0]), y(task.outputs[0]);
    for_each(task.outputs[0].volume(),
             [=] FL_BODY(std::int64_t i) { y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * kRootHalf)); });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const Strided x(task.inputs[0]), dy(task.output_grads[0]), dx(task.input_grads[0]);
    const bool adds = task.adds_to_input_grad(0);
    for_each(task.input_grads[0].volume(), [=] FL_BODY(std::int64_t i) {
      const float density = kDensity * expf(-0.5f * x[i] * x[i]);
      const float below = 0.5f * (1.0f + erff(x[i] * kRootHalf));
      put(dx[i], dy[i] * (below + x[i] * density), adds);
    });
  }

 private:
  static constexpr float kRootHalf = 0.70710678118654752f;  // 1 / sqrt(2)
  static constexpr float kDensity = 0.39894228040143268f;   // 1 / sqrt(2 pi)
};

template <Activation kActivation>
std::unique_ptr<Kernel> make(const Attributes&) {
  return std::make_unique<ElementWise>(kActivation);
}

const RegisterKernel relu("relu", make<Activation::relu>, DeviceKind::gpu);
const RegisterKernel sigmoid("sigmoid", make<Activation::sigmoid>, DeviceKind::gpu);
const RegisterKernel tanh("tanh", make<Activation::tanh>, DeviceKind::gpu);
const RegisterKernel gelu(
    "gelu", [](const Attributes&) { return std::make_unique<Gelu>(); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
