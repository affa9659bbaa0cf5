// position_embedding: output(n, t, c) = input(n, t, c) + table(t, c).
//
// The table's gradient is the sum of dy over the samples: the first sample writes it, unless it
// adds, the others add. Both passes are bound by memory.
#include "ops/kernel.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void add(const float* a, const float* b, float* sum, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

bool adds(const std::vector<bool>& flags) { return !flags.empty() && flags[0]; }

void store(const TensorView& to, const TensorView& from, bool adds) {
  if (adds) {
    add_view(to, from);
  } else {
    copy_view(to, from);
  }
}

class PositionEmbedding : public Kernel {
 public:
  void forward(KernelTask& task) override {
    const TensorView& table = task.weights[0];
    for (std::int64_t n = 0; n < task.outputs[0].extent(0); ++n) {
      const TensorView x = subview(task.inputs[0], n), y = subview(task.outputs[0], n);
      for_each_run<3>({&x, &table, &y}, [&](const Offsets<3>& at, std::int64_t length) {
        add(x.f32() + at[0], table.f32() + at[1], y.f32() + at[2], length);
      });
    }
  }

  // Sample by sample, so that its gradient is in the cache when it is read again.
  void backward(KernelTask& task) override {
    const TensorView& dtable = task.weight_grads[0];
    const TensorView dx = task.input_grads.empty() ? TensorView() : task.input_grads[0];
    const std::int64_t samples = task.output_grads[0].extent(0);
    bool adds_table = adds(task.adds_weight_grad);
    // A task without samples still owns its part of the table's gradient.
    if (samples <= 0 && dtable.present() && !adds_table) zero_view(dtable);
    for (std::int64_t n = 0; n < samples; ++n) {
      const TensorView dy = subview(task.output_grads[0], n);
      if (dx.present()) store(subview(dx, n), dy, adds(task.adds_input_grad));
      if (dtable.present()) store(dtable, dy, adds_table);
      // From the second sample on.
      adds_table = true;
    }
  }

  bool accumulates() const override { return true; }
};

const RegisterKernel registered("position_embedding", [](const Attributes&) {
  return std::make_unique<PositionEmbedding>();
});

}  // namespace
}  // namespace flexlegion
