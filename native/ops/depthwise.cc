#include "ops/depthwise.h"

#include <algorithm>
#include <vector>

#include "ops/channel_rows.h"
#include "ops/matrix.h"
#include "ops/team.h"

namespace flexlegion::depthwise {
namespace {

constexpr int kKernelSlot = 6, kSumsSlot = 7;  // conv2d's own slots end before
constexpr int kResults = 6;  // that are summed at a time: with two vectors of AVX2 each, 12 of 16
constexpr std::int64_t kRowsAtOnce = 16;  // whose products are summed before the next channels

// Channels are taken in blocks of a vector. The last block ends with the last channel, and may
// begin within the one before.
std::int64_t blocks_of(const ConvTile& tile) { return (tile.channels + kLanes - 1) / kLanes; }
FLEXLEGION_INLINE std::int64_t first_channel(const ConvTile& tile, std::int64_t block) {
  return std::min(block * kLanes, tile.channels - kLanes);
}

std::int64_t taps_of(const ConvTile& tile) { return tile.h.kernel * tile.w.kernel; }

// kernel[channel][tap] -> [block][tap][channel of the block]
const float* in_blocks(const ConvTile& tile, const float* kernel) {
  const std::int64_t taps = taps_of(tile), blocks = blocks_of(tile);
  float* const result = scratch(kKernelSlot, blocks * taps * kLanes);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const float* const from = kernel + first_channel(tile, block) * taps;
    float* const to = result + block * taps * kLanes;
    for (std::int64_t t = 0; t < taps; ++t) {
      for (std::int64_t c = 0; c < kLanes; ++c) to[t * kLanes + c] = from[c * taps + t];
    }
  }
  return result;
}

// Which results [lo, hi) of `count` read within `extent`, where result j reads at
// first + j * stride.
struct Range {
  std::int64_t lo, hi;

  Range(std::int64_t first, std::int64_t stride, std::int64_t extent, std::int64_t count)
      : lo(std::clamp<std::int64_t>(first < 0 ? (-first + stride - 1) / stride : 0, 0, count)),
        hi(first >= extent ? lo
                           : std::clamp<std::int64_t>((extent - 1 - first) / stride + 1, lo,
                                                      count)) {}
};

// What one tap adds to a row of results: result j reads at offset + j * from_pitch, if j is in
// the range.
struct Tap {
  std::int64_t number, offset;
  Range range;
};

// A row of results, each the sum of what its taps read times their weights.
template <typename Element>
struct Row {
  const Element* from;
  Element* to;
  std::int64_t count, from_pitch, to_pitch;
  std::vector<Tap>& taps;
  std::int64_t lo = 0, hi = count;  // the results that all taps read for

