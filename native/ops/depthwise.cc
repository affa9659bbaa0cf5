// Depthwise convolutions (depthwise.h) as sums over taps, of whole vectors of channels.
//
// Channels lie side by side in memory, so a vector holds 16 channels of one pixel, and a tap
// multiplies it by 16 weights. Weights are first brought into the order [block of
// channels][tap][channel], from which a vector of weights is one load.
//
// Forwards and for dx: for each output row, collect the taps that lie inside the image, each with
// the range of columns for which it does. For columns that all taps reach, kResults results are
// summed at a time, in registers, so that a weight is loaded once for all of them. At the edges,
// one result at a time asks each tap.
//
// The gradient of the kernel: each tap's sum over all pixels of dy x, three neighbouring taps at a
// time, since they share the loads of dy. Each thread sums some rows of the batch into a copy of
// the (small) kernel, and copies are added at the end.
//
// Rows are worked on in slabs that stay in the second cache while all blocks of channels pass over
// them. Every tensor is read from memory about once.
#include "ops/depthwise.h"

#include <algorithm>
#include <vector>

#include "ops/channel_rows.h"
#include "ops/team.h"

namespace flexlegion::depthwise {
namespace {

// conv2d's own slots end before.
constexpr int kKernelSlot = 6, kSumsSlot = 7, kFirstSlot = 8, kSecondSlot = 9;
constexpr int kResults = 6;  // that are summed at a time: with two vectors of AVX2 each, 12 of 16
// Of the rows that are worked on before the next ones: elements, which stay in the second cache.
constexpr std::int64_t kSlabElements = 1 << 16;

// Channels are taken in blocks of a vector. The last block ends with the last channel, and may
// begin within the one before: its overlapping channels are computed twice, with equal results,
// which is faster than a loop for the rest.
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

// Rows of images, each w x c, as floats: where they lie, or copies in scratch memory.
class Rows {
 public:
  // The rows [lo, hi) of a sample, as far as there are such.
  Rows(const void* tensor, DataType type, std::int64_t sample, std::int64_t height,
       std::int64_t row, std::int64_t lo, std::int64_t hi, int slot)
      : first_(std::clamp<std::int64_t>(lo, 0, height)), row_(row) {
    const std::int64_t end = std::clamp<std::int64_t>(hi, first_, height);
    const std::int64_t offset = (sample * height + first_) * row, count = (end - first_) * row;
    if (is_narrow(type)) {
      float* const copy = scratch(slot, count);
      widen(type, static_cast<const Narrow*>(tensor) + offset, copy, count);
      data_ = copy;
    } else {
      data_ = static_cast<const float*>(tensor) + offset;
    }
  }
  FLEXLEGION_INLINE const float* at(std::int64_t row) const {
    return data_ + (row - first_) * row_;
  }

 private:
  std::int64_t first_, row_;
  const float* data_;
};

// Calls body(sample, first, last) for the rows [lo, hi) of all samples, few of one sample at a
// time.
template <typename Body>
void for_each_slab(std::int64_t lo, std::int64_t hi, std::int64_t height, std::int64_t row,
                   const Body& body) {
  const std::int64_t most = std::max<std::int64_t>(1, kSlabElements / row);
  for (std::int64_t r = lo, end = lo; r < hi; r = end) {
    const std::int64_t sample = r / height, first = sample * height;
    end = std::min({hi, first + height, r + most});
    body(sample, r - first, end - first);
  }
}

// Which results [lo, hi) of `count` read within `extent`, where result j reads at
// first + j * stride.
struct Range {
  std::int64_t lo, hi;

