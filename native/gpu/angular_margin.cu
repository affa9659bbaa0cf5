// angular_margin: scale * x, but with a margin at each sample's own class; see
// ops/angular_margin.cc.
//
// A thread for each element compares its class with the sample's label: that costs less than to
// find one element a row in a second launch. Labels below 0 equal no class, so these rows are only
// scaled.
#include "ops/angular_margin.h"

#include "gpu/rows.h"

namespace flexlegion::gpu {
namespace {

class AngularMarginKernel : public Kernel {
 public:
  explicit AngularMarginKernel(const Attributes& attributes) : margin_(attributes) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& tile = task.outputs[0];
    const std::int64_t classes = tile.extent(1), first = tile.tile.lo[1];
    const Rows x(task.inputs[0]), y(tile);
    const Strided labels(task.inputs[1]);
    const bool training = task.run.training != 0;
    for_each(tile.volume(), [=, margin = margin_] FL_BODY(std::int64_t i) {
      const std::int64_t r = i / classes, c = i % classes;
      const bool own = training && labels.integer(r) == first + c;
      y(r, c) = own ? margin.value(x(r, c)) : margin.scale * x(r, c);
    });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView& tile = task.output_grads[0];
    const std::int64_t classes = tile.extent(1), first = tile.tile.lo[1];
    const Rows x(task.inputs[0]), dy(tile), dx(task.input_grads[0]);
    const Strided labels(task.inputs[1]);
    const bool adds = task.adds_to_input_grad(0);
    for_each(tile.volume(), [=, margin = margin_] FL_BODY(std::int64_t i) {
      const std::int64_t r = i / classes, c = i % classes;
      const bool own = labels.integer(r) == first + c;
      put(dx(r, c), dy(r, c) * (own ? margin.slope(x(r, c)) : margin.scale), adds);
    });
  }

 private:
  AngularMargin margin_;
};

const RegisterKernel registered(
    "angular_margin", [](const Attributes& a) { return std::make_unique<AngularMarginKernel>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
