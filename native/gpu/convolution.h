// Convolutions over dense (n, h, w, c) memory: cuDNN on the device, plain loops on the host.
#pragma once

#include "gpu/view.h"
#include "ops/window.h"

namespace flexlegion::gpu {

// Kernels are (o, kh, kw, c / groups), dense.
struct Convolution {
  std::int64_t samples = 0, channels = 0, filters = 0, groups = 1;
  WindowTile h, w;
};

// Each takes scratch slots 10 to 12.
void convolve(const Convolution& conv, const float* x, const float* kernel, float* y);
void convolve_backward_data(const Convolution& conv, const float* kernel, const float* dy,
                            float* dx);
void convolve_backward_kernel(const Convolution& conv, const float* x, const float* dy,
                              float* dkernel);

}  // namespace flexlegion::gpu
