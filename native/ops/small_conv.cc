#include "ops/small_conv.h"

#include <algorithm>
#include <cstring>

#include "ops/simd.h"

namespace flexlegion {
namespace {

constexpr std::int64_t kLanes = kSmallConvLanes;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

// Stores the first `filters` lanes. The lanes after them are overwritten by the next pixel's, so
// that a whole vector may be stored, except at the tensor's end.
FLEXLEGION_INLINE void store(const Lanes& value, float* y, std::int64_t filters, const float* end) {
  if (y + kLanes <= end) {
    std::memcpy(y, &value, sizeof(value));
  } else {
    std::memcpy(y, &value, static_cast<std::size_t>(filters) * sizeof(float));
  }
}

// `Pixels` neighbouring pixels of a row; x is the first element under the first of their windows.
template <int Pixels>
FLEXLEGION_INLINE void forward_pixels(const SmallConv& conv, std::int64_t rows, const float* x,
                                      const float* weights, const float* bias, bool relu, float* y,
                                      const float* end) {
  const std::int64_t taps = conv.row_taps(), step = conv.stride_w * conv.channels;
  Lanes sum[Pixels];
#pragma GCC unroll 16
  for (int p = 0; p < Pixels; ++p) std::memcpy(&sum[p], bias, sizeof(Lanes));
  for (std::int64_t i = 0; i < rows; ++i, x += conv.in_w * conv.channels) {
    for (std::int64_t k = 0; k < taps; ++k, weights += kLanes) {
      Lanes w;
      std::memcpy(&w, weights, sizeof(w));
#pragma GCC unroll 16
      for (int p = 0; p < Pixels; ++p) sum[p] += x[p * step + k] * w;
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < Pixels; ++p) {
    if (relu) sum[p] = sum[p] > 0.0f ? sum[p] : Lanes{};
    store(sum[p], y + p * conv.filters, conv.filters, end);
  }
}

// Adds what one row of pixels contributes to the gradients of `Taps` neighbouring weights. Few taps
// take two pixels at a time, or the additions would wait for one another.
template <int Taps>
FLEXLEGION_INLINE void backward_taps(std::int64_t pixels, const float* x, std::int64_t step,
                                     const float* dy, std::int64_t filters, float* weight_grads) {
  constexpr int kAtOnce = Taps <= 6 ? 2 : 1;
  Lanes sum[kAtOnce][Taps] = {};
  std::int64_t p = 0;
  for (; p + kAtOnce <= pixels; p += kAtOnce) {
#pragma GCC unroll 2
    for (int u = 0; u < kAtOnce; ++u) {
      Lanes d;
      std::memcpy(&d, dy + (p + u) * filters, sizeof(d));
#pragma GCC unroll 16
      for (int k = 0; k < Taps; ++k) sum[u][k] += x[(p + u) * step + k] * d;
    }
  }
  for (; p < pixels; ++p) {
    Lanes d;
    std::memcpy(&d, dy + p * filters, sizeof(d));
#pragma GCC unroll 16
    for (int k = 0; k < Taps; ++k) sum[0][k] += x[p * step + k] * d;
  }
#pragma GCC unroll 16
  for (int k = 0; k < Taps; ++k) {
    Lanes total;
    std::memcpy(&total, weight_grads + k * kLanes, sizeof(total));
    total += sum[0][k];
    if (kAtOnce == 2) total += sum[kAtOnce - 1][k];
    std::memcpy(weight_grads + k * kLanes, &total, sizeof(total));
  }
}

// One row of output pixels, `rows` rows of the kernel. dy may be read for 8 - filters elements
// more.
FLEXLEGION_SIMD void backward_row(const SmallConv& conv, std::int64_t rows, const float* x,
                                  const float* dy, float* weight_grads, float* bias_grads) {
  const std::int64_t taps = conv.row_taps(), step = conv.stride_w * conv.channels;
  for (std::int64_t i = 0; i < rows; ++i, x += conv.in_w * conv.channels) {
    std::int64_t k = 0;
    const auto grads = [&] { return weight_grads + (i * taps + k) * kLanes; };
    for (; k + 10 <= taps; k += 10) {
      backward_taps<10>(conv.out_w, x + k, step, dy, conv.filters, grads());
    }
    for (; k + 5 <= taps; k += 5) {
      backward_taps<5>(conv.out_w, x + k, step, dy, conv.filters, grads());
    }
    for (; k + 3 <= taps; k += 3) {
      backward_taps<3>(conv.out_w, x + k, step, dy, conv.filters, grads());
    }
    for (; k < taps; ++k) {
      backward_taps<1>(conv.out_w, x + k, step, dy, conv.filters, grads());
    }
  }
  Lanes total;
  std::memcpy(&total, bias_grads, sizeof(total));
  for (std::int64_t p = 0; p < conv.out_w; ++p) {
    Lanes d;
    std::memcpy(&d, dy + p * conv.filters, sizeof(d));
    total += d;
  }
  std::memcpy(bias_grads, &total, sizeof(total));
}

// One row of output pixels, from `rows` rows of the kernel.
FLEXLEGION_SIMD void forward_row(const SmallConv& conv, std::int64_t rows, const float* x,
                                 const float* weights, const float* bias, bool relu, float* y,
                                 const float* end) {
  const std::int64_t step = conv.stride_w * conv.channels, f = conv.filters;
  std::int64_t p = 0;
  for (; p + 7 <= conv.out_w; p += 7) {
    forward_pixels<7>(conv, rows, x + p * step, weights, bias, relu, y + p * f, end);
  }
  for (; p + 3 <= conv.out_w; p += 3) {
    forward_pixels<3>(conv, rows, x + p * step, weights, bias, relu, y + p * f, end);
  }
  for (; p < conv.out_w; ++p) {
    forward_pixels<1>(conv, rows, x + p * step, weights, bias, relu, y + p * f, end);
  }
}

}  // namespace

void small_conv_forward(const SmallConv& conv, const float* x, const float* weights,
                        const float* bias, bool relu, float* y) {
  const std::int64_t in_row = conv.in_w * conv.channels, out_row = conv.out_w * conv.filters;
  const float* const end = y + conv.samples * conv.out_h * out_row;
  for (std::int64_t n = 0; n < conv.samples; ++n, x += conv.in_h * in_row) {
    for (std::int64_t oh = 0; oh < conv.out_h; ++oh, y += out_row) {
      const std::int64_t first = conv.first_row(oh);
      forward_row(conv, conv.end_row(oh) - first,
                  x + (oh * conv.stride_h - conv.above + first) * in_row,
                  weights + first * conv.row_taps() * kLanes, bias, relu, y, end);
    }
  }
}

void small_conv_backward_weights(const SmallConv& conv, const float* x, const float* dy,
                                 float* weight_grads, float* bias_grads) {
  const std::int64_t in_row = conv.in_w * conv.channels, out_row = conv.out_w * conv.filters;
  std::fill_n(weight_grads, conv.weights(), 0.0f);
  std::fill_n(bias_grads, kLanes, 0.0f);
  for (std::int64_t n = 0; n < conv.samples; ++n, x += conv.in_h * in_row) {
    for (std::int64_t oh = 0; oh < conv.out_h; ++oh, dy += out_row) {
      const std::int64_t first = conv.first_row(oh);
      backward_row(conv, conv.end_row(oh) - first,
                   x + (oh * conv.stride_h - conv.above + first) * in_row, dy,
                   weight_grads + first * conv.row_taps() * kLanes, bias_grads);
    }
  }
}

}  // namespace flexlegion
