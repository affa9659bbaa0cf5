// dw = dy^T x', where row p of x' has what lies under the taps at the output position p
// (kernel_gradient.h): the product that "im2col" is known for, without its matrix.
//
// For 256 positions at a time (kDepth), and 128 columns (kBlock) of x' at a time:
// 1. Copy the gradients of these positions into panels as wide as a tile of registers is high.
// 2. Copy what lies under the block's taps into panels of 16 columns. Runs of elements that are
//    neighbours in x, a row of taps, are copied at once; padding becomes zeros.
// 3. Multiply: each tile of registers takes 6 filters by 16 columns, and adds to dw.
//
// Threads take ranges of columns, so no two write the same part of dw; each packs the gradients for
// itself. x is read kh kw times, but its rows stay in the caches from one tap to the next.
#include "ops/kernel_gradient.h"

#include <algorithm>

#include "ops/matrix.h"
#include "ops/panel_tile.h"

namespace flexlegion::kernel_gradient {
namespace {

using namespace panels;

constexpr int kFactorsSlot = kKernelSlots + 5;

// A convolution as a product of matrices.
struct Product {
  ConvTile tile;
  const float *x, *dy;
  float* dw;
  // What a position reads is a number of runs, each of elements that lie side by side: a row of
  // taps, or one tap, if taps lie apart.
  std::int64_t taps;  // of a run
  std::int64_t run = taps * tile.channels;
  std::int64_t columns = tile.h.kernel * tile.w.kernel * tile.channels;
  std::int64_t positions = tile.samples * tile.h.out * tile.w.out;

  Product(const ConvTile& tile, const float* x, const float* dy, float* dw)
      : tile(tile), x(x), dy(dy), dw(dw), taps(tile.w.dilation == 1 ? tile.w.kernel : 1) {}
};

template <int Lanes>
FLEXLEGION_INLINE void copy_vector(const float* from, float* to) {
  typename VectorOf<Lanes>::Floats v;
  load(v, from);
  store(to, v);
}

// Copies at most kWidth floats; vectors overlap where they do not fit. Two overlapping vectors
// cover any number of floats from 4 to 16 without a loop. memcpy() of a length that varies would be
// a call.
FLEXLEGION_INLINE void copy_few(const float* from, std::int64_t count, float* to) {
  if (count >= 8) {
    copy_vector<8>(from, to);
    copy_vector<8>(from + count - 8, to + count - 8);
  } else if (count >= 4) {
    copy_vector<4>(from, to);
    copy_vector<4>(from + count - 4, to + count - 4);
  } else {
    if (count > 0) to[0] = from[0];
    if (count > 1) to[1] = from[1];
    if (count > 2) to[2] = from[2];
  }
}

// Where a position of the output is.
struct Position {
  std::int64_t sample, h, w;

  Position(const ConvTile& tile, std::int64_t number)
      : sample(number / (tile.h.out * tile.w.out)),
        h(number / tile.w.out % tile.h.out),
        w(number % tile.w.out) {}
  FLEXLEGION_INLINE void next(const ConvTile& tile) {
    if (++w < tile.w.out) return;
    w = 0;
    if (++h < tile.h.out) return;
    h = 0;
    ++sample;
  }
};

// Some panels side by side, of `depth` rows each.
struct Panels {
  float* data;
  std::int64_t depth;

