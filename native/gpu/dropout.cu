// dropout, and drop_path, which drops whole samples: the mask of ops/dropout.h.
#include "ops/dropout.h"

#include "gpu/rows.h"

namespace flexlegion::gpu {
namespace {

void drop(const TensorView& from, const TensorView& to, const DropoutMask& mask, bool adds,
          bool samples) {
  const Places whole(from, samples);
  const Strided x = joined(from), y = joined(to), places = joined(whole.view);
  const std::int64_t first = whole.first;
  const std::uint64_t key = mask.key;
  const std::uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto place = static_cast<std::uint64_t>(first + places.offset_of(i));
    put(y[i], drops(key, place, threshold) ? 0.0f : x[i] * scale, adds);
  });
}

class Dropout : public Kernel {
 public:
  Dropout(const Attributes& attributes, bool samples) : layer_(attributes), samples_(samples) {}

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
    if (run.training == 0) return gpu::write_or_add_view(to, from, adds);
    drop(from, to, layer_.mask(run), adds, samples_);
  }

  DropoutLayer layer_;
  bool samples_;
};

const RegisterKernel registered(
    "dropout", [](const Attributes& a) { return std::make_unique<Dropout>(a, false); },
    DeviceKind::gpu);
const RegisterKernel registered_path(
    "drop_path", [](const Attributes& a) { return std::make_unique<Dropout>(a, true); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
