// Optimizers, with PyTorch's semantics: sgd, adam (weight decay added to the gradient) and adamw
// (decoupled weight decay).
#include <cmath>

#include "ops/kernel.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

struct SgdConstants {
  float rate, momentum, decay;
  bool nesterov;
};

FLEXLEGION_SIMD void sgd_step(float* w, const float* gradient, std::int64_t n,
                              const SgdConstants& c) {
  for (std::int64_t i = 0; i < n; ++i) w[i] -= c.rate * (gradient[i] + c.decay * w[i]);
}

FLEXLEGION_SIMD void momentum_step(float* w, const float* gradient, float* velocity, std::int64_t n,
                                   const SgdConstants& c) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] + c.decay * w[i];
    const float v = c.momentum * velocity[i] + g;
    velocity[i] = v;
    w[i] -= c.rate * (c.nesterov ? g + c.momentum * v : v);
  }
}

class Sgd : public UpdateKernel {
 public:
  explicit Sgd(const Attributes& attributes)
      : momentum_(attributes.number("momentum")),
        decay_(attributes.number("weight_decay")),
        nesterov_(attributes.integer("nesterov") != 0) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run) override {
    const SgdConstants c{static_cast<float>(run.learning_rate), static_cast<float>(momentum_),
                         static_cast<float>(decay_), nesterov_};
    if (momentum_ == 0) {
      for_each_run<2>({&value, &gradient}, [&](const Offsets<2>& at, std::int64_t n) {
        sgd_step(value.f32() + at[0], gradient.f32() + at[1], n, c);
      });
      return;
    }
    const TensorView& velocity = states.at(0);
    for_each_run<3>({&value, &gradient, &velocity}, [&](const Offsets<3>& at, std::int64_t n) {
      momentum_step(value.f32() + at[0], gradient.f32() + at[1], velocity.f32() + at[2], n, c);
    });
  }

  bool skips_zeros() const override { return momentum_ == 0 && decay_ == 0; }

 private:
  double momentum_, decay_;
  bool nesterov_;
};

struct AdamConstants {
  float beta1, beta2, rest1, rest2;  // rest = 1 - beta, rounded once
  float epsilon;
  float added_decay;      // times the value, added to the gradient
  float shrink;           // what the value is multiplied with first
  float step_size;        // learning rate / (1 - beta1^t)
  float root_correction;  // 1 / sqrt(1 - beta2^t)
};

FLEXLEGION_SIMD void adam_step(float* w, const float* gradient, float* m, float* v, std::int64_t n,
                               const AdamConstants& constants) {
  const AdamConstants c = constants;  // a copy, which the stores below cannot alias
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] + c.added_decay * w[i];
    m[i] = c.beta1 * m[i] + c.rest1 * g;
    v[i] = c.beta2 * v[i] + c.rest2 * g * g;
    w[i] = c.shrink * w[i] - c.step_size * m[i] / (std::sqrt(v[i]) * c.root_correction + c.epsilon);
  }
}

class Adam : public UpdateKernel {
 public:
  Adam(const Attributes& attributes, bool decoupled)
      : beta1_(attributes.number("beta1")),
        beta2_(attributes.number("beta2")),
        epsilon_(attributes.number("epsilon")),
        decay_(attributes.number("weight_decay")),
        decoupled_(decoupled) {}

  void update(const TensorView& value, const TensorView& gradient,
              const std::vector<TensorView>& states, const RunState& run) override {
    const auto t = static_cast<double>(run.step + 1);
    AdamConstants c{};
    c.beta1 = static_cast<float>(beta1_);
    c.beta2 = static_cast<float>(beta2_);
    c.rest1 = static_cast<float>(1.0 - beta1_);
    c.rest2 = static_cast<float>(1.0 - beta2_);
    c.epsilon = static_cast<float>(epsilon_);
    c.added_decay = decoupled_ ? 0.0f : static_cast<float>(decay_);
    c.shrink = decoupled_ ? static_cast<float>(1.0 - run.learning_rate * decay_) : 1.0f;
    c.step_size = static_cast<float>(run.learning_rate / (1.0 - std::pow(beta1_, t)));
    c.root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2_, t)));
    const TensorView &m = states.at(0), &v = states.at(1);
    for_each_run<4>({&value, &gradient, &m, &v}, [&](const Offsets<4>& at, std::int64_t n) {
      adam_step(value.f32() + at[0], gradient.f32() + at[1], m.f32() + at[2], v.f32() + at[3], n,
                c);
    });
  }

 private:
  double beta1_, beta2_, epsilon_, decay_;
  bool decoupled_;
};

const RegisterUpdateKernel registered_sgd("sgd", [](const Attributes& a) {
  return std::make_unique<Sgd>(a);
});
const RegisterUpdateKernel registered_adam("adam", [](const Attributes& a) {
  return std::make_unique<Adam>(a, false);
});
const RegisterUpdateKernel registered_adamw("adamw", [](const Attributes& a) {
  return std::make_unique<Adam>(a, true);
});

}  // namespace
}  // namespace flexlegion
