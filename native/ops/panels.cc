// c = a b by way of panels (panels.h), in the blocking that Goto and van de Geijn (2008) describe.
//
// For 256 rows of b (kDepth) and 128 columns (kBlock) at a time, copy that part of b into panels of
// 16 columns: 128 KB, which stay in the second cache. Then for each panel (16 KB, first cache),
// tiles of 6 rows of a meet it, and their sums in registers are added to c. Rows of a are read
// where they lie, for they are few.
//
// While tiles are computed, the lines of b that are copied next are fetched, one every few rows
// (Ahead): the copy then does not wait for the memory. For a b that fits the caches this is left
// out.
//
// Threads take ranges of panels. A factor that many products share is copied once as a whole
// (pack), in the same panels.
#include "ops/panels.h"

#include <algorithm>

#include "ops/panel_tile.h"

namespace flexlegion::panels {
namespace {

constexpr int kBlockSlot = kKernelSlots + 4;
constexpr std::int64_t kLarge = 1 << 20;  // elements of a factor that is read from memory

bool plain(const Matrix& m) { return m.type == DataType::float32 && m.batch == 1; }

// All rows of a, from its column k on, with some rows of the panel that begins with column `col`.
FLEXLEGION_INLINE void multiply_panel(const Matrix& a, std::int64_t k, const float* panel,
                                      std::int64_t depth, const Matrix& c, std::int64_t col,
                                      Ahead& ahead) {
  // All tiles together pass over `depth` rows `every` times, so one line in so many rows makes
  // `depth` lines: as many as the panel that is needed next has.
  const std::int64_t every = (a.rows + kTileRows - 1) / kTileRows;
  for_each_row_tile<kTileRows>(a.rows, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
    const Tile tile{
        a.f32() + row * a.row + k, panel, c.f32() + row * c.row + col, a.row, c.row, depth};
    multiply_edge<n, false>(tile, c.cols - col, every, ahead);
  });
}

// Rows [k, k + depth) of the panel that begins with column `col` of b; zeros after the last column.
FLEXLEGION_INLINE void pack_panel(const Matrix& b, std::int64_t k, std::int64_t depth,
                                  std::int64_t col, float* __restrict__ to) {
  const std::int64_t cols = std::min<std::int64_t>(kWidth, b.cols - col);
  const float* const from = b.f32() + k * b.row + col * b.col;
  if (cols < kWidth) std::fill_n(to, depth * kWidth, 0.0f);
  if (b.col == 1 && cols == kWidth) {
    VectorOf<kLanes>::Floats v;
    for (std::int64_t r = 0; r < depth; ++r) {
      for (int j = 0; j < kWidth; j += kLanes) {
        load(v, from + r * b.row + j);
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
      // The next rows of the packed panel follow in memory.
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

}  // namespace

// From how many rows on was measured: docs/results.md, "Without AVX-512". Up to how many, is
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
    if (!adds) zero_view(view_of(columns(c, lo, hi - lo)));
    multiply_columns(a, b, c, lo, hi, blocks + part * kDepth * kBlock);
  });
}

bool suits_packing(std::int64_t rows, const Matrix& b) {
  return narrow_vectors() && plain(b) && rows <= 256;
}

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
                 if (!adds) zero_view(view_of(columns(c, lo, hi - lo)));
                 multiply_packed_columns(a, packed, c, lo, hi);
               });
}

}  // namespace flexlegion::panels
