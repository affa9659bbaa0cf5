// Convolutions over dense (n, h, w, c) memory: cuDNN on the device, plain loops on the host.
#pragma once

#include "gpu/view.h"
#include "ops/conv2d.h"

namespace flexlegion::gpu {

// Kernels are (o, kh, kw, c / groups), dense. Each takes scratch slots 10 to 12.
void convolve(const ConvTile& conv, const float* x, const float* kernel, float* y);
void convolve_backward_data(const ConvTile& conv, const float* kernel, const float* dy, float* dx);
void convolve_backward_kernel(const ConvTile& conv, const float* x, const float* dy,
                              float* dkernel);

}  // namespace flexlegion::gpu
