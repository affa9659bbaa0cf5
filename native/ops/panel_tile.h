// The innermost loop of products by way of panels, on processors whose widest vectors are AVX2's: a
// tile of the result, 6 rows of 16 columns, lies in registers while some rows of a panel, which has
// these 16 columns of the right factor side by side, meet 6 rows of the left one.
#pragma once

#include <algorithm>

#include "ops/register_tiles.h"
#include "ops/team.h"

namespace flexlegion::panels {

constexpr int kLanes = 8, kWidth = 2 * kLanes;  // of a panel: a cache line
constexpr int kTileRows = 6;                    // with two vectors, 12 sums of AVX2's 16 registers
// Rows of a panel at a time: 16 KB, which stay in the first cache while all rows on the left meet
// them.
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kBlock = 128;  // columns that are copied at a time: 128 KB

// The lines that are wanted next: `rows` times `lines` of them, rows `stride` floats apart. They
// are fetched one by one while others are computed with, since memory would otherwise rest
// meanwhile.
struct Ahead {
  const float* line = nullptr;
  std::int64_t stride = 0, lines = 0, rows = 0, fetched = 0;

  FLEXLEGION_INLINE void fetch_one() {
    if (rows == 0) return;
    __builtin_prefetch(line);
    line += kWidth;
    if (++fetched < lines) return;
    fetched = 0;
    line += stride - lines * kWidth;
    --rows;
  }
};

// Some rows of a panel, and the rows on the left and the part of the result that meet them. The
// rows on the left lie `a_row` floats apart, or one float, if they are columns of a panel as wide
// as the tile is high.
struct Tile {
  const float *a, *panel;
  float* c;
  std::int64_t a_row, c_row, depth;
};

// N rows on the left with `depth` rows of a panel: c += a b. Of the lines ahead, one is fetched
// every so many rows of the panel.
template <int N, bool kLeftInPanels>
FLEXLEGION_INLINE void multiply_tile(const Tile& t, std::int64_t every, Ahead& ahead) {
  using Floats = VectorOf<kLanes>::Floats;
  Floats sums[N][2] = {}, factor[2];
  for (int i = 0; i < N; ++i) __builtin_prefetch(t.c + i * t.c_row, 1);
  for (std::int64_t k = 0; k < t.depth;) {
    ahead.fetch_one();
    for (const std::int64_t end = std::min(t.depth, k + every); k < end; ++k) {
      for (int j = 0; j < 2; ++j) load(factor[j], t.panel + k * kWidth + j * kLanes);
      for (int i = 0; i < N; ++i) {
        const float a = kLeftInPanels ? t.a[k * N + i] : t.a[i * t.a_row + k];
        for (int j = 0; j < 2; ++j) sums[i][j] += a * factor[j];
      }
    }
  }
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < 2; ++j) {
      float* const c = t.c + i * t.c_row + j * kLanes;
      load(factor[j], c);
      store(c, factor[j] + sums[i][j]);
    }
  }
}

// The same where only `cols` columns of the panel belong to the result.
template <int N, bool kLeftInPanels>
FLEXLEGION_INLINE void multiply_edge(Tile tile, std::int64_t cols, std::int64_t every,
                                     Ahead& ahead) {
  if (cols >= kWidth) return multiply_tile<N, kLeftInPanels>(tile, every, ahead);
  float sums[N * kWidth] = {};
  float* const c = tile.c;
  const std::int64_t row = tile.c_row;
  tile.c = sums;
  tile.c_row = kWidth;
  multiply_tile<N, kLeftInPanels>(tile, every, ahead);
  for (std::int64_t i = 0; i < N; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) c[i * row + j] += sums[i * kWidth + j];
  }
}

// Calls body(lo, hi, part) for ranges of `cols` columns, a thread each; they begin with a panel.
template <typename Body>
void share_panels(std::int64_t cols, std::int64_t elements, const Body& body) {
  const std::int64_t panels = (cols + kWidth - 1) / kWidth;
  const int parts = elements < worth_sharing() || panels < team_size() ? 1 : team_size();
  if (parts == 1) return body(std::int64_t{0}, cols, 0);
  share_out(parts, [&](int part) {
    const std::int64_t lo = part * panels / parts, hi = (part + 1) * panels / parts;
    body(lo * kWidth, std::min(cols, hi * kWidth), part);
  });
}

}  // namespace flexlegion::panels
