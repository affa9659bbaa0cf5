// add and multiply: element-wise sum of several inputs, product of two.
//
// Each is one launch for two inputs, which reads both and writes the result; further inputs of a
// sum take one each. Sums are linear, so a task may lack some inputs (ops/kernel.h): then the
// output starts as zeros, and the inputs that are there are added to it.
//
// Both do one operation for several numbers that are moved, so memory bounds them. What counts is
// how often a tile is read or written, and that a thread moves several elements at a time where
// tiles allow it (for_each_element). A body is written for any number of them, e.kWidth.
#include <algorithm>

#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

bool present(const TensorView& view) { return view.present(); }

// The gradient of a sum is dy for every input: copies, or sums where there is one already.
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
    for_each_element<3>({&task.inputs[0], &task.inputs[1], &y}, [=] FL_BODY(auto e) {
      auto sum = e[0];
      const auto other = e[1];
      for (int k = 0; k < e.kWidth; ++k) sum[k] += other[k];
      e.set(2, sum);
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

// to = or += a * b: the product, and each of its gradients, dy times the other factor.
void product(const TensorView& a, const TensorView& b, const TensorView& to, bool adds) {
  for_each_element<3>({&a, &b, &to}, [=] FL_BODY(auto e) {
    auto result = e[0];
    const auto other = e[1];
    for (int k = 0; k < e.kWidth; ++k) result[k] *= other[k];
    e.put(2, result, adds);
  });
}

class Multiply : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    product(task.inputs[0], task.inputs[1], task.outputs[0], false);
  }

  // da = dy b and db = dy a. If both are wanted, one launch finds them, and so reads dy once.
  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (!task.wants_input_grad(0) || !task.wants_input_grad(1)) {
      for (std::size_t i = 0; i < 2; ++i) {
        if (!task.wants_input_grad(i)) continue;
        product(dy, task.inputs[1 - i], task.input_grads[i], task.adds_to_input_grad(i));
      }
      return;
    }
    const bool adds_a = task.adds_to_input_grad(0), adds_b = task.adds_to_input_grad(1);
    for_each_element<5>(
        {&dy, &task.inputs[0], &task.inputs[1], &task.input_grads[0], &task.input_grads[1]},
        [=] FL_BODY(auto e) {
          const auto grad = e[0];
          auto by_a = e[1], by_b = e[2];
          for (int k = 0; k < e.kWidth; ++k) {
            by_a[k] *= grad[k];
            by_b[k] *= grad[k];
          }
          e.put(3, by_b, adds_a);
          e.put(4, by_a, adds_b);
        });
  }
};

const RegisterKernel add(
    "add", [](const Attributes&) { return std::make_unique<Add>(); }, DeviceKind::gpu);
const RegisterKernel multiply(
    "multiply", [](const Attributes&) { return std::make_unique<Multiply>(); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
