// relu, sigmoid, tanh (their gradients follow from the output) and gelu (from the input).
#include "gpu/activation.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class ElementWise : public Kernel {
 public:
  explicit ElementWise(Activation activation) : activation_(activation) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const Tiles<2> tiles({&task.inputs[0], &task.outputs[0]});
    for_each(task.outputs[0].volume(), [tiles, f = activation_] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      e[1] = apply(f, e[0]);
    });
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
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const Tiles<2> tiles({&task.inputs[0], &task.outputs[0]});
    for_each(task.outputs[0].volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      const float x = e[0];
      e[1] = 0.5f * x * (1.0f + erff(x * kRootHalf));
    });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const Tiles<3> tiles({&task.inputs[0], &task.output_grads[0], &task.input_grads[0]});
    const bool adds = task.adds_to_input_grad(0);
    for_each(task.input_grads[0].volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      const float x = e[0];
      const float density = kDensity * expf(-0.5f * x * x);
      const float below = 0.5f * (1.0f + erff(x * kRootHalf));
      put(e[2], e[1] * (below + x * density), adds);
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
