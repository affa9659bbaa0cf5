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
    const Tiles<3> tiles({&value, &gradient, momentum ? &states.at(0) : &value});
    for_each(value.volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      if (momentum) {
        momentum_step(e[0], e[1], e[2], c);
      } else {
        sgd_step(e[0], e[1], c);
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
    const Tiles<4> tiles({&value, &gradient, &states.at(0), &states.at(1)});
    for_each(value.volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      adam_step(e[0], e[1], e[2], e[3], c);
    });
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
