#include "ops/panels.h"

#include <algorithm>

#include "ops/register_tiles.h"
#include "ops/team.h"

namespace flexlegion::panels {
namespace {

constexpr int kBlockSlot = kKernelSlots + 4;
constexpr int kLanes = 8, kWidth = 2 * kLanes;  // of a panel: a cache line
constexpr int kTileRows = 6;                    // with two vectors, 12 sums of AVX2's 16 registers
// Rows of a panel at a time: 16 KB, which stay in the first cache while all rows of a meet them.
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kBlock = 128;      // columns that are copied at a time: 128 KB
constexpr std::int64_t kLarge = 1 << 20;  // elements of a factor that no cache holds

using Floats = VectorOf<kLanes>::Floats;

bool narrow_vectors() {
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                !__builtin_cpu_supports("avx512f");
  return supported;
}

bool plain(const Matrix& m) { return m.type == DataType::float32 && m.batch == 1; }

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

// Some rows of a panel, and the rows of a and the part of c that meet them.
struct Tile {
  const float *a, *panel;
  float* c;
  std::int64_t a_row, c_row, depth;
};

// N rows of a with `depth` rows of a panel: c += a b. Of the lines ahead, one is fetched every so
// many rows of the panel.
template <int N>
FLEXLEGION_INLINE void multiply_tile(const Tile& t, std::int64_t every, Ahead& ahead) {
  Floats sums[N][2], factor[2];
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < 2; ++j) load(t.c + i * t.c_row + j * kLanes, sums[i][j]);
  }
  for (std::int64_t k = 0; k < t.depth;) {
    ahead.fetch_one();
    for (const std::int64_t end = std::min(t.depth, k + every); k < end; ++k) {
      for (int j = 0; j < 2; ++j) load(t.panel + k * kWidth + j * kLanes, factor[j]);
      for (int i = 0; i < N; ++i) {
        for (int j = 0; j < 2; ++j) sums[i][j] += t.a[i * t.a_row + k] * factor[j];
      }
    }
  }
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < 2; ++j) store(t.c + i * t.c_row + j * kLanes, sums[i][j]);
  }
}

// The same for all rows of a (from its column k on) and a column `col` of c, where a panel begins.
// The last panel of a matrix may be wider than what is left of it: its sums go through a tile.
FLEXLEGION_INLINE void multiply_panel(const Matrix& a, std::int64_t k, const float* panel,
                                      std::int64_t depth, const Matrix& c, std::int64_t col,
                                      Ahead& ahead) {
  const std::int64_t every = (a.rows + kTileRows - 1) / kTileRows, cols = c.cols - col;
  for_each_row_tile<kTileRows>(a.rows, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
    Tile tile{a.f32() + row * a.row + k, panel, c.f32() + row * c.row + col, a.row, c.row, depth};
    if (cols >= kWidth) return multiply_tile<n>(tile, every, ahead);
    float sums[kTileRows * kWidth] = {};
    float* const to = tile.c;
    tile.c = sums;
    tile.c_row = kWidth;
    multiply_tile<n>(tile, every, ahead);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) to[i * c.row + j] += sums[i * kWidth + j];
    }
  });
}

// Rows [k, k + depth) of the panel that begins with column `col` of b; zeros after the last column.
FLEXLEGION_INLINE void pack_panel(const Matrix& b, std::int64_t k, std::int64_t depth,
                                  std::int64_t col, float* __restrict__ to) {
  const std::int64_t cols = std::min<std::int64_t>(kWidth, b.cols - col);
  const float* const from = b.f32() + k * b.row + col * b.col;
  if (cols < kWidth) std::fill_n(to, depth * kWidth, 0.0f);
  if (b.col == 1 && cols == kWidth) {
    Floats v;
    for (std::int64_t r = 0; r < depth; ++r) {
      for (int j = 0; j < kWidth; j += kLanes) {
        load(from + r * b.row + j, v);
        store(to + r * kWidth + j, v);
      }
    }
  } else {
    for (std::int64_t j = 0; j < cols; ++j) {
      for (std::int64_t r = 0; r < depth; ++r) to[r * kWidth + j] = from[r * b.row + j * b.col];
    }
  }
}

// The panels that begin with columns [lo, hi), all rows of each.
FLEXLEGION_SIMD void pack_columns(const Matrix& b, std::int64_t lo, std::int64_t hi,
                                  float* packed) {
  for (std::int64_t col = lo; col < hi; col += kWidth) {
    for (std::int64_t k = 0; k < b.rows; k += kDepth) {
      pack_panel(b, k, std::min(kDepth, b.rows - k), col, packed + col * b.rows + k * kWidth);
    }
  }
}

