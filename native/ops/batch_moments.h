// What batch_norm_moments joins, on any device: the samples that are not padding.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/kernel.h"

namespace flexlegion {

// Of the tile's samples, those that are not padding: the first ones.
inline std::int64_t samples_that_count(const KernelTask& task) {
  const Rect& tile = task.inputs[0].tile;
  return std::clamp<std::int64_t>(task.run.valid_samples - tile.lo[0], 0, tile.extent(0));
}

// What makes the variance of `values` values an unbiased estimate; of one there is none.
inline float unbiased_factor(std::int64_t values) {
  const auto count = static_cast<double>(values);
  return static_cast<float>(count > 1 ? count / (count - 1) : 1.0);
}

// A running average's next value.
constexpr float averaged(float running, float batch, float momentum) {
  return (1 - momentum) * running + momentum * batch;
}

}  // namespace flexlegion
