// What the three operators of batch normalisation share.
#pragma once

#include "gpu/rows.h"

namespace flexlegion::gpu {

// The two rows of statistics or moments (..., 2, c), of the i-th sample of the tile. Without memory
// if the tile is absent.
struct MeansAndVariances {
  float* data = nullptr;
  std::int64_t sample = 0, row = 0, channel = 0;  // strides

  MeansAndVariances() = default;
  explicit MeansAndVariances(const TensorView& view)
      : data(view.f32()), sample(view.stride[0]), row(view.stride[1]), channel(view.stride[2]) {}

  FL_DEVICE bool present() const { return data != nullptr; }
  FL_DEVICE float& mean(std::int64_t i, std::int64_t c) const {
    return data[i * sample + c * channel];
  }
  FL_DEVICE float& variance(std::int64_t i, std::int64_t c) const {
    return data[i * sample + row + c * channel];
  }
};

}  // namespace flexlegion::gpu
