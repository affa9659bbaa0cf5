// sgd, adam, adamw and lazy-adam: one pass over a weight's shard, or over rows of a table that were
// gathered.
//
// One launch a weight, which reads the value, the gradient and the states once and writes what
// changes. The formulas and their constants are ops/optimizers.h's, so both kinds of device agree.
// Whether scaled gradients overflowed is known on the device alone: each thread looks at the norm,
// and leaves everything as it is.
#include "gpu/view.h"
#include "ops/optimizers.h"

namespace flexlegion::gpu {
namespace {

// Infinity less itself is NaN, and so is NaN.
FL_DEVICE inline bool is_finite(float x) { return x - x == 0.0f; }

class Sgd : public UpdateKernel {
 public:
  explicit Sgd(const Attributes& attributes) : rule_(attributes) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run,
              const float* only_if_finite) override {
    const SgdConstants c = rule_.constants(run);
    const bool momentum = rule_.has_momentum();
    for_each_element<3>({&value, &gradient, momentum ? &states.at(0) : &value},
                        [=] FL_BODY(auto e) {
                          if (only_if_finite != nullptr && !is_finite(*only_if_finite)) return;
                          auto weights = e[0];
                          const auto grads = e[1];
                          if (momentum) {
                            auto velocities = e[2];
                            for (int k = 0; k < e.kWidth; ++k) {
                              momentum_step(weights[k], grads[k], velocities[k], c);
                            }
                            e.set(2, velocities);
                          } else {
                            for (int k = 0; k < e.kWidth; ++k) sgd_step(weights[k], grads[k], c);
                          }
                          e.set(0, weights);
                        });
  }

  bool lazy() const override { return rule_.lazy(); }
  // Its constants hold no step, unlike Adam's bias correction.
  bool repeats() const override { return true; }

 private:
  SgdRule rule_;
};

// Its constants hold the step's bias corrections, so a launch is not the same in each iteration: it
// does not repeat.
class Adam : public UpdateKernel {
 public:
  Adam(const Attributes& attributes, AdamKind kind) : rule_(attributes, kind) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run,
              const float* only_if_finite) override {
    const AdamConstants c = rule_.constants(run);
    for_each_element<4>({&value, &gradient, &states.at(0), &states.at(1)}, [=] FL_BODY(auto e) {
      if (only_if_finite != nullptr && !is_finite(*only_if_finite)) return;
      auto weights = e[0], means = e[2], squares = e[3];
      const auto grads = e[1];
      for (int k = 0; k < e.kWidth; ++k) {
        adam_step(weights[k], grads[k], means[k], squares[k], c);
      }
      e.set(0, weights);
      e.set(2, means);
      e.set(3, squares);
    });
  }

  bool lazy() const override { return rule_.lazy(); }

 private:
  AdamRule rule_;
};

RegisterUpdateKernel registered_as(const char* name, AdamKind kind) {
  return {name, [kind](const Attributes& a) { return std::make_unique<Adam>(a, kind); },
          DeviceKind::gpu};
}

const RegisterUpdateKernel registered_sgd(
    "sgd", [](const Attributes& a) { return std::make_unique<Sgd>(a); }, DeviceKind::gpu);
const RegisterUpdateKernel registered_adam = registered_as("adam", AdamKind::plain);
const RegisterUpdateKernel registered_adamw = registered_as("adamw", AdamKind::decoupled);
const RegisterUpdateKernel registered_lazy_adam = registered_as("lazy-adam", AdamKind::lazy);

}  // namespace
}  // namespace flexlegion::gpu
