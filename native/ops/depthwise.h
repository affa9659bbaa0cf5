// Depthwise convolutions: every filter reads one channel, and every channel is read by one filter.
// There is next to nothing to multiply, so they should take as long as reading and writing their
// tensors does. oneDNN 3.2 has such kernels for images whose channels come last only where an
// output is wide enough or its windows do not overlap; other gradients fall to its convolutions of
// groups, which take ten to thirty times as long, most of all in bfloat16.
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
