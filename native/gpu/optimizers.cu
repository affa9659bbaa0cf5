// sgd, adam and adamw: one pass over a weight's shard.
#include "gpu/view.h"
#include "ops/optimizers.h"

namespace flexlegion::gpu {
namespace {

FL_DEVICE inline bool is_finite(float x) { return x - x == 0.0f; }

class Sgd : public UpdateKernel {
 public:
  explicit Sgd(const Attributes& attributes) : rule_(attributes) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run,
              const float* only_if_finite) override {
    const SgdConstants c = rule_.constants(run);
    const bool momentum = rule_.has_momentum();
    const Tiles<3> tiles({&value, &gradient, momentum ? &states.at(0) : &value});
    for_each(value.volume(), [=] FL_BODY(std::int64_t i) {
      if (only_if_finite != nullptr && !is_finite(*only_if_finite)) return;
      const auto e = tiles(i);
      float weight = e[0], velocity = e[2];
      if (momentum) {
        momentum_step(weight, e[1], velocity, c);
        e[2] = velocity;
      } else {
        sgd_step(weight, e[1], c);
      }
      e[0] = weight;
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
              const std::vector<TensorView>& states, const RunState& run,
              const float* only_if_finite) override {
    const AdamConstants c = rule_.constants(run);
    const Tiles<4> tiles({&value, &gradient, &states.at(0), &states.at(1)});
    for_each(value.volume(), [=] FL_BODY(std::int64_t i) {
      if (only_if_finite != nullptr && !is_finite(*only_if_finite)) return;
      const auto e = tiles(i);
      float weight = e[0], mean = e[2], square = e[3];
      adam_step(weight, e[1], mean, square, c);
      e[0] = weight;
      e[2] = mean;
      e[3] = square;
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
