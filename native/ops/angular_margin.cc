// angular_margin: scale * x, but in training with a margin at each sample's own class. Labels are
// the second input; of those below 0 there is no such class.
//
// A tile holds some samples and some classes, so an own class may lie outside of it: then every
// element of the row is only scaled. The backward pass first writes dx = scale dy for the whole
// row, and then corrects the one element with a margin by the difference of both slopes. That works
// alike for gradients that are written and for those that are added.
#include "ops/angular_margin.h"

#include <algorithm>

#include "ops/simd.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void scale_row(const float* x, float by, std::int64_t n, bool adds, float* result) {
  write_or_add(adds, result, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return x[i] * by; });
}

class AngularMarginKernel : public Kernel {
 public:
  explicit AngularMarginKernel(const Attributes& attributes) : margin_(attributes) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    for (std::int64_t r = 0; r < x.extent(0); ++r) {
      const float* const from = x.f32() + r * x.stride[0];
      float* const to = y.f32() + r * y.stride[0];
      scale_row(from, margin_.scale, x.extent(1), false, to);
      if (const auto own = own_class(task, r); own >= 0) to[own] = margin_.value(from[own]);
    }
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &x = task.inputs[0], &dy = task.output_grads[0], &dx = task.input_grads[0];
    for (std::int64_t r = 0; r < x.extent(0); ++r) {
      const float* const from = dy.f32() + r * dy.stride[0];
      float* const to = dx.f32() + r * dx.stride[0];
      scale_row(from, margin_.scale, x.extent(1), task.adds_to_input_grad(0), to);
      if (const auto own = own_class(task, r); own >= 0) {
        const float cosine = x.f32()[r * x.stride[0] + own];
        to[own] += from[own] * (margin_.slope(cosine) - margin_.scale);
      }
    }
  }

 private:
  // Row r's own class as a column of the tile; -1 if it is not among them, or gets no margin.
  static std::int64_t own_class(const KernelTask& task, std::int64_t r) {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1];
    if (task.run.training == 0) return -1;
    const std::int64_t own = labels.i32()[r * labels.stride[0]] - x.tile.lo[1];
    // Both a label below the tile's first class and a negative label become -1.
    return own < x.extent(1) ? std::max<std::int64_t>(own, -1) : -1;
  }

  AngularMargin margin_;
};

const RegisterKernel registered("angular_margin", [](const Attributes& a) {
  return std::make_unique<AngularMarginKernel>(a);
});

}  // namespace
}  // namespace flexlegion
