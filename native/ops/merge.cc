// add: element-wise sum of several inputs; concat: inputs one after the other along one dimension.
#include "ops/kernel.h"

namespace flexlegion {
namespace {

class Add : public Kernel {
 public:
  void forward(KernelTask& task) override {
    copy_view(task.outputs[0], task.inputs[0]);
    for (std::size_t i = 1; i < task.inputs.size(); ++i) {
      add_view(task.outputs[0], task.inputs[i]);
    }
  }

  void backward(KernelTask& task) override {
    for (const TensorView& gradient : task.input_grads) {
      if (gradient.present()) copy_view(gradient, task.output_grads[0]);
    }
  }
};

class Concat : public Kernel {
 public:
  explicit Concat(const Attributes& attributes)
      : axis_(static_cast<int>(attributes.integer("axis"))) {}

  void forward(KernelTask& task) override {
    std::int64_t offset = 0;
    for (const TensorView& input : task.inputs) {
      if (input.present()) copy_view(part(task.outputs[0], input, offset), input);
      offset += input.shape[axis_];
    }
  }

  void backward(KernelTask& task) override {
    std::int64_t offset = 0;
    for (const TensorView& gradient : task.input_grads) {
      if (gradient.present()) copy_view(gradient, part(task.output_grads[0], gradient, offset));
      offset += gradient.shape[axis_];
    }
  }

 private:
  // Where `input`'s tile lies in the joined tensor's, if the input begins at `offset` there.
  TensorView part(const TensorView& joined, const TensorView& input, std::int64_t offset) const {
    TensorView view = joined;
    view.tile.lo[axis_] = input.tile.lo[axis_] + offset;
    view.tile.hi[axis_] = input.tile.hi[axis_] + offset;
    view.data = joined.f32() + (view.tile.lo[axis_] - joined.tile.lo[axis_]) * joined.stride[axis_];
    return view;
  }

  int axis_;
};

const RegisterKernel registered_add("add",
                                    [](const Attributes&) { return std::make_unique<Add>(); });
const RegisterKernel registered_concat("concat", [](const Attributes& a) {
  return std::make_unique<Concat>(a);
});

}  // namespace
}  // namespace flexlegion
