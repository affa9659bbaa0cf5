// dropout, and drop_path, which drops whole samples: while training, each element is kept with
// probability 1 - rate and scaled by 1 / (1 - rate). Every strategy drops the same elements, and
// backward need not store a mask.
#include "ops/dropout.h"

#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

// Element i of the run stands for place `first` + i.
FLEXLEGION_SIMD void drop(const float* x, float* y, std::int64_t n, const DropoutMask& mask,
                          std::uint64_t first, bool adds) {
  const std::uint64_t key = mask.key;
  const std::uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  write_or_add(adds, y, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return drops(key, first + static_cast<std::uint64_t>(i), threshold) ? 0.0f : x[i] * scale;
  });
}

class Dropout : public Kernel {
 public:
  explicit Dropout(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    apply(task.inputs[0], task.outputs[0], task.run, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    apply(task.output_grads[0], task.input_grads[0], task.run, task.adds_to_input_grad(0));
  }

 private:
  void apply(const TensorView& from, const TensorView& to, const RunState& run, bool adds) const {
    if (run.training == 0) return write_or_add_view(to, from, adds);
    const DropoutMask mask = layer_.mask(run);
    const Places places(from);
    for_each_run<3>({&from, &to, &places.view}, [&](const Offsets<3>& at, std::int64_t n) {
      drop(from.f32() + at[0], to.f32() + at[1], n, mask,
           static_cast<std::uint64_t>(places.first + at[2]), adds);
    });
  }

  DropoutLayer layer_;
};

FLEXLEGION_SIMD void scale(const float* x, float factor, float* y, std::int64_t n, bool adds) {
  write_or_add(adds, y, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return x[i] * factor; });
}

class DropPath : public Kernel {
 public:
  explicit DropPath(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    apply(task.inputs[0], task.outputs[0], task.run, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    apply(task.output_grads[0], task.input_grads[0], task.run, task.adds_to_input_grad(0));
  }

 private:
  void apply(const TensorView& from, const TensorView& to, const RunState& run, bool adds) const {
    if (run.training == 0) return write_or_add_view(to, from, adds);
    const DropoutMask mask = layer_.mask(run);
    for (std::int64_t sample = from.tile.lo[0]; sample < from.tile.hi[0]; ++sample) {
      const bool dropped = drops(mask.key, static_cast<std::uint64_t>(sample), mask.threshold);
      const TensorView x = narrowed(from, 0, sample, sample + 1);
      const TensorView y = narrowed(to, 0, sample, sample + 1);
      for_each_run<2>({&x, &y}, [&](const Offsets<2>& at, std::int64_t n) {
        scale(x.f32() + at[0], dropped ? 0.0f : mask.scale, y.f32() + at[1], n, adds);
      });
    }
  }

  DropoutLayer layer_;
};

const RegisterKernel registered_path("drop_path", [](const Attributes& a) {
  return std::make_unique<DropPath>(a);
});
const RegisterKernel registered("dropout",
                                [](const Attributes& a) { return std::make_unique<Dropout>(a); });

}  // namespace
}  // namespace flexlegion
