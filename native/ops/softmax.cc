// softmax over the last dimension, or its logarithm. A task sees whole rows of its input and may
// own a slice [lo, hi) of their softmax; its contribution to the input's gradient covers the whole
// row.
//
// The logarithm is x - log(sum of exp(x)), never log(softmax(x)): a softmax below the smallest
// number has no logarithm any more.
//
// A row is in the cache while it is read three times: for its maximum, for exponentials and their
// sum, and to be written. Backwards the exponentials are computed again from x: a task owns a slice
// of the output alone, but the row's gradient needs the softmax of all of it.
#include <cmath>

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

FLEXLEGION_SIMD void scale_run(const float* x, float factor, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

// dx_j = scale * exponentials_j * (dy_j - mean), where dy is zero outside of [lo, hi).
FLEXLEGION_SIMD void softmax_backward_row(const float* exponentials, float scale, float mean,
                                          const float* dy, std::int64_t lo, std::int64_t hi,
                                          std::int64_t n, float* dx, bool adds) {
  const float without = -scale * mean;
  const auto outside = [=](const float* e) {
    return [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return e[i] * without; };
  };
  write_or_add(adds, dx, lo, outside(exponentials));
  const float* const inside = exponentials + lo;
  write_or_add(adds, dx + lo, hi - lo, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return inside[i] * scale * (dy[i] - mean);
  });
  write_or_add(adds, dx + hi, n - hi, outside(exponentials + hi));
}

// y = x - maximum - log_sum: in this order, so that nothing is lost where x and the maximum are
// large and near each other.
FLEXLEGION_SIMD void subtract(const float* x, float maximum, float log_sum, float* y,
                              std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - maximum) - log_sum;
}

// dx_j = dy_j - scale * exponentials_j * total, where dy is zero outside of [lo, hi).
FLEXLEGION_SIMD void log_softmax_backward_row(const float* exponentials, float scale, float total,
                                              const float* dy, std::int64_t lo, std::int64_t hi,
                                              std::int64_t n, float* dx, bool adds) {
  const float without = -scale * total;
  const auto outside = [=](const float* e) {
    return [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return e[i] * without; };
  };
  write_or_add(adds, dx, lo, outside(exponentials));
  const float* const inside = exponentials + lo;
  write_or_add(adds, dx + lo, hi - lo, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return dy[i] + inside[i] * without;
  });
  write_or_add(adds, dx + hi, n - hi, outside(exponentials + hi));
}

FLEXLEGION_SIMD float sum_of(const float* x, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

class Softmax : public Kernel {
 public:
  explicit Softmax(const Attributes& attributes) : log_(attributes.integer("log") != 0) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if (y.tile.empty()) return;
    const int last = x.rank() - 1;
    const std::int64_t classes = x.extent(last), length = y.extent(last);
    float* const row = scratch(0, classes);
    const float* const slice = row + y.tile.lo[last];
    for_each_row<2>({&x, &y}, [&](const Offsets<2>& at) {
      const RowSoftmax softmax = row_softmax(x.f32() + at[0], classes, row);
      if (log_) {
        const float log_sum = std::log(softmax.sum);
        const float* const from = x.f32() + at[0] + y.tile.lo[last];
        return subtract(from, softmax.maximum, log_sum, y.f32() + at[1], length);
      }
      scale_run(slice, 1.0f / softmax.sum, y.f32() + at[1], length);
    });
  }

  // dx_j = y_j (dy_j - sum_k dy_k y_k), where dy is zero outside of the task's slice; of the
  // logarithm, dy_j - y_j sum_k dy_k.
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const bool adds = task.adds_to_input_grad(0);
    const TensorView &x = task.inputs[0], &dy = task.output_grads[0], &dx = task.input_grads[0];
    const int last = x.rank() - 1;
    const std::int64_t classes = x.extent(last), length = dy.extent(last), lo = dy.tile.lo[last];
    float* const row = scratch(0, classes);
    for_each_row<3>({&x, &dy, &dx}, [&](const Offsets<3>& at) {
      const float scale = 1.0f / row_softmax(x.f32() + at[0], classes, row).sum;
      const float* const grad = dy.f32() + at[1];
      if (log_) {
        return log_softmax_backward_row(row, scale, sum_of(grad, length), grad, lo, lo + length,
                                        classes, dx.f32() + at[2], adds);
      }
      const float mean = dot(grad, row + lo, length) * scale;
      softmax_backward_row(row, scale, mean, grad, lo, lo + length, classes, dx.f32() + at[2],
                           adds);
    });
  }

 private:
  bool log_;
};

const RegisterKernel registered("softmax",
                                [](const Attributes& a) { return std::make_unique<Softmax>(a); });

}  // namespace
}  // namespace flexlegion
