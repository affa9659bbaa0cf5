// Optimizers on CPU processors: one pass over value, gradient and states, in pieces that are
// contiguous in all of them.
//
// What is the same for all elements of an iteration (bias corrections, the learning rate times the
// decay) is computed once in double precision and rounded once, so that the loop is a few
// operations in single precision, with a square root and a division for Adam.
//
// Lazy Adam is Adam's formula in fewer rows (UpdateKernel::lazy). Of a table, those change that
// were looked up in the batch, even if their gradient is zero. Moments of the others do not decay
// meanwhile. What corrects the bias is the number of iterations all the same, and not how often a
// row was looked up.
#include "ops/optimizers.h"

#include "ops/strided_loop.h"

namespace flexlegion {

SgdRule::SgdRule(const Attributes& attributes)
    : momentum_(attributes.number("momentum")),
      decay_(attributes.number("weight_decay")),
      nesterov_(attributes.integer("nesterov") != 0) {}

// What changes from step to step is the learning rate alone.
SgdConstants SgdRule::constants(const RunState& run) const {
  return {static_cast<float>(run.learning_rate), static_cast<float>(momentum_),
          static_cast<float>(decay_), nesterov_};
}

AdamRule::AdamRule(const Attributes& attributes, AdamKind kind)
    : beta1_(attributes.number("beta1")),
      beta2_(attributes.number("beta2")),
      epsilon_(attributes.number("epsilon")),
      decay_(attributes.number("weight_decay")),
      kind_(kind) {}

// m and v start as zeros, so they are too small by 1 - beta^t. Both corrections are taken out of
// the loop: one into the step's size, the other into the root.
AdamConstants AdamRule::constants(const RunState& run) const {
  const auto t = static_cast<double>(run.step + 1);
  AdamConstants c{};
  c.beta1 = static_cast<float>(beta1_);
  c.beta2 = static_cast<float>(beta2_);
  c.rest1 = static_cast<float>(1.0 - beta1_);
  c.rest2 = static_cast<float>(1.0 - beta2_);
  c.epsilon = static_cast<float>(epsilon_);
  // Adam adds the decay to the gradient, whose moments then hold it. AdamW shrinks the weights
  // themselves.
  const bool decoupled = kind_ == AdamKind::decoupled;
  c.added_decay = decoupled ? 0.0f : static_cast<float>(decay_);
  c.shrink = decoupled ? static_cast<float>(1.0 - run.learning_rate * decay_) : 1.0f;
  c.step_size = static_cast<float>(run.learning_rate / (1.0 - std::pow(beta1_, t)));
  c.root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2_, t)));
  return c;
}

namespace {

// A loop for each rule, so that the compiler vectorises it without branches on the rule.
FLEXLEGION_SIMD void sgd_run(float* w, const float* gradient, std::int64_t n,
                             const SgdConstants& c) {
  for (std::int64_t i = 0; i < n; ++i) sgd_step(w[i], gradient[i], c);
}

FLEXLEGION_SIMD void momentum_run(float* w, const float* gradient, float* velocity, std::int64_t n,
                                  const SgdConstants& c) {
  for (std::int64_t i = 0; i < n; ++i) momentum_step(w[i], gradient[i], velocity[i], c);
}

FLEXLEGION_SIMD void adam_run(float* w, const float* gradient, float* m, float* v, std::int64_t n,
                              const AdamConstants& constants) {
  const AdamConstants c = constants;  // a copy, which the stores below cannot alias
  for (std::int64_t i = 0; i < n; ++i) adam_step(w[i], gradient[i], m[i], v[i], c);
}

class Sgd : public UpdateKernel {
 public:
  explicit Sgd(const Attributes& attributes) : rule_(attributes) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run,
              const float* /*only_if_finite*/) override {
    const SgdConstants c = rule_.constants(run);
    if (!rule_.has_momentum()) {
      for_each_run<2>({&value, &gradient}, [&](const Offsets<2>& at, std::int64_t n) {
        sgd_run(value.f32() + at[0], gradient.f32() + at[1], n, c);
      });
      return;
    }
    // States have the value's shape and tile, so one walk serves them all.
    const TensorView& velocity = states.at(0);
    for_each_run<3>({&value, &gradient, &velocity}, [&](const Offsets<3>& at, std::int64_t n) {
      momentum_run(value.f32() + at[0], gradient.f32() + at[1], velocity.f32() + at[2], n, c);
    });
  }

  bool lazy() const override { return rule_.lazy(); }

 private:
  SgdRule rule_;
};

class Adam : public UpdateKernel {
 public:
  Adam(const Attributes& attributes, AdamKind kind) : rule_(attributes, kind) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run,
              const float* /*only_if_finite*/) override {
    const AdamConstants c = rule_.constants(run);
    const TensorView &m = states.at(0), &v = states.at(1);
    for_each_run<4>({&value, &gradient, &m, &v}, [&](const Offsets<4>& at, std::int64_t n) {
      adam_run(value.f32() + at[0], gradient.f32() + at[1], m.f32() + at[2], v.f32() + at[3], n, c);
    });
  }

  bool lazy() const override { return rule_.lazy(); }

 private:
  AdamRule rule_;
};

const RegisterUpdateKernel registered_sgd("sgd", [](const Attributes& a) {
  return std::make_unique<Sgd>(a);
});
const RegisterUpdateKernel registered_adam("adam", [](const Attributes& a) {
  return std::make_unique<Adam>(a, AdamKind::plain);
});
const RegisterUpdateKernel registered_adamw("adamw", [](const Attributes& a) {
  return std::make_unique<Adam>(a, AdamKind::decoupled);
});
const RegisterUpdateKernel registered_lazy_adam("lazy-adam", [](const Attributes& a) {
  return std::make_unique<Adam>(a, AdamKind::lazy);
});

}  // namespace
}  // namespace flexlegion
