// What the losses of every kind of device share.
#pragma once

#include <algorithm>

#include "ops/kernel.h"

namespace flexlegion {

// How many of a tile's samples count: the last ones of a batch may be padding.
inline std::int64_t valid_samples(const TensorView& batch, const RunState& run) {
  return std::clamp<std::int64_t>(run.valid_samples - batch.tile.lo[0], 0, batch.extent(0));
}

// The share of each label that all classes get evenly.
inline float smoothing_of(const Attributes& attributes) {
  return static_cast<float>(attributes.number("smoothing"));
}

// Whether a tile of values of labels has the first step of its samples: the one that counts them.
inline bool has_first_step(const TensorView& labels) {
  return labels.rank() == 1 || labels.tile.lo[1] == 0;
}

}  // namespace flexlegion
