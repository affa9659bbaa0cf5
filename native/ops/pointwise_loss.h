// Losses that are means over functions of one predicted value and its target: what the kernels of
// all kinds of devices share.
#pragma once

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "ops/kernel.h"
#include "ops/vector_math.h"

namespace flexlegion::pointwise {

// Of some values: of the loss, and of what metrics need.
struct LossSums {
  double loss = 0, squared_error = 0, absolute_error = 0, correct = 0;

  FL_DEVICE FLEXLEGION_INLINE void add_error(double error) {
    squared_error += error * error;
    absolute_error += error < 0 ? -error : error;
  }
};

// Each formula adds a value to sums, and has the loss's slope there.

struct SquaredError {
  explicit SquaredError(const Attributes& /*attributes*/) {}
  FL_DEVICE FLEXLEGION_INLINE void add(float x, float target, LossSums& sums) const {
    const double error = static_cast<double>(x) - target;
    sums.loss += error * error;
    sums.add_error(error);
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float x, float target) const {
    return 2.0f * (x - target);
  }
};

struct AbsoluteError {
  explicit AbsoluteError(const Attributes& /*attributes*/) {}
  FL_DEVICE FLEXLEGION_INLINE void add(float x, float target, LossSums& sums) const {
    const double error = static_cast<double>(x) - target;
    sums.loss += error < 0 ? -error : error;
    sums.add_error(error);
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float x, float target) const {
    return x > target ? 1.0f : x < target ? -1.0f : 0.0f;
  }
};

// Half the squared error up to `delta`, from there on linear.
struct Huber {
  explicit Huber(const Attributes& attributes)
      : delta(static_cast<float>(attributes.number("delta"))) {}
  FL_DEVICE FLEXLEGION_INLINE void add(float x, float target, LossSums& sums) const {
    const double error = static_cast<double>(x) - target, size = error < 0 ? -error : error;
    sums.loss += size <= delta ? 0.5 * error * error : delta * (size - 0.5 * delta);
    sums.add_error(error);
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float x, float target) const {
    const float error = x - target;
    return error > delta ? delta : error < -delta ? -delta : error;
  }
  float delta;
};

// What the term of the target is multiplied with in a cross-entropy of two classes, beyond 1; that
// of the other class is not.
inline float positive_excess(const Attributes& attributes) {
  return static_cast<float>(attributes.number("positive_weight")) - 1.0f;
}

// Cross-entropy of target and sigmoid(x): log(1 + exp(x)) - x target, and what the weight of the
// target adds: excess target log(1 + exp(-x)).
struct CrossEntropyOfLogits {
  explicit CrossEntropyOfLogits(const Attributes& attributes)
      : excess(positive_excess(attributes)) {}
  FL_DEVICE FLEXLEGION_INLINE void add(float x, float target, LossSums& sums) const {
    const float size = x < 0 ? -x : x, above = x > 0 ? x : 0.0f;
    const float rest = log1pf(vector_exp(-size));
    float loss = above - x * target + rest;
    if (excess != 0) loss += excess * target * (above - x + rest);
    sums.loss += loss;
    sums.correct += (x > 0) == (target > 0.5f) ? 1 : 0;
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float x, float target) const {
    const float p = vector_sigmoid(x);
    return excess == 0 ? p - target : p - target + excess * target * (p - 1);
  }
  float excess;
};

// The same of a probability p. Where a logarithm or a quotient has no value any more, it is bounded
// as PyTorch bounds it. What is no number stays so: the bounds are written such that a comparison
// with NaN, which is false, keeps it.
struct CrossEntropyOfProbabilities {
  explicit CrossEntropyOfProbabilities(const Attributes& attributes)
      : excess(positive_excess(attributes)) {}
  FL_DEVICE FLEXLEGION_INLINE void add(float p, float target, LossSums& sums) const {
    constexpr float kLeast = -100.0f;
    const float yes = logf(p), no = log1pf(-p);
    const float of_target = excess == 0 ? target : target + excess * target;
    sums.loss -=
        of_target * (yes < kLeast ? kLeast : yes) + (1 - target) * (no < kLeast ? kLeast : no);
    sums.correct += (p > 0.5f) == (target > 0.5f) ? 1 : 0;
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float p, float target) const {
    constexpr float kLeast = 1e-12f;
    const float variance = p * (1 - p);
    const float slope = excess == 0 ? p - target : p - target - excess * target * (1 - p);
    return slope / (variance < kLeast ? kLeast : variance);
  }
  float excess;
};

// The value itself; there is no target.
struct Value {
  explicit Value(const Attributes& /*attributes*/) {}
  FL_DEVICE FLEXLEGION_INLINE void add(float x, float /*target*/, LossSums& sums) const {
    sums.loss += x;
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float /*x*/, float /*target*/) const { return 1.0f; }
};

// Whether samples have weights, which then stand between values and targets.
inline bool has_weights(const KernelTask& task) { return task.inputs.size() == 3; }

// Registers Loss<Formula> for each operator type.
template <template <typename> typename Loss>
void register_all(DeviceKind kind) {
  const auto add = [kind](const char* type, auto make) { RegisterKernel(type, make, kind); };
  add("mean_squared_error",
      [](const Attributes& a) { return std::make_unique<Loss<SquaredError>>(a); });
  add("mean_absolute_error",
      [](const Attributes& a) { return std::make_unique<Loss<AbsoluteError>>(a); });
  add("huber", [](const Attributes& a) { return std::make_unique<Loss<Huber>>(a); });
  add("mean_loss", [](const Attributes& a) { return std::make_unique<Loss<Value>>(a); });
  add("binary_cross_entropy", [](const Attributes& a) -> std::unique_ptr<Kernel> {
    const std::string& of = a.text("of");
    if (of == "logits") return std::make_unique<Loss<CrossEntropyOfLogits>>(a);
    if (of == "probabilities") return std::make_unique<Loss<CrossEntropyOfProbabilities>>(a);
    throw std::invalid_argument("'" + of + "' is none of: logits probabilities");
  });
}

}  // namespace flexlegion::pointwise
