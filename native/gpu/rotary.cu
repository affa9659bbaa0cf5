// rotary: as native/ops/rotary.cc says, an element at a time.
//
// Each element reads its partner, so x is read twice, the second time from the caches. Angles are
// seen as a tile of x's extents, with strides of 0 where they repeat.
#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

// Cosines or sines as a tile of x's extents: the same for every head, and perhaps every sample.
TensorView repeated(const TensorView& angles, const TensorView& x) {
  TensorView view = x;
  view.data = angles.data;
  view.type = angles.type;
  const std::int64_t sample = angles.extent(0) == 1 ? 0 : angles.stride[0];
  view.stride = {sample, angles.stride[1], 0, angles.stride[angles.rank() - 1]};
  return view;
}

void turn(const KernelTask& task, const TensorView& from, const TensorView& to, bool interleaved,
          bool back, bool adds) {
  const TensorView cos = repeated(task.inputs[1], to), sin = repeated(task.inputs[2], to);
  const Tiles<4> tiles({&to, &from, &cos, &sin});
  const std::int64_t channels = to.extent(3), gap = interleaved ? 1 : channels / 2;
  const std::int64_t x_step = from.stride[3], sine_step = sin.stride[3];
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto e = tiles(i);
    const bool first = i % channels / gap % 2 == 0;  // of its pair
    const std::int64_t other = first ? gap : -gap;
    // Turning back swaps the sines of the two elements of a pair, and their signs.
    const float sine = e.at(3)[back ? other * sine_step : 0];
    const float x = e.at(1)[other * x_step];
    put(e[0], e[1] * e[2] + (first != back ? -x : x) * sine, adds);
  });
}

class Rotary : public Kernel {
 public:
  explicit Rotary(const Attributes& attributes)
      : interleaved_(attributes.integer("interleaved") != 0) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    turn(task, task.inputs[0], task.outputs[0], interleaved_, false, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    turn(task, task.output_grads[0], task.input_grads[0], interleaved_, true,
         task.adds_to_input_grad(0));
  }

 private:
  bool interleaved_;
};

const RegisterKernel registered(
    "rotary", [](const Attributes& a) { return std::make_unique<Rotary>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
