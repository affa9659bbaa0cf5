// Convolutions over dense (n, h, w, c) memory: cuDNN on the device, plain loops on the host.
#pragma once

#include "gpu/activation.h"
#include "gpu/view.h"
#include "ops/conv2d.h"

namespace flexlegion::gpu {

// Kernels are (o, kh, kw, c / groups), dense. x and y are stored alike; kernels may be stored
// otherwise. Each takes scratch slots 10 to 15. In bf16, or where x and y are narrow, results are
// rounded as factors are; sums are single precision all the same.
// The bias, of floats, may be absent; it is added, and the activation applied, before results are
// rounded, where cuDNN can.
void convolve(const ConvTile& conv, const Reals& x, const Reals& kernel, const Reals& bias,
              Activation activation, const Reals& y);
void convolve_backward_data(const ConvTile& conv, const Reals& kernel, const Reals& dy,
                            const Reals& dx);
void convolve_backward_kernel(const ConvTile& conv, const Reals& x, const Reals& dy,
                              const Reals& dkernel);

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
