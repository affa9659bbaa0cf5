// relu, sigmoid, tanh (their gradients follow from the output) and gelu (from the input).
//
// One launch a pass, each of which reads and writes every element once. gelu is x Phi(x), and its
// slope Phi(x) + x phi(x), with the normal distribution's function Phi and density phi.
#include "gpu/activation.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

// The activations whose slope follows from the output: the backward pass reads y and dy, and x need
// not be kept.
class ElementWise : public Kernel {
 public:
  explicit ElementWise(Activation activation) : activation_(activation) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    for_each_element<2>({&task.inputs[0], &task.outputs[0]}, [f = activation_] FL_BODY(auto e) {
      auto values = e[0];
      for (int k = 0; k < e.kWidth; ++k) values[k] = apply(f, values[k]);
      e.set(1, values);
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

// Two values of x can have the same gelu, so the backward pass needs x.
class Gelu : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    for_each_element<2>({&task.inputs[0], &task.outputs[0]}, [=] FL_BODY(auto e) {
      auto values = e[0];
      for (int k = 0; k < e.kWidth; ++k) {
        const float x = values[k];
        values[k] = 0.5f * x * (1.0f + erff(x * kRootHalf));
      }
      e.set(1, values);
    });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const bool adds = task.adds_to_input_grad(0);
    for_each_element<3>({&task.inputs[0], &task.output_grads[0], &task.input_grads[0]},
                        [=] FL_BODY(auto e) {
                          const auto values = e[0];
                          auto grads = e[1];
                          for (int k = 0; k < e.kWidth; ++k) {
                            const float x = values[k];
                            const float density = kDensity * expf(-0.5f * x * x);
                            const float below = 0.5f * (1.0f + erff(x * kRootHalf));
                            grads[k] *= below + x * density;
                          }
                          e.put(2, grads, adds);
                        });
  }

 private:
  static constexpr float kRootHalf = 0.70710678118654752f;  // 1 / sqrt(2)
  static constexpr float kDensity = 0.39894228040143268f;   // 1 / sqrt(2 pi)
};

// A factory is a plain function, so which activation it makes is a template's argument.
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
