// sgd, adam and adamw: one pass over a weight's shard.
#include "gpu/view.h"
#include "ops/optimizers.h"

namespace flexlegion::gpu {
namespace {

class Sgd : public UpdateKernel {
 public:
  explicit Sgd(const Attributes& attributes) : rule_(attributes) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run) override {
    const SgdConstants c = rule_.constants(run);
    const bool momentum = rule_.has_momentum();
    const Strided w = Strided::merged(value), g = Strided::merged(gradient),
                  velocity = momentum ? Strided::merged(states.at(0)) : Strided();
    for_each(value.volume(), [=] FL_BODY(std::int64_t i) {
      if (momentum) {
        momentum_step(w[i], g[i], velocity[i], c);
      } else {
        sgd_step(w[i], g[i], c);
      }
    });
  }

  bool skips_zeros() const override { return rule_.skips_zeros(); }

 private:
  SgdRule rule_;
};

class Adam : public UpdateKernel {
 public:
  Adam(const Attributes& attributes, bool decoupled) : rule_(attributes, decoupled) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run) override {
    const AdamConstants c = rule_.constants(run);
    const Strided w = Strided::merged(value), g = Strided::merged(gradient),
                  m = Strided::merged(states.at(0)), v = Strided::merged(states.at(1));
    for_each(value.volume(), [=] FL_BODY(std::int64_t i) { adam_step(w[i], g[i], m[i], v[i], c); });
  }

 private:
  AdamRule rule_;
};

const RegisterUpdateKernel registered_sgd(
    "sgd", [](const Attributes& a) { return std::make_unique<Sgd>(a); }, DeviceKind::gpu);
const RegisterUpdateKernel registered_adam(
    "adam", [](const Attributes& a) { return std::make_unique<Adam>(a, false); }, DeviceKind::gpu);
const RegisterUpdateKernel registered_adamw(
    "adamw", [](const Attributes& a) { return std::make_unique<Adam>(a, true); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