FLEXLEGION_SIMD void multiply_packed_columns(const Matrix& a, const float* packed, const Matrix& c,
                                             std::int64_t lo, std::int64_t hi) {
  for (std::int64_t col = lo; col < hi; col += kWidth) {
    const float* const panel = packed + col * a.cols;
    for (std::int64_t k = 0; k < a.cols; k += kDepth) {
      const std::int64_t depth = std::min(kDepth, a.cols - k);
      const float* const rows = panel + k * kWidth;
      Ahead ahead{rows + depth * kWidth, kWidth, 1, depth};
      multiply_panel(a, k, rows, depth, c, col, ahead);
    }
  }
}

// Columns [lo, hi) of c += a b, by way of a block of panels.
FLEXLEGION_SIMD void multiply_columns(const Matrix& a, const Matrix& b, const Matrix& c,
                                      std::int64_t lo, std::int64_t hi, float* block) {
  for (std::int64_t k = 0; k < b.rows; k += kDepth) {
    const std::int64_t depth = std::min(kDepth, b.rows - k);
    for (std::int64_t first = lo; first < hi; first += kBlock) {
      const std::int64_t last = std::min(first + kBlock, hi);
      for (std::int64_t col = first; col < last; col += kWidth) {
        pack_panel(b, k, depth, col, block + (col - first) * depth);
      }
      const bool below = last == hi;  // the next block begins with other rows
      const std::int64_t next_row = below ? k + depth : k, next_col = below ? lo : last;
      Ahead ahead;
      if (b.rows * b.cols >= kLarge && next_row < b.rows) {
        ahead = {b.f32() + next_row * b.row + next_col, b.row,
                 std::min(kBlock, hi - next_col) / kWidth, std::min(kDepth, b.rows - next_row)};
      }
      for (std::int64_t col = first; col < last; col += kWidth) {
        multiply_panel(a, k, block + (col - first) * depth, depth, c, col, ahead);
      }
    }
  }
}

// Calls body(lo, hi, part) for ranges of `cols` columns, a thread each. They begin with a panel.
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

void zero_rows(const Matrix& c, std::int64_t lo, std::int64_t hi) {
  for (std::int64_t row = 0; row < c.rows; ++row) {
    std::fill_n(c.f32() + row * c.row + lo, hi - lo, 0.0f);
  }
}

}  // namespace

// From how many rows on was measured: docs/results.md, "Products of matrices". Up to how many, is
// oneDNN's own rule, by which it leaves a factor where it lies.
bool suits(const Matrix& a, const Matrix& b, const Matrix& c) {
  if (!narrow_vectors() || !plain(a) || !plain(b) || !plain(c)) return false;
  if (a.col != 1 || b.col != 1 || c.col != 1) return false;
  const std::int64_t fewest = b.rows * b.cols >= kLarge ? 8 : 24;
  const double rows = static_cast<double>(a.rows), cols = static_cast<double>(b.cols);
  return a.rows >= fewest && b.cols >= kBlock && 1 / rows + 1 / cols >= 0.0038;
}

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  float* const blocks = scratch(kBlockSlot, team_size() * kDepth * kBlock);
  share_panels(b.cols, b.rows * b.cols, [&](std::int64_t lo, std::int64_t hi, int part) {
    if (!adds) zero_rows(c, lo, hi);
    multiply_columns(a, b, c, lo, hi, blocks + part * kDepth * kBlock);
  });
}

bool suits_packing(const Matrix& b) { return narrow_vectors() && plain(b); }

std::int64_t packed_size(const Matrix& b) {
  return (b.cols + kWidth - 1) / kWidth * kWidth * b.rows;
}

void pack(const Matrix& b, float* packed) {
  share_panels(b.cols, b.rows * b.cols,
               [&](std::int64_t lo, std::int64_t hi, int) { pack_columns(b, lo, hi, packed); });
}

void multiply_packed(const Matrix& a, const Matrix& b_shape, const float* packed, const Matrix& c,
                     bool adds) {
  share_panels(b_shape.cols, b_shape.rows * b_shape.cols,
               [&](std::int64_t lo, std::int64_t hi, int) {
                 if (!adds) zero_rows(c, lo, hi);
                 multiply_packed_columns(a, packed, c, lo, hi);
               });
}

}  // namespace flexlegion::panels
