// What layer_norm's kernels for CPUs and GPUs share.
#pragma once

#include "ops/kernel.h"

namespace flexlegion {

struct Norm {
  float epsilon;
  bool center;
  int gamma, beta;  // which weights they are, or -1

  explicit Norm(const Attributes& attributes)
      : epsilon(static_cast<float>(attributes.number("epsilon"))),
        center(attributes.integer("center") != 0),
        gamma(attributes.integer("use_scale") != 0 ? 0 : -1),
        beta(attributes.integer("use_bias") != 0 ? gamma + 1 : -1) {}
};

}  // namespace flexlegion