  Range(std::int64_t first, std::int64_t stride, std::int64_t extent, std::int64_t count)
      : lo(std::clamp<std::int64_t>(first < 0 ? (-first + stride - 1) / stride : 0, 0, count)),
        hi(first >= extent
               ? lo
               : std::clamp<std::int64_t>((extent - 1 - first) / stride + 1, lo, count)) {}
};

// What one tap adds to a row of results: result j reads at from + offset + j * from_pitch, if j is
// in the range.
struct Tap {
  std::int64_t number;
  const float* from;
  std::int64_t offset;
  Range range;
};

// A row of results, each the sum of what its taps read times their weights.
template <typename Element>
struct Row {
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
    const float* const from = tap.from + (tap.offset + j * row.from_pitch + of.first);
    for (int i = 0; i < N; ++i) {
      load(x, from + i * row.from_pitch);
      sums[i] += weight * x;
    }
  }
  for (int i = 0; i < N; ++i) {
    if (of.relu) relu_of(sums[i], sums[i]);
    store(row.to + (j + i) * row.to_pitch + of.first, sums[i]);
  }
}

// Left edge, middle in groups of kResults, what the groups leave over, right edge.
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
void forward_rows(const ConvTile& tile, const void* x, const float* kernel, const float* bias,
                  bool relu, Element* y, DataType type, std::int64_t lo, std::int64_t hi) {
  const WindowTile &h = tile.h, &w = tile.w;
  const std::int64_t channels = tile.channels, in_row = w.in * channels, out_row = w.out * channels;
  std::vector<Tap> taps;
  for_each_slab(lo, hi, h.out, out_row, [&](auto sample, auto first, auto last) {
    const Rows rows(x, type, sample, h.in, in_row, h.under(first, 0),
                    h.under(last - 1, h.kernel - 1) + 1, kFirstSlot);
    for (std::int64_t oh = first; oh < last; ++oh) {
      taps.clear();
      Row<Element> row{y + (sample * h.out + oh) * out_row, w.out, w.stride * channels, channels,
                       taps};
      for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
        const std::int64_t ih = h.under(oh, kh);
        if (ih < 0 || ih >= h.in) continue;
        for (std::int64_t kw = 0; kw < w.kernel; ++kw) {
          const std::int64_t iw = w.under(0, kw);
          row.add(
              {kh * w.kernel + kw, rows.at(ih), iw * channels, Range(iw, w.stride, w.in, w.out)});
        }
      }
      sum_all_channels(tile, row, kernel, bias, relu);
    }
  });
}

// Windows of stride s meet an element of x with every s-th of their taps: all elements that are s
// apart with the same ones. So a row of dx is s rows of results.
template <typename Element>
void backward_rows(const ConvTile& tile, const void* dy, const float* kernel, Element* dx,
                   DataType type, std::int64_t lo, std::int64_t hi) {
  const WindowTile &h = tile.h, &w = tile.w;
  const std::int64_t channels = tile.channels, in_row = w.in * channels, out_row = w.out * channels;
  std::vector<Tap> taps;
  for_each_slab(lo, hi, h.in, in_row, [&](auto sample, auto first, auto last) {
    // The output rows that the slab's taps come from: from the last tap of the first row to the
    // first tap of the last one. Rows clamps both ends to the image.
    const std::int64_t top_most = first + h.before - (h.kernel - 1) * h.dilation;
    const Rows rows(dy, type, sample, h.out, out_row, top_most / h.stride,
                    (last - 1 + h.before) / h.stride + 1, kFirstSlot);
    for (std::int64_t ih = first; ih < last; ++ih) {
      for (std::int64_t phase = 0; phase < std::min(w.stride, w.in); ++phase) {
        const std::int64_t count = (w.in - phase + w.stride - 1) / w.stride;
        taps.clear();
        Row<Element> row{dx + (sample * h.in + ih) * in_row + phase * channels, count, channels,
                         w.stride * channels, taps};
        for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
          const std::int64_t top = ih + h.before - kh * h.dilation, oh = top / h.stride;
          if (top < 0 || top % h.stride != 0 || oh >= h.out) continue;
          for (std::int64_t kw = 0; kw < w.kernel; ++kw) {
            const std::int64_t left = phase + w.before - kw * w.dilation;
            if (left % w.stride != 0) continue;
            const std::int64_t ow = left / w.stride;
            row.add({kh * w.kernel + kw, rows.at(oh), ow * channels, Range(ow, 1, w.out, count)});
          }
        }
        sum_all_channels(tile, row, kernel, nullptr, false);
      }
    }
  });
}

// What the gradient of a kernel is summed from: output rows [lo, hi) of one sample.
struct Slab {
  const ConvTile& tile;
  std::int64_t lo, hi;
  Rows x, dy;
};