  void add(const Tap& tap) {
    taps.push_back(tap);
    lo = std::max(lo, tap.range.lo);
    hi = std::max(lo, std::min(hi, tap.range.hi));
  }
};

struct Channels {
  std::int64_t first;
  const float* weights;  // [tap][kLanes]
  const float* bias;     // or null
  bool relu;
};

// Results [j, j + N). Unless all taps read for all of them, N is 1.
template <int N, bool kAll, typename Element>
FLEXLEGION_INLINE void sum_taps(const Row<Element>& row, const Channels& of, std::int64_t j) {
  Floats sums[N], weight, x;
  for (int i = 0; i < N; ++i) {
    if (of.bias != nullptr) {
      load(sums[i], of.bias + of.first);
    } else {
      sums[i] = Floats{};
    }
  }
  for (const Tap& tap : row.taps) {
    if (!kAll && (j < tap.range.lo || j >= tap.range.hi)) continue;
    load(weight, of.weights + tap.number * kLanes);
    const Element* const from = row.from + (tap.offset + j * row.from_pitch + of.first);
    for (int i = 0; i < N; ++i) {
      load(x, from + i * row.from_pitch);
      sums[i] += weight * x;
    }
  }
  for (int i = 0; i < N; ++i) {
    if (of.relu) where_positive(sums[i], sums[i], sums[i]);
    store(row.to + (j + i) * row.to_pitch + of.first, sums[i]);
  }
}

template <typename Element>
FLEXLEGION_INLINE void sum_row_of(const Row<Element>& row, const Channels& of) {
  for (std::int64_t j = 0; j < row.lo; ++j) sum_taps<1, false>(row, of, j);
  std::int64_t j = row.lo;
  for (; j + kResults <= row.hi; j += kResults) sum_taps<kResults, true>(row, of, j);
  for (; j < row.hi; ++j) sum_taps<1, true>(row, of, j);
  for (; j < row.count; ++j) sum_taps<1, false>(row, of, j);
}
FLEXLEGION_SIMD void sum_row(const Row<float>& row, const Channels& of) { sum_row_of(row, of); }
FLEXLEGION_SIMD void sum_row(const Row<Bfloat16>& row, const Channels& of) { sum_row_of(row, of); }

template <typename Element>
void sum_all_channels(const ConvTile& tile, const Row<Element>& row, const float* kernel,
                      const float* bias, bool relu) {
  const std::int64_t taps = taps_of(tile);
  for (std::int64_t block = 0; block < blocks_of(tile); ++block) {
    sum_row(row, {first_channel(tile, block), kernel + block * taps * kLanes, bias, relu});
  }
}

template <typename Element>
void forward_rows(const ConvTile& tile, const Element* x, const float* kernel, const float* bias,
                  bool relu, Element* y, std::int64_t lo, std::int64_t hi) {
  const WindowTile &h = tile.h, &w = tile.w;
  std::vector<Tap> taps;
  for (std::int64_t r = lo; r < hi; ++r) {
    const std::int64_t sample = r / h.out, oh = r % h.out;
    taps.clear();
    Row<Element> row{x, y + r * w.out * tile.channels, w.out, w.stride * tile.channels,
                     tile.channels, taps};
    for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
      const std::int64_t ih = h.under(oh, kh);
      if (ih < 0 || ih >= h.in) continue;
      for (std::int64_t kw = 0; kw < w.kernel; ++kw) {
        const std::int64_t iw = w.under(0, kw);
        row.add({kh * w.kernel + kw, ((sample * h.in + ih) * w.in + iw) * tile.channels,
                 Range(iw, w.stride, w.in, w.out)});
      }
    }
    sum_all_channels(tile, row, kernel, bias, relu);
  }
}

// Windows of stride s meet an element of x with every s-th of their taps: all elements that are s
// apart with the same ones. So a row of dx is s rows of results.
template <typename Element>
void backward_rows(const ConvTile& tile, const Element* dy, const float* kernel, Element* dx,
                   std::int64_t lo, std::int64_t hi) {
  const WindowTile &h = tile.h, &w = tile.w;
  std::vector<Tap> taps;
  for (std::int64_t r = lo; r < hi; ++r) {
    const std::int64_t sample = r / h.in, ih = r % h.in;
    for (std::int64_t phase = 0; phase < std::min(w.stride, w.in); ++phase) {
      const std::int64_t count = (w.in - phase + w.stride - 1) / w.stride;
      taps.clear();
      Row<Element> row{dy, dx + (r * w.in + phase) * tile.channels, count, tile.channels,
                       w.stride * tile.channels, taps};
      for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
        const std::int64_t top = ih + h.before - kh * h.dilation, oh = top / h.stride;
        if (top < 0 || top % h.stride != 0 || oh >= h.out) continue;
        for (std::int64_t kw = 0; kw < w.kernel; ++kw) {
          const std::int64_t left = phase + w.before - kw * w.dilation;
          if (left % w.stride != 0) continue;
          const std::int64_t ow = left / w.stride;
          row.add({kh * w.kernel + kw, ((sample * h.out + oh) * w.out + ow) * tile.channels,
                   Range(ow, 1, w.out, count)});
        }
      }
      sum_all_channels(tile, row, kernel, nullptr, false);
    }
  }
}

template <typename Element>
struct Gradients {
  const ConvTile& tile;
  const Element *x, *dy;
};

