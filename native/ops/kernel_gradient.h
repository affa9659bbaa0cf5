// The gradient of a convolution's kernel as a product of matrices, on processors whose widest
// vectors are AVX2's. oneDNN's convolutions reach half of the speed there that these panels have.
//
// The left factor has a row a filter and the right one a column an element of a filter, (kh, kw,
// c); both have a column, or row, for each position of the output. The right one is never built as
// a whole: of some positions and some columns at a time, what lies under the taps is copied into
// panels.
#pragma once

#include "ops/conv2d.h"

namespace flexlegion::kernel_gradient {

// Whether compute() is made for this convolution, and beats oneDNN's.
bool suits(const ConvTile& tile);

// dw (filters, kh, kw, channels) = or += the gradient, from x (samples, h, w, channels) and dy
// (samples, h, w, filters). All are dense floats.
void compute(const ConvTile& tile, const float* x, const float* dy, float* dw, bool adds);

}  // namespace flexlegion::kernel_gradient