  // Writes columns [col, end) of row k; without a source, zeros. A range of columns may cross from
  // one panel to the next.
  FLEXLEGION_INLINE void write(std::int64_t k, std::int64_t col, std::int64_t end,
                               const float* from) const {
    static constexpr float kZeros[kWidth] = {};
    while (col < end) {
      const std::int64_t beside = col % kWidth, count = std::min(end - col, kWidth - beside);
      float* const to = data + (col - beside) * depth + k * kWidth + beside;
      copy_few(from == nullptr ? kZeros : from, count, to);
      col += count;
      if (from != nullptr) from += count;
    }
  }
};

// Columns [lo, hi) of some positions: what lies under these elements of a filter there, zeros where
// that is padding, and zeros up to the end of the last panel.
FLEXLEGION_INLINE void pack_taps(const Product& p, std::int64_t first, std::int64_t lo,
                                 std::int64_t hi, const Panels& panels) {
  const WindowTile &h = p.tile.h, &w = p.tile.w;
  // By runs outside and positions inside: a run's place under the filter is found once.
  const std::int64_t channels = p.tile.channels, runs = w.kernel / p.taps;
  for (std::int64_t r = lo / p.run; r * p.run < hi; ++r) {
    const std::int64_t tap_h = r / runs, tap_w = r % runs * p.taps, start = r * p.run;
    const std::int64_t from = std::max(lo, start), until = std::min(hi, start + p.run);
    Position at(p.tile, first);
    for (std::int64_t k = 0; k < panels.depth; ++k, at.next(p.tile)) {
      const std::int64_t in_h = h.under(at.h, tap_h), in_w = w.under(at.w, tap_w);
      const float* const line =
          p.x + ((at.sample * h.in + in_h) * w.in + in_w) * channels + (from - start);
      if (in_h < 0 || in_h >= h.in) {
        panels.write(k, from - lo, until - lo, nullptr);
      } else if (in_w >= 0 && in_w + p.taps <= w.in) {
        panels.write(k, from - lo, until - lo, line);
      } else {  // the part of the run that is inside x
        const std::int64_t begin =
            std::clamp(start - std::min<std::int64_t>(0, in_w) * channels, from, until);
        const std::int64_t end =
            std::clamp(start + std::min(p.taps, w.in - in_w) * channels, begin, until);
        panels.write(k, from - lo, begin - lo, nullptr);
        panels.write(k, begin - lo, end - lo, line + (begin - from));
        panels.write(k, end - lo, until - lo, nullptr);
      }
    }
  }
  const std::int64_t cols = hi - lo, end = (cols + kWidth - 1) / kWidth * kWidth;
  for (std::int64_t k = 0; k < panels.depth && cols < end; ++k) panels.write(k, cols, end, nullptr);
}

// The gradients of some positions in panels as wide as tiles are high.
FLEXLEGION_INLINE void pack_gradients(const Product& p, std::int64_t first, std::int64_t depth,
                                      float* packed) {
  const std::int64_t filters = p.tile.filters;
  for_each_row_tile<kTileRows>(filters, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
    const float* from = p.dy + first * filters + row;
    float* to = packed + row * depth;
    for (std::int64_t k = 0; k < depth; ++k, from += filters, to += n) {
      for (int i = 0; i < n; ++i) to[i] = from[i];
    }
  });
}

// Columns [lo, hi) of the gradient.
FLEXLEGION_SIMD void add_columns(const Product& p, std::int64_t lo, std::int64_t hi,
                                 float* gradients, float* taps) {
  // Both factors are copies that were just written, so there is nothing to fetch ahead.
  Ahead nothing;
  for (std::int64_t first = 0; first < p.positions; first += kDepth) {
    const std::int64_t depth = std::min(kDepth, p.positions - first);
    pack_gradients(p, first, depth, gradients);
    for (std::int64_t block = lo; block < hi; block += kBlock) {
      const std::int64_t end = std::min(block + kBlock, hi);
      pack_taps(p, first, block, end, {taps, depth});
      for (std::int64_t col = block; col < end; col += kWidth) {
        for_each_row_tile<kTileRows>(p.tile.filters,
                                     [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
                                       const Tile tile{gradients + row * depth,
                                                       taps + (col - block) * depth,
                                                       p.dw + row * p.columns + col,
                                                       0,
                                                       p.columns,
                                                       depth};
                                       multiply_edge<n, true>(tile, end - col, depth, nothing);
                                     });
      }
    }
  }
}

}  // namespace

bool suits(const ConvTile& tile) {
  const std::int64_t columns = tile.h.kernel * tile.w.kernel * tile.channels;
  return narrow_vectors() && tile.groups == 1 && columns >= kBlock && tile.filters >= 16;
}

void compute(const ConvTile& tile, const float* x, const float* dy, float* dw, bool adds) {
  const Product product(tile, x, dy, dw);
  const Matrix gradient = Matrix::row_major(dw, tile.filters, product.columns, product.columns);
  const std::int64_t gradients = tile.filters * kDepth, both = gradients + kBlock * kDepth;
  float* const memory = scratch(kFactorsSlot, team_size() * both);
  share_panels(product.columns, product.positions * product.columns,
               [&](std::int64_t lo, std::int64_t hi, int part) {
                 if (!adds) zero_view(view_of(columns(gradient, lo, hi - lo)));
                 float* const its = memory + part * both;
                 add_columns(product, lo, hi, its, its + gradients);
               });
}

}  // namespace flexlegion::kernel_gradient
