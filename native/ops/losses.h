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

// Which labels count that are numbers of classes.
struct CountedLabels {
  explicit CountedLabels(const Attributes& attributes)
      : ignored(attributes.integer("ignored", -1)) {}

  // The number of a label's class; -1 if the label does not count.
  FL_DEVICE std::int64_t class_of(std::int64_t label, std::int64_t classes) const {
    return label < 0 || label >= classes || label == ignored ? -1 : label;
  }

  std::int64_t ignored;
};

// What a cross-entropy by class numbers makes of the statistics of its logits (losses.cc).
struct CrossEntropyFormula {
  explicit CrossEntropyFormula(const Attributes& attributes)
      : counted(attributes),
        classes(attributes.integer("classes")),
        smoothing(smoothing_of(attributes)),
        class_weights(attributes.integer("class_weights", 0) != 0),
        label_weights(attributes.integer("label_weights", 0) != 0),
        mean_weight(class_weights ? static_cast<float>(attributes.number("mean_weight")) : 1.0f) {}

  // How many statistics there are: the inputs that come first.
  std::size_t statistics() const { return smoothing > 0 ? 3 : 2; }

  // What log_sum is multiplied with, for a class of that weight.
  FL_DEVICE float of_log_sum(float class_weight) const {
    return class_weights ? (1.0f - smoothing) * class_weight + smoothing * mean_weight : 1.0f;
  }

  CountedLabels counted;
  std::int64_t classes;
  float smoothing;
  bool class_weights, label_weights;
  float mean_weight;
};

// Whether a tile of values of labels has the first step of its samples: the one that counts them.
inline bool has_first_step(const TensorView& labels) {
  return labels.rank() == 1 || labels.tile.lo[1] == 0;
}

}  // namespace flexlegion
