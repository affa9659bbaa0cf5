// softmax over the last dimension. A task sees whole rows of its input and may own a slice [lo, hi)
// of their softmax; its contribution to the input's gradient covers the whole row.
#include "ops/kernel.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD float dot(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

class Softmax : public Kernel {
 public:
  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if (y.tile.empty()) return;
    const int last = x.rank() - 1;
    const std::int64_t classes = x.extent(last), length = y.extent(last);
    float* const row = scratch(0, classes);
    const float* const slice = row + y.tile.lo[last];
    for_each_row<2>({&x, &y}, [&](const Offsets<2>& at) {
      const float scale = 1.0f / row_softmax(x.f32() + at[0], classes, row).sum;
      float* const out = y.f32() + at[1];
      for (std::int64_t i = 0; i < length; ++i) out[i] = slice[i] * scale;
    });
  }

  // dx_j = y_j (dy_j - sum_k dy_k y_k), where dy is zero outside of the task's slice.
  void backward(KernelTask& task) override {
    if (task.input_grads.empty() || !task.input_grads[0].present()) return;
    const TensorView &x = task.inputs[0], &dy = task.output_grads[0], &dx = task.input_grads[0];
    const int last = x.rank() - 1;
    const std::int64_t classes = x.extent(last), length = dy.extent(last), lo = dy.tile.lo[last];
    float* const row = scratch(0, classes);
    for_each_row<3>({&x, &dy, &dx}, [&](const Offsets<3>& at) {
      const float scale = 1.0f / row_softmax(x.f32() + at[0], classes, row).sum;
      const float* const grad = dy.f32() + at[1];
      float* const out = dx.f32() + at[2];
      const float mean = dot(grad, row + lo, length) * scale;
      for (std::int64_t i = 0; i < classes; ++i) out[i] = -row[i] * scale * mean;
      for (std::int64_t i = 0; i < length; ++i) {
        out[lo + i] = row[lo + i] * scale * (grad[i] - mean);
      }
    });
  }
};

const RegisterKernel registered("softmax",
                                [](const Attributes&) { return std::make_unique<Softmax>(); });

}  // namespace
}  // namespace flexlegion
