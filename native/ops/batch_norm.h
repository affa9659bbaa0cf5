// What the three operators of batch normalisation share.
#pragma once

#include <cstdint>

#include "ops/channel_rows.h"
#include "ops/epilogue.h"
#include "ops/kernel.h"

namespace flexlegion {

// The two rows of statistics or moments (..., 2, c), of the i-th sample of the tile.
struct MeanAndVariance {
  float *mean, *variance;
  MeanAndVariance(const TensorView& view, std::int64_t i)
      : mean(view.f32() + i * view.stride[0]), variance(mean + view.stride[1]) {}
};

// y = (x - center) * scale + offset, plus an addend if it adds one, then the epilogue: with an
// addend, a ReLU at most. The parameters are a channel's each, for a row of the group.
struct Affine {
  const float *center, *scale, *offset;
  Epilogue epilogue = Epilogue::none;
  bool adds = false;
};

// The group's rows are those of x, the addend and y. The addend may be y itself, whose old values
// it then is; without an addend, it is not touched.
void affine(const Affine& f, const float* x, const float* addend, float* y,
            const RowGroup<3>& group);
void affine(const Affine& f, const Bfloat16* x, const Bfloat16* addend, Bfloat16* y,
            const RowGroup<3>& group);

// Tiles of one operator are all stored alike; throws std::logic_error if they are not.
void check_alike(const TensorView& a, const TensorView& b);

}  // namespace flexlegion