// What K taps beside each other add to the gradient of a block of channels.
template <int K>
FLEXLEGION_INLINE void add_products(const Slab& of, std::int64_t kh, std::int64_t kw,
                                    std::int64_t channel, float* to) {
  const WindowTile &h = of.tile.h, &w = of.tile.w;
  const std::int64_t channels = of.tile.channels, step = w.stride * channels;
  // Two sums a tap, for even and odd pixels: an addition then does not wait for the one just before
  // it.
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
  for (std::int64_t oh = of.lo; oh < of.hi; ++oh) {
    const std::int64_t ih = h.under(oh, kh);
    if (ih < 0 || ih >= h.in) continue;
    const float *const dy = of.dy.at(oh) + channel, *const row = of.x.at(ih) + channel;
    // A pixel near the left or right border, where some of the taps read padding.
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
        const float* const its = row + from[k] * channels + ow * step;
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

// All taps of a block of channels; and of a bias, after the taps.
FLEXLEGION_SIMD void add_block(const Slab& of, std::int64_t channel, bool biased, float* to) {
  const WindowTile &h = of.tile.h, &w = of.tile.w;
  for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
    for (std::int64_t kw = 0; kw < w.kernel; kw += 3) {
      const std::int64_t left = w.kernel - kw;
      float* const its = to + (kh * w.kernel + kw) * kLanes;
      if (left >= 3) add_products<3>(of, kh, kw, channel, its);
      if (left == 2) add_products<2>(of, kh, kw, channel, its);
      if (left == 1) add_products<1>(of, kh, kw, channel, its);
    }
  }
  if (!biased) return;
  to += h.kernel * w.kernel * kLanes;
  Floats sum, value;
  load(sum, to);
  for (std::int64_t oh = of.lo; oh < of.hi; ++oh) {
    const float* const dy = of.dy.at(oh) + channel;
    for (std::int64_t ow = 0; ow < w.out; ++ow) {
      load(value, dy + ow * of.tile.channels);
      sum += value;
    }
  }
  store(to, sum);
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
    auto* const result = static_cast<decltype(like)*>(y);
    share_range(rows, rows * tile.w.out * tile.channels, [&](std::int64_t lo, std::int64_t hi) {
      forward_rows(tile, x, weights, bias, activation == Activation::relu, result, type, lo, hi);
    });
  });
}

void backward_data(const ConvTile& tile, DataType type, const void* dy, const float* kernel,
                   void* dx) {
  const float* const weights = in_blocks(tile, kernel);
  const std::int64_t rows = tile.samples * tile.h.in;
  with_element(type, [&](auto like) {
    auto* const result = static_cast<decltype(like)*>(dx);
    share_range(rows, rows * tile.w.in * tile.channels, [&](std::int64_t lo, std::int64_t hi) {
      backward_rows(tile, dy, weights, result, type, lo, hi);
    });
  });
}

void backward_weights(const ConvTile& tile, DataType type, const void* x, const void* dy,
                      float* dkernel, float* dbias) {
  const WindowTile &h = tile.h, &w = tile.w;
  const std::int64_t in_row = w.in * tile.channels, out_row = w.out * tile.channels;
  const std::int64_t taps = taps_of(tile), blocks = blocks_of(tile), size = (taps + 1) * kLanes;
  const std::int64_t all = blocks * size, rows = tile.samples * h.out;
  // [part][block][tap][channel of the block]
  // Each part needs sums of its own. Below the size from which threads pay, one part does all.
  const int parts = rows * out_row < worth_sharing() || rows < team_size() ? 1 : team_size();
  float* const sums = scratch(kSumsSlot, parts * all);
  std::fill_n(sums, parts * all, 0.0f);
  const auto part = [&](int k) {
    for_each_slab(k * rows / parts, (k + 1) * rows / parts, h.out, out_row,
                  [&](auto sample, auto first, auto last) {
                    const Slab slab{
                        tile, first, last,
                        Rows(x, type, sample, h.in, in_row, h.under(first, 0),
                             h.under(last - 1, h.kernel - 1) + 1, kFirstSlot),
                        Rows(dy, type, sample, h.out, out_row, first, last, kSecondSlot)};
                    for (std::int64_t block = 0; block < blocks; ++block) {
                      add_block(slab, first_channel(tile, block), dbias != nullptr,
                                sums + k * all + block * size);
                    }
                  });
  };
  parts == 1 ? part(0) : share_out(parts, part);
  for (std::int64_t i = 0; i < (parts - 1) * all; ++i) sums[i % all] += sums[all + i];
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = first_channel(tile, block);
    const float* const its = sums + block * size;
    for (std::int64_t c = 0; c < kLanes; ++c) {
      for (std::int64_t t = 0; t < taps; ++t) dkernel[(first + c) * taps + t] = its[t * kLanes + c];
      if (dbias != nullptr) dbias[first + c] = its[taps * kLanes + c];
    }
  }
}

}  // namespace flexlegion::depthwise