// Rows [lo, hi) of one sample: what K taps beside each other add to the kernel's gradient of a
// block of channels.
template <int K, typename Element>
FLEXLEGION_INLINE void add_products(const Gradients<Element>& of, std::int64_t sample,
                                    std::int64_t lo, std::int64_t hi, std::int64_t kh,
                                    std::int64_t kw, std::int64_t channel, float* to) {
  const WindowTile &h = of.tile.h, &w = of.tile.w;
  const std::int64_t channels = of.tile.channels, step = w.stride * channels;
  Floats sums[2][K], gradient[2], x;
  std::int64_t from[K], first = 0, last = w.out;
  for (int k = 0; k < K; ++k) {
    load(sums[0][k], to + k * kLanes);
    sums[1][k] = Floats{};
    from[k] = w.under(0, kw + k);
    const Range range(from[k], w.stride, w.in, w.out);
    first = std::max(first, range.lo);
    last = std::max(first, std::min(last, range.hi));
  }
  for (std::int64_t oh = lo; oh < hi; ++oh) {
    const std::int64_t ih = h.under(oh, kh);
    if (ih < 0 || ih >= h.in) continue;
    const Element* const dy = of.dy + (sample * h.out + oh) * w.out * channels + channel;
    const Element* const row = of.x + (sample * h.in + ih) * w.in * channels + channel;
    const auto at_edge = [&](std::int64_t ow) FLEXLEGION_INLINE_LAMBDA {
      load(gradient[0], dy + ow * channels);
      for (int k = 0; k < K; ++k) {
        const std::int64_t iw = from[k] + ow * w.stride;
        if (iw < 0 || iw >= w.in) continue;
        load(x, row + iw * channels);
        sums[0][k] += gradient[0] * x;
      }
    };
    for (std::int64_t ow = 0; ow < first; ++ow) at_edge(ow);
    std::int64_t ow = first;
    for (; ow + 2 <= last; ow += 2) {
      for (int i = 0; i < 2; ++i) load(gradient[i], dy + (ow + i) * channels);
      for (int k = 0; k < K; ++k) {
        const Element* const its = row + from[k] * channels + ow * step;
        for (int i = 0; i < 2; ++i) {
          load(x, its + i * step);
          sums[i][k] += gradient[i] * x;
        }
      }
    }
    for (; ow < w.out; ++ow) at_edge(ow);
  }
  for (int k = 0; k < K; ++k) store(to + k * kLanes, sums[0][k] + sums[1][k]);
}

// Rows [lo, hi) of one sample, all taps of a block of channels; and of a bias, after the taps.
template <typename Element>
FLEXLEGION_INLINE void add_block_of(const Gradients<Element>& of, std::int64_t sample,
                                    std::int64_t lo, std::int64_t hi, std::int64_t channel,
                                    bool biased, float* to) {
  const std::int64_t width = of.tile.w.kernel;
  for (std::int64_t kh = 0; kh < of.tile.h.kernel; ++kh) {
    for (std::int64_t kw = 0; kw < width;) {
      const std::int64_t left = width - kw;
      float* const its = to + (kh * width + kw) * kLanes;
      if (left >= 3) add_products<3>(of, sample, lo, hi, kh, kw, channel, its);
      if (left == 2) add_products<2>(of, sample, lo, hi, kh, kw, channel, its);
      if (left == 1) add_products<1>(of, sample, lo, hi, kh, kw, channel, its);
      kw += std::min<std::int64_t>(left, 3);
    }
  }
  if (!biased) return;
  to += taps_of(of.tile) * kLanes;
  const std::int64_t row = of.tile.w.out * of.tile.channels;
  Floats sum, value;
  load(sum, to);
  const Element* dy = of.dy + (sample * of.tile.h.out + lo) * row + channel;
  for (const Element* const end = dy + (hi - lo) * row; dy < end; dy += of.tile.channels) {
    load(value, dy);
    sum += value;
  }
  store(to, sum);
}
FLEXLEGION_SIMD void add_block(const Gradients<float>& of, std::int64_t sample, std::int64_t lo,
                               std::int64_t hi, std::int64_t channel, bool biased, float* to) {
  add_block_of(of, sample, lo, hi, channel, biased, to);
}
FLEXLEGION_SIMD void add_block(const Gradients<Bfloat16>& of, std::int64_t sample, std::int64_t lo,
                               std::int64_t hi, std::int64_t channel, bool biased, float* to) {
  add_block_of(of, sample, lo, hi, channel, biased, to);
}

