// Rows of logits, one a label: of a sample, or a sample and step.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "ops/losses.h"

namespace flexlegion {

// Where a label is in its tile; without sequences the step is 0.
struct Place {
  std::int64_t sample, step;
};

inline std::int64_t offset(const TensorView& view, const Place& at) {
  return at.sample * view.stride[0] + at.step * view.stride[1];
}

// For tiles (sample) or (sample, step): body(place, whether its sample is no padding).
template <typename Body>
void for_each_label(const TensorView& labels, const RunState& run, Body&& body) {
  if (labels.tile.empty()) return;
  const std::int64_t steps = labels.rank() == 2 ? labels.extent(1) : 1;
  const std::int64_t valid = valid_samples(labels, run);
  for (std::int64_t sample = 0; sample < labels.extent(0); ++sample) {
    for (std::int64_t step = 0; step < steps; ++step) body(Place{sample, step}, sample < valid);
  }
}

// How many classes a tile of logits has; its rows have to be contiguous.
inline std::int64_t classes_in(const TensorView& logits) {
  const int last = logits.rank() - 1;
  if (logits.dense_from(last)) return logits.extent(last);
  throw std::invalid_argument("a tile whose rows are not contiguous");
}

}  // namespace flexlegion
