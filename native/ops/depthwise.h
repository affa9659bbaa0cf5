// Depthwise convolutions: every filter reads one channel, and every channel is read by one filter.
// There is next to nothing to multiply, so they should take as long as reading and writing their
// tensors does. For images whose channels come last, oneDNN 3.2 has kernels of its own for some
// shapes only; the other gradients it computes as convolutions of groups, many times as slowly
// (docs/results.md, "How fast they train").
#pragma once

#include "ops/conv2d.h"

namespace flexlegion::depthwise {

// Whether the functions below are made for this convolution.
bool suits(const ConvTile& tile, Activation activation);

// Dense tiles of floats or of bfloat16, `type`; kernels are floats, (channels, kh, kw), and what
// they are given is overwritten. Without a bias, null.
void forward(const ConvTile& tile, DataType type, const void* x, const float* kernel,
             const float* bias, Activation activation, void* y);
void backward_data(const ConvTile& tile, DataType type, const void* dy, const float* kernel,
                   void* dx);
void backward_weights(const ConvTile& tile, DataType type, const void* x, const void* dy,
                      float* dkernel, float* dbias);

}  // namespace flexlegion::depthwise
