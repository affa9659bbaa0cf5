// Convolutions over dense (n, h, w, c) memory: cuDNN on the device, plain loops on the host.
#pragma once

#include "gpu/view.h"
#include "ops/conv2d.h"

namespace flexlegion::gpu {

// Kernels are (o, kh, kw, c / groups), dense. Each takes scratch slots 10 to 15.
// In bf16, results are rounded as factors are; sums are single precision all the same.
void convolve(const ConvTile& conv, const float* x, const float* kernel, float* y);
void convolve_backward_data(const ConvTile& conv, const float* kernel, const float* dy, float* dx);
void convolve_backward_kernel(const ConvTile& conv, const float* x, const float* dy,
                              float* dkernel);

// cuDNN pads both ends alike and leaves out what is too little for a last window; but a tile at a
// tensor's border has its padding at one end. What cuDNN cannot pad lies in scratch memory, as
// zeros around the tile.
struct AxisPadding {
  std::int64_t both = 0;               // cuDNN's
  std::int64_t before = 0, after = 0;  // in memory

  explicit AxisPadding(const WindowTile& t) {
    const std::int64_t excess = t.before - t.after;
    if (excess >= 0 && excess < t.stride) {
      both = t.before;
      return;
    }
    both = std::max<std::int64_t>(0, std::min(t.before, t.after));
    before = t.before - both;
    after = std::max<std::int64_t>(0, t.after - both);
  }
  bool in_memory() const { return before + after > 0; }
};

}  // namespace flexlegion::gpu
