// What the three operators of batch normalisation share.
#pragma once

#include <cstdint>

#include "ops/channel_rows.h"
#include "ops/kernel.h"

namespace flexlegion {

// The two rows of statistics or moments (..., 2, c), of the i-th sample of the tile.
struct MeanAndVariance {
  float *mean, *variance;
  MeanAndVariance(const TensorView& view, std::int64_t i)
      : mean(view.f32() + i * view.stride[0]), variance(mean + view.stride[1]) {}
};

// y = (x - center) * scale + offset, then ReLU if asked for; or, without ReLU, added to y. The
// parameters are a channel's each, for a row of the group.
struct Affine {
  const float *center, *scale, *offset;  // a channel each
  bool relu = false, adds = false;
};

void affine(const Affine& f, const float* x, float* y, const RowGroup<2>& group);

}  // namespace flexlegion
