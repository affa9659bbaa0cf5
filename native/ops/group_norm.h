// What group_norm's kernels for CPUs and GPUs share.
#pragma once

#include "ops/kernel.h"

namespace flexlegion {

struct GroupNormLayer {
  std::int64_t groups;
  float epsilon;
  int gamma, beta;  // which weights they are, or -1

  explicit GroupNormLayer(const Attributes& attributes)
      : groups(attributes.integer("groups")),
        epsilon(static_cast<float>(attributes.number("epsilon"))),
        gamma(attributes.integer("use_scale") != 0 ? 0 : -1),
        beta(attributes.integer("use_bias") != 0 ? gamma + 1 : -1) {}

  // Channels a group of a tile, which holds whole groups.
  std::int64_t width(const TensorView& x) const { return x.shape[x.rank() - 1] / groups; }
};

}  // namespace flexlegion
