// Convolutions that produce at most eight channels a pixel, such as the first of LeNet, or the
// gradient of its second with respect to the input.
//
// oneDNN computes sixteen channels of a pixel at once and leaves most of its lanes idle there.
// These loops compute eight (one vector of float), for a dozen neighbouring pixels at a time. In
// (n, h, w, c) the elements under one row of a window are neighbours: kw * c factors, each
// multiplied with the eight weights that it has.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flexlegion {

constexpr std::int64_t kSmallConvLanes = 8;

// Dense tensors: x (samples, in_h, in_w, channels), where in_w includes the padding; `above` rows
// of padding, and any number below, are not in memory. y (samples, out_h, out_w, filters), filters
// <= 8. Weights and their gradient are (kernel_h, kernel_w, channels, 8), the bias and its gradient
// (8): lanes from `filters` on are without meaning.
struct SmallConv {
  std::int64_t samples, in_h, in_w, channels, out_h, out_w, filters;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, above;

  // The rows of a window that lie in x, for output row `oh`.
  std::int64_t first_row(std::int64_t oh) const {
    return std::max<std::int64_t>(0, above - oh * stride_h);
  }
  std::int64_t end_row(std::int64_t oh) const {
    return std::min(kernel_h, in_h + above - oh * stride_h);
  }
  std::int64_t row_taps() const { return kernel_w * channels; }
  std::int64_t weights() const { return kernel_h * row_taps() * kSmallConvLanes; }
};

void small_conv_forward(const SmallConv& conv, const float* x, const float* weights,
                        const float* bias, bool relu, float* y);

void small_conv_backward_weights(const SmallConv& conv, const float* x, const float* dy,
                                 float* weight_grads, float* bias_grads);

}  // namespace flexlegion
