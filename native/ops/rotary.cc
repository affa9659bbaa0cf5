// rotary: x cos + r(x) sin over (n, s, heads, d), where r turns each pair of channels (a, b) into
// (-b, a). Cosines and sines are (n, s, d) or (n, s, 1, d), where n may be 1.
//
// The gradient is turned back: dx_a = dy_a cos_a + dy_b sin_b and dx_b = dy_b cos_b - dy_a sin_a.
//
// Pairs are (i, i + d / 2), or neighbours where `interleaved`. Each row of channels is turned by
// itself, with the angles of its position, which all heads share. One pass over memory in either
// direction; nothing is saved but the angles.
#include <stdexcept>

#include "ops/kernel.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

// One row. Backwards, the sine is that of the other channel, and the sign is opposite.
FLEXLEGION_SIMD void turn(const float* x, const float* cos, const float* sin, float* y,
                          std::int64_t channels, bool interleaved, bool back, bool adds) {
  const float sign = back ? 1.0f : -1.0f;
  if (interleaved) {
    const std::int64_t of_other = back ? 1 : 0;
    write_or_add(adds, y, channels, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
      const float signed_sine = (i % 2 == 0 ? sign : -sign) * sin[i ^ of_other];
      return x[i] * cos[i] + x[i ^ 1] * signed_sine;
    });
    return;
  }
  const std::int64_t half = channels / 2;
  const float* const of_first = back ? sin + half : sin;
  const float* const of_second = back ? sin : sin + half;
  write_or_add(adds, y, half, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return x[i] * cos[i] + sign * x[half + i] * of_first[i];
  });
  write_or_add(adds, y + half, half, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return x[half + i] * cos[half + i] - sign * x[i] * of_second[i];
  });
}

// The row of a position of a sample, both counted from the tile's start.
const float* row_of(const TensorView& angles, std::int64_t n, std::int64_t s) {
  const std::int64_t sample = angles.extent(0) == 1 ? 0 : n * angles.stride[0];
  return angles.f32() + sample + s * angles.stride[1];
}

class Rotary : public Kernel {
 public:
  explicit Rotary(const Attributes& attributes)
      : interleaved_(attributes.integer("interleaved") != 0) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    apply(task, task.inputs[0], task.outputs[0], false, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    apply(task, task.output_grads[0], task.input_grads[0], true, task.adds_to_input_grad(0));
  }

 private:
  void apply(const KernelTask& task, const TensorView& from, const TensorView& to, bool back,
             bool adds) const {
    const TensorView &cos = task.inputs[1], &sin = task.inputs[2];
    for (const TensorView* view : {&from, &to, &cos, &sin}) {
      if (!view->dense_from(view->rank() - 1)) {
        throw std::invalid_argument("a tile whose rows are not contiguous");
      }
    }
    for (std::int64_t n = 0; n < to.extent(0); ++n) {
      for (std::int64_t s = 0; s < to.extent(1); ++s) {
        for (std::int64_t h = 0; h < to.extent(2); ++h) {
          const auto row = [&](const TensorView& x) {
            return x.f32() + n * x.stride[0] + s * x.stride[1] + h * x.stride[2];
          };
          turn(row(from), row_of(cos, n, s), row_of(sin, n, s), row(to), to.extent(3), interleaved_,
               back, adds);
        }
      }
    }
  }

  bool interleaved_;
};

const RegisterKernel registered("rotary",
                                [](const Attributes& a) { return std::make_unique<Rotary>(a); });

}  // namespace
}  // namespace flexlegion
