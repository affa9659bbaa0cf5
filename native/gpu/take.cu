// take, as ops/take.h describes it.
//
// A thread for each element. Backwards, the outputs that named an input are listed by `order` and
// `starts`, so an input gathers its gradients in the order of the outputs. Atomic additions would
// need no lists, but add in any order.
#include "ops/take.h"

#include "gpu/view.h"

namespace flexlegion::gpu {
namespace {

class Take : public Kernel {
 public:
  explicit Take(const Attributes& attributes)
      : axis_(static_cast<int>(attributes.integer("axis"))) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const TakeTile t(task.inputs[0], output, axis_);
    const DataType type = output.type;
    const DenseInput in(task.inputs[0], 0, type);
    const DenseOutput out(output, 1, false, type);
    const Reals x(in.memory(), type), y(out.memory(), type);
    const std::int32_t* const numbers = task.inputs[1].i32();
    for_each(output.volume(), [=] FL_BODY(std::int64_t i) {
      // The element's place in (outer, taken, inner) dimensions.
      const std::int64_t inner = i % t.inner, j = i / t.inner % t.out, o = i / t.inner / t.out;
      y[i] = x[(o * t.in + numbers[t.out_lo + j]) * t.inner + inner];
    });
    out.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    const TakeTile t(input_grad, output_grad, axis_);
    const DataType type = output_grad.type;
    const DenseInput in(output_grad, 1, type);
    const DenseOutput out(input_grad, 0, task.adds_to_input_grad(0), type);
    const Reals dy(in.memory(), type), dx(out.memory(), type);
    const std::int32_t* const order = task.inputs[2].i32();
    const std::int32_t* const starts = task.inputs[3].i32();
    for_each(input_grad.volume(), [=] FL_BODY(std::int64_t i) {
      const std::int64_t inner = i % t.inner, e = i / t.inner % t.in, o = i / t.inner / t.in;
      float sum = 0;
      for (std::int32_t k = starts[e]; k < starts[e + 1]; ++k) {
        // The lists are of the whole output, of which the task has a tile.
        const std::int64_t j = order[k] - t.out_lo;
        if (j >= 0 && j < t.out) sum += dy[(o * t.out + j) * t.inner + inner];
      }
      dx[i] = sum;
    });
    out.commit();
  }

 private:
  int axis_;
};

const RegisterKernel registered(
    "take", [](const Attributes& a) { return std::make_unique<Take>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
