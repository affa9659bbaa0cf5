// What the losses of every kind of device share.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "ops/kernel.h"

namespace flexlegion {

// How many of a tile's samples count: the last ones of a batch may be padding.
inline std::int64_t valid_samples(const TensorView& batch, const RunState& run) {
  return std::clamp<std::int64_t>(run.valid_samples - batch.tile.lo[0], 0, batch.extent(0));
}

// Whether labels are numbers of classes; the others are distributions over the classes.
inline bool sparse_labels(const Attributes& attributes) {
  const std::string& labels = attributes.text("labels");
  if (labels == "sparse") return true;
  if (labels == "one_hot") return false;
  throw std::invalid_argument("labels '" + labels + "' is none of: sparse one_hot");
}

// The share of each label that all classes get evenly.
inline float smoothing_of(const Attributes& attributes) {
  return static_cast<float>(attributes.number("smoothing"));
}

}  // namespace flexlegion
