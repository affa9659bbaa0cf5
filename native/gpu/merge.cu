// add and multiply: element-wise sum of several inputs, product of two.
#include <algorithm>

#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

bool present(const TensorView& view) { return view.present(); }

class Add : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (!std::all_of(task.inputs.begin(), task.inputs.end(), present)) {
      for (const TensorView& x : task.inputs) {
        if (x.present()) gpu::add_view(y, x);  // to zeros
      }
      return;
    }
    const Tiles<3> tiles({&task.inputs[0], &task.inputs[1], &y});
    for_each(y.volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      e[2] = e[0] + e[1];
    });
    for (std::size_t i = 2; i < task.inputs.size(); ++i) gpu::add_view(y, task.inputs[i]);
  }

  void backward(KernelTask& task) override {
    for (std::size_t i = 0; i < task.input_grads.size(); ++i) {
      if (!task.wants_input_grad(i)) continue;
      gpu::write_or_add_view(task.input_grads[i], task.output_grads[0], task.adds_to_input_grad(i));
    }
  }
};

// to = or += a * b
void product(const TensorView& a, const TensorView& b, const TensorView& to, bool adds) {
  const Tiles<3> tiles({&a, &b, &to});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto e = tiles(i);
    put(e[2], e[0] * e[1], adds);
  });
}

class Multiply : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    product(task.inputs[0], task.inputs[1], task.outputs[0], false);
  }

  // Both gradients at once, so that dy is read once.
  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (!task.wants_input_grad(0) || !task.wants_input_grad(1)) {
      for (std::size_t i = 0; i < 2; ++i) {
        if (!task.wants_input_grad(i)) continue;
        product(dy, task.inputs[1 - i], task.input_grads[i], task.adds_to_input_grad(i));
      }
      return;
    }
    const Tiles<5> tiles(
        {&dy, &task.inputs[0], &task.inputs[1], &task.input_grads[0], &task.input_grads[1]});
    const bool adds_a = task.adds_to_input_grad(0), adds_b = task.adds_to_input_grad(1);
    for_each(dy.volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      const float grad = e[0];
      put(e[3], grad * e[2], adds_a);
      put(e[4], grad * e[1], adds_b);
    });
  }
};

const RegisterKernel add(
    "add", [](const Attributes&) { return std::make_unique<Add>(); }, DeviceKind::gpu);
const RegisterKernel multiply(
    "multiply", [](const Attributes&) { return std::make_unique<Multiply>(); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
