// The activations of experts, and their slopes, for both kinds of device.
#pragma once

#include <stdexcept>
#include <string>

#include "gpu/portable.h"
#include "ops/activation.h"
#include "ops/kernel.h"
#include "ops/vector_math.h"

namespace flexlegion {

struct ExpertActivation {
  enum Function { relu, gelu, silu } function;

  explicit ExpertActivation(const std::string& name)
      : function(name == "relu"   ? relu
                 : name == "gelu" ? gelu
                                  : silu) {
    if (function == silu && name != "silu") {
      throw std::invalid_argument("unknown activation '" + name + "'");
    }
  }

  FL_DEVICE FLEXLEGION_INLINE float value(float x) const {
    if (function == relu) return relu_of(x);
    if (function == gelu) return x * below(x);
    return x * vector_sigmoid(x);
  }
  FL_DEVICE FLEXLEGION_INLINE float slope(float x) const {
    if (function == relu) return x <= 0 ? 0.0f : 1.0f;
    if (function == gelu) return below(x) + x * 0.39894228f * vector_exp(-0.5f * x * x);
    const float s = vector_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
  }

 private:
  // The normal distribution's share below x.
  FL_DEVICE FLEXLEGION_INLINE static float below(float x) {
    return 0.5f * (1.0f + vector_erf(x * 0.70710678f));
  }
};

}  // namespace flexlegion
