// add and multiply: element-wise sum of several inputs, product of two.
//
// Both are bound by memory: add reads two inputs and writes the sum in one pass, and takes one more
// pass for each further input. Sums are linear, so a task may lack some inputs (kernel.h): then the
// output starts as zeros, and the inputs that are there are added.
#include <algorithm>

#include "ops/floats.h"
#include "ops/kernel.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void sum_run(const float* a, const float* b, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

// y = or += a * b, of n contiguous numbers.
FLEXLEGION_SIMD void product_run(const float* a, const float* b, float* y, std::int64_t n,
                                 bool adds) {
  write_or_add(adds, y, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return a[i] * b[i]; });
}

bool present(const TensorView& view) { return view.present(); }

// The gradient of a sum is dy for every input: copies, or sums where there is one already.
class Add : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &a = task.inputs[0], &b = task.inputs[1], &y = task.outputs[0];
    if (!std::all_of(task.inputs.begin(), task.inputs.end(), present)) {
      for (const TensorView& x : task.inputs) {
        if (x.present()) add_view(y, x);  // to zeros
      }
      return;
    }
    share_floats<1, 0, 3>({&y, &a, &b}, [](const Pointers<3>& at, std::int64_t n) {
      sum_run(at[1], at[2], at[0], n);
    });
    for (std::size_t i = 2; i < task.inputs.size(); ++i) add_view(y, task.inputs[i]);
  }

  void backward(KernelTask& task) override {
    for (std::size_t i = 0; i < task.input_grads.size(); ++i) {
      if (!task.wants_input_grad(i)) continue;
      write_or_add_view(task.input_grads[i], task.output_grads[0], task.adds_to_input_grad(i));
    }
  }
};

// da = dy b and db = dy a.
class Multiply : public Kernel {
 public:
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &a = task.inputs[0], &b = task.inputs[1], &y = task.outputs[0];
    for_each_run<3>({&a, &b, &y}, [&](const Offsets<3>& at, std::int64_t n) {
      product_run(a.f32() + at[0], b.f32() + at[1], y.f32() + at[2], n, false);
    });
  }

  // In blocks, so that the second gradient finds dy in the cache.
  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    const bool both = task.wants_input_grad(0) && task.wants_input_grad(1);
    if (!both) {
      for (std::size_t i = 0; i < 2; ++i) {
        if (task.wants_input_grad(i)) one_gradient(task, i);
      }
      return;
    }
    const TensorView &a = task.inputs[0], &b = task.inputs[1];
    const TensorView &da = task.input_grads[0], &db = task.input_grads[1];
    const bool adds_a = task.adds_to_input_grad(0), adds_b = task.adds_to_input_grad(1);
    for_each_run<5>({&dy, &a, &b, &da, &db}, [&](const Offsets<5>& at, std::int64_t length) {
      for (std::int64_t i = 0; i < length; i += kBlock) {
        const std::int64_t n = std::min(kBlock, length - i);
        const float* const grad = dy.f32() + at[0] + i;
        product_run(grad, b.f32() + at[2] + i, da.f32() + at[3] + i, n, adds_a);
        product_run(grad, a.f32() + at[1] + i, db.f32() + at[4] + i, n, adds_b);
      }
    });
  }

 private:
  // Five arrays of 8 KB, which the second cache of a core holds.
  static constexpr std::int64_t kBlock = 2048;

  // The gradient of one factor, where nobody wants the other's.
  static void one_gradient(const KernelTask& task, std::size_t input) {
    const TensorView &dy = task.output_grads[0], &other = task.inputs[1 - input];
    const TensorView& dx = task.input_grads[input];
    for_each_run<3>({&dy, &other, &dx}, [&](const Offsets<3>& at, std::int64_t n) {
      product_run(dy.f32() + at[0], other.f32() + at[1], dx.f32() + at[2], n,
                  task.adds_to_input_grad(input));
    });
  }
};

const RegisterKernel registered_add("add",
                                    [](const Attributes&) { return std::make_unique<Add>(); });
const RegisterKernel registered_multiply("multiply", [](const Attributes&) {
  return std::make_unique<Multiply>();
});

}  // namespace
}  // namespace flexlegion