// The rows [lo, hi) of all samples; `sums` are [block][tap][channel of the block].
template <typename Element>
void add_rows_of(const Gradients<Element>& of, std::int64_t lo, std::int64_t hi, bool biased,
                 float* sums) {
  const ConvTile& tile = of.tile;
  const std::int64_t size = (taps_of(tile) + 1) * kLanes, rows = tile.h.out;
  for (std::int64_t r = lo, end = lo; r < hi; r = end) {
    const std::int64_t sample = r / rows;
    end = std::min({hi, (sample + 1) * rows, r + kRowsAtOnce});
    for (std::int64_t block = 0; block < blocks_of(tile); ++block) {
      add_block(of, sample, r - sample * rows, end - sample * rows, first_channel(tile, block),
                biased, sums + block * size);
    }
  }
}

template <typename Element>
void add_all(const Gradients<Element>& of, float* dkernel, float* dbias) {
  const ConvTile& tile = of.tile;
  const std::int64_t taps = taps_of(tile), size = (taps + 1) * kLanes;
  const std::int64_t all = blocks_of(tile) * size, rows = tile.samples * tile.h.out;
  const bool shared = rows * tile.w.out * tile.channels >= worth_sharing() && rows >= team_size();
  const int parts = shared ? team_size() : 1;
  float* const sums = scratch(kSumsSlot, parts * all);
  std::fill_n(sums, parts * all, 0.0f);
  const auto part = [&](int k) {
    add_rows_of(of, k * rows / parts, (k + 1) * rows / parts, dbias != nullptr, sums + k * all);
  };
  parts == 1 ? part(0) : share_out(parts, part);
  for (std::int64_t i = 0; i < (parts - 1) * all; ++i) sums[i % all] += sums[all + i];
  for (std::int64_t block = 0; block < blocks_of(tile); ++block) {
    const std::int64_t first = first_channel(tile, block);
    const float* const its = sums + block * size;
    for (std::int64_t c = 0; c < kLanes; ++c) {
      for (std::int64_t t = 0; t < taps; ++t) dkernel[(first + c) * taps + t] = its[t * kLanes + c];
      if (dbias != nullptr) dbias[first + c] = its[taps * kLanes + c];
    }
  }
}

template <typename Element>
const Element* elements(const void* memory) {
  return static_cast<const Element*>(memory);
}

}  // namespace

bool suits(const ConvTile& tile, Activation activation) {
  return tile.groups == tile.channels && tile.groups == tile.filters && tile.channels >= kLanes &&
         (activation == Activation::none || activation == Activation::relu);
}

void forward(const ConvTile& tile, DataType type, const void* x, const float* kernel,
             const float* bias, Activation activation, void* y) {
  const float* const weights = in_blocks(tile, kernel);
  const std::int64_t rows = tile.samples * tile.h.out;
  with_element(type, [&](auto like) {
    using Element = decltype(like);
    share_range(rows, rows * tile.w.out * tile.channels, [&](std::int64_t lo, std::int64_t hi) {
      forward_rows(tile, elements<Element>(x), weights, bias, activation == Activation::relu,
                   static_cast<Element*>(y), lo, hi);
    });
  });
}

void backward_data(const ConvTile& tile, DataType type, const void* dy, const float* kernel,
                   void* dx) {
  const float* const weights = in_blocks(tile, kernel);
  const std::int64_t rows = tile.samples * tile.h.in;
  with_element(type, [&](auto like) {
    using Element = decltype(like);
    share_range(rows, rows * tile.w.in * tile.channels, [&](std::int64_t lo, std::int64_t hi) {
      backward_rows(tile, elements<Element>(dy), weights, static_cast<Element*>(dx), lo, hi);
    });
  });
}

void backward_weights(const ConvTile& tile, DataType type, const void* x, const void* dy,
                      float* dkernel, float* dbias) {
  with_element(type, [&](auto like) {
    using Element = decltype(like);
    add_all<Element>({tile, elements<Element>(x), elements<Element>(dy)}, dkernel, dbias);
  });
}

}  // namespace flexlegion::depthwise
