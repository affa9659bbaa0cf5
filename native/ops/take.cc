// take, as ops/take.h describes it.
//
// Forwards each output copies the element that its number names; backwards it adds its gradient
// there. On one thread, the loop's order is the outputs' order, so `order` and `starts`, which let
// threads of a GPU own an input each, are not needed here.
#include "ops/take.h"

#include "ops/simd.h"

namespace flexlegion {
namespace {

// to += from, of the elements inside one taken element.
FLEXLEGION_SIMD void add_row(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

class Take : public Kernel {
 public:
  explicit Take(const Attributes& attributes)
      : axis_(static_cast<int>(attributes.integer("axis"))) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const TakeTile t(task.inputs[0], output, axis_);
    const DenseInput x(task.inputs[0], 0);
    const DenseOutput y(output, 1);
    const std::int32_t* const numbers = task.inputs[1].i32();
    for (std::int64_t o = 0; o < t.outer; ++o) {
      for (std::int64_t j = 0; j < t.out; ++j) {
        std::copy_n(x.data() + (o * t.in + numbers[t.out_lo + j]) * t.inner, t.inner,
                    y.data() + (o * t.out + j) * t.inner);
      }
    }
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    const TakeTile t(input_grad, output_grad, axis_);
    const DenseInput dy(output_grad, 1);
    const DenseOutput dx(input_grad, 0, task.adds_to_input_grad(0));
    const std::int32_t* const numbers = task.inputs[1].i32();
    // Elements that no output named have a gradient of zero, and some are named twice.
    std::fill_n(dx.data(), input_grad.volume(), 0.0f);
    for (std::int64_t o = 0; o < t.outer; ++o) {
      for (std::int64_t j = 0; j < t.out; ++j) {
        add_row(dy.data() + (o * t.out + j) * t.inner,
                dx.data() + (o * t.in + numbers[t.out_lo + j]) * t.inner, t.inner);
      }
    }
    dx.commit();
  }

 private:
  int axis_;
};

const RegisterKernel registered("take",
                                [](const Attributes& a) { return std::make_unique<Take>(a); });

}  // namespace
}  // namespace flexlegion
