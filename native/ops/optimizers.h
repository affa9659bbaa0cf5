// Optimizers' formulas, with PyTorch's semantics: sgd, adam (weight decay added to the gradient),
// adamw (decoupled weight decay), and lazy-adam (adam in other rows), for the CPU's kernels and the
// GPU's.
#pragma once

#include <cmath>

#include "gpu/portable.h"
#include "ops/kernel.h"
#include "ops/simd.h"

namespace flexlegion {

// What an update of one element needs to know.
struct SgdConstants {
  float rate, momentum, decay;
  bool nesterov;
};

struct AdamConstants {
  float beta1, beta2, rest1, rest2;  // rest = 1 - beta, rounded once
  float epsilon;
  float added_decay;      // times the value, added to the gradient
  float shrink;           // what the value is multiplied with first
  float step_size;        // learning rate / (1 - beta1^t)
  float root_correction;  // 1 / sqrt(1 - beta2^t)
};

FL_DEVICE FLEXLEGION_INLINE void sgd_step(float& w, float gradient, const SgdConstants& c) {
  w -= c.rate * (gradient + c.decay * w);
}

FL_DEVICE FLEXLEGION_INLINE void momentum_step(float& w, float gradient, float& velocity,
                                               const SgdConstants& c) {
  const float g = gradient + c.decay * w;
  const float v = c.momentum * velocity + g;
  velocity = v;
  w -= c.rate * (c.nesterov ? g + c.momentum * v : v);
}

FL_DEVICE FLEXLEGION_INLINE void adam_step(float& w, float gradient, float& m, float& v,
                                           const AdamConstants& c) {
  const float g = gradient + c.added_decay * w;
  m = c.beta1 * m + c.rest1 * g;
  v = c.beta2 * v + c.rest2 * g * g;
  w = c.shrink * w - c.step_size * m / (std::sqrt(v) * c.root_correction + c.epsilon);
}

class SgdRule {
 public:
  explicit SgdRule(const Attributes& attributes);
  SgdConstants constants(const RunState& run) const;
  bool has_momentum() const { return momentum_ != 0; }
  // Then a gradient of zeros changes nothing.
  bool lazy() const { return momentum_ == 0 && decay_ == 0; }

 private:
  double momentum_, decay_;
  bool nesterov_;
};

enum class AdamKind { plain, decoupled, lazy };

class AdamRule {
 public:
  AdamRule(const Attributes& attributes, AdamKind kind);
  AdamConstants constants(const RunState& run) const;
  bool lazy() const { return kind_ == AdamKind::lazy; }

 private:
  double beta1_, beta2_, epsilon_, decay_;
  AdamKind kind_;
};

}  // namespace flexlegion
