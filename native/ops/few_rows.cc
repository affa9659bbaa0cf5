#include "ops/few_rows.h"

#include <algorithm>
#include <cstring>

#include "ops/simd.h"
#include "ops/team.h"

namespace flexlegion::few_rows {
namespace {

constexpr int kSumsSlot = kKernelSlots + 3;
constexpr int kLanes = 16;
constexpr int kTile = 4;      // large matrix: rows, or vectors of a row, in a tile of registers
constexpr int kTileRows = 6;  // few rows in a tile: with kTile, 24 sums of AVX-512's 32 registers
constexpr std::int64_t kDepth = 32;  // rows of the large matrix between two visits of a sum

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Indices = std::int32_t __attribute__((vector_size(4 * kLanes)));

FLEXLEGION_INLINE void load(const float* from, Floats& v) { std::memcpy(&v, from, sizeof(v)); }
FLEXLEGION_INLINE void store(float* to, const Floats& v) { std::memcpy(to, &v, sizeof(v)); }

// The last `count` of the kLanes elements at `from`, zeros before them.
FLEXLEGION_INLINE void load_last(const float* from, std::int64_t count, Floats& v) {
  const Indices lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  load(from, v);
  v = lane >= static_cast<std::int32_t>(kLanes - count) ? v : Floats{};
}

// Adds the sums of four vectors' lanes to four numbers.
FLEXLEGION_INLINE void add_lanes(const Floats* v, float* to) {
  const Indices low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  const Indices low4 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
  const Indices swap2 = {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13};
  const Indices swap1 = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
  const Floats a = __builtin_shuffle(v[0], v[1], low8) + __builtin_shuffle(v[0], v[1], low8 + 8);
  const Floats b = __builtin_shuffle(v[2], v[3], low8) + __builtin_shuffle(v[2], v[3], low8 + 8);
  Floats sums = __builtin_shuffle(a, b, low4) + __builtin_shuffle(a, b, low4 + 4);
  sums += __builtin_shuffle(sums, swap2);
  sums += __builtin_shuffle(sums, swap1);
  for (int j = 0; j < kTile; ++j) to[j] += sums[4 * j];
}

// Where a tile of a product lies: the first of its elements in each matrix, and how far their rows
// are apart.
struct Tile {
  const float *a, *b;
  float* c;
  std::int64_t a_row, b_row, c_row;
};

// N rows of a, with kTile rows of b, of `inner` elements each: c += a b^T.
template <int N>
FLEXLEGION_INLINE void dot_tile(const Tile& t, std::int64_t inner) {
  Floats sums[N][kTile] = {};
  const auto add = [&](std::int64_t k, std::int64_t count) FLEXLEGION_INLINE_LAMBDA {
    Floats factor[kTile], x;
    for (int j = 0; j < kTile; ++j) load(t.b + j * t.b_row + k, factor[j]);
    for (int i = 0; i < N; ++i) {
      load_last(t.a + i * t.a_row + k, count, x);
      for (int j = 0; j < kTile; ++j) sums[i][j] += x * factor[j];
    }
  };
  std::int64_t k = 0;
  for (; k + kLanes <= inner; k += kLanes) add(k, kLanes);
  if (k < inner) add(inner - kLanes, inner - k);
  for (int i = 0; i < N; ++i) add_lanes(sums[i], t.c + i * t.c_row);
}

// N rows of a, of `depth` elements, with V vectors of each of `depth` rows of b: c += a b. Of each
// vector, the last `count` elements.
template <int N, int V>
FLEXLEGION_INLINE void update_tile(const Tile& t, std::int64_t depth, std::int64_t count) {
  Floats sums[N][V], factor[V];
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < V; ++j) load(t.c + i * t.c_row + j * kLanes, sums[i][j]);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    for (int j = 0; j < V; ++j) load_last(t.b + k * t.b_row + j * kLanes, count, factor[j]);
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < V; ++j) sums[i][j] += t.a[i * t.a_row + k] * factor[j];
    }
  }
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < V; ++j) store(t.c + i * t.c_row + j * kLanes, sums[i][j]);
  }
}

// kTile rows and V vectors of c: c = a^T b, or += for the last `count` elements of each vector.
template <int V>
FLEXLEGION_INLINE void outer_tile(const Tile& t, std::int64_t rows, bool adds, std::int64_t count) {
  Floats sums[kTile][V] = {}, factor[V];
  if (adds) {
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < V; ++j) load(t.c + i * t.c_row + j * kLanes, sums[i][j]);
    }
  }
  for (std::int64_t k = 0; k < rows; ++k) {
    for (int j = 0; j < V; ++j) load_last(t.b + k * t.b_row + j * kLanes, count, factor[j]);
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < V; ++j) sums[i][j] += t.a[k * t.a_row + i] * factor[j];
    }
  }
  for (int i = 0; i < kTile; ++i) {
    for (int j = 0; j < V; ++j) store(t.c + i * t.c_row + j * kLanes, sums[i][j]);
  }
}

// Calls body(first column, number of vectors, elements that count) for tiles of a row of `cols`
// elements. The last one overlaps the one before it, if it has to.
template <typename Body>
FLEXLEGION_INLINE void for_each_vector_tile(std::int64_t cols, Body&& body) {
  std::int64_t col = 0;
  for (; col + kTile * kLanes <= cols; col += kTile * kLanes) body(col, kTile, kLanes);
  for (; col + kLanes <= cols; col += kLanes) body(col, 1, kLanes);
  if (col < cols) body(cols - kLanes, 1, cols - col);
}

// Calls body(first row, constant number of rows) for `rows` in tiles of nearly equal sizes.
template <typename Body>
FLEXLEGION_INLINE void for_each_row_tile(std::int64_t rows, Body&& body) {
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::int64_t tile = 0, row = 0; tile < tiles; ++tile) {
    const std::int64_t n = rows / tiles + (tile < rows % tiles);
    if (n == 1) body(row, std::integral_constant<int, 1>());
    if (n == 2) body(row, std::integral_constant<int, 2>());
    if (n == 3) body(row, std::integral_constant<int, 3>());
    if (n == 4) body(row, std::integral_constant<int, 4>());
    if (n == 5) body(row, std::integral_constant<int, 5>());
    if (n == 6) body(row, std::integral_constant<int, 6>());
    row += n;
  }
}

FLEXLEGION_INLINE Tile tile_at(const Matrix& a, std::int64_t at_a, const Matrix& b,
                               std::int64_t at_b, const Matrix& c, std::int64_t at_c,
                               std::int64_t b_row) {
  return {a.f32() + at_a, b.f32() + at_b, c.f32() + at_c, a.row, b_row, c.row};
}

// b is transposed: its columns are contiguous.
FLEXLEGION_SIMD void multiply_dots(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (std::int64_t col = 0; col < b.cols; col += kTile) {
    for_each_row_tile(a.rows, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
      dot_tile<n>(tile_at(a, row * a.row, b, col * b.col, c, row * c.row + col, b.col), b.rows);
    });
  }
}

FLEXLEGION_SIMD void multiply_updates(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (std::int64_t k = 0; k < b.rows; k += kDepth) {
    const std::int64_t depth = std::min(kDepth, b.rows - k);
    for_each_vector_tile(
        b.cols, [&](std::int64_t col, int vectors, std::int64_t count) FLEXLEGION_INLINE_LAMBDA {
          for_each_row_tile(a.rows, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
            const Tile tile =
                tile_at(a, row * a.row + k, b, k * b.row + col, c, row * c.row + col, b.row);
            if (vectors == kTile) {
              update_tile<n, kTile>(tile, depth, kLanes);
            } else {
              update_tile<n, 1>(tile, depth, count);
            }
          });
        });
  }
}

FLEXLEGION_SIMD void outer(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  for (std::int64_t row = 0; row < c.rows; row += kTile) {
    for_each_vector_tile(
        c.cols, [&](std::int64_t col, int vectors, std::int64_t count) FLEXLEGION_INLINE_LAMBDA {
          const Tile tile = tile_at(a, row, b, col, c, row * c.row + col, b.row);
          if (vectors == kTile) {
            outer_tile<kTile>(tile, a.rows, adds, kLanes);
          } else {  // without `adds`, what overlaps is written twice
            outer_tile<1>(tile, a.rows, adds, adds ? count : kLanes);
          }
        });
  }
}

// Calls body(lo, hi) for pieces of so many columns (or rows) of the large matrix, a thread each. A
// piece is a number of whole groups, the last one with what is left over.
template <typename Body>
void share_groups(std::int64_t columns, std::int64_t elements, const Body& body) {
  constexpr std::int64_t kGroup = kTile * kLanes;
  const std::int64_t groups = columns / kGroup;
  if (groups < team_size()) return body(std::int64_t{0}, columns);
  share_range(groups, elements, [&](std::int64_t lo, std::int64_t hi) {
    body(lo * kGroup, hi == groups ? columns : hi * kGroup);
  });
}

Matrix columns_of(const Matrix& m, std::int64_t lo, std::int64_t hi) {
  return columns(m, lo, hi - lo);
}

bool can_use(const Matrix& m) {
  static const bool wide_vectors = __builtin_cpu_supports("avx512f") != 0;
  return wide_vectors && m.type == DataType::float32 && m.batch == 1;
}

void zero_rows(const Matrix& c) {
  for (std::int64_t row = 0; row < c.rows; ++row) std::fill_n(c.f32() + row * c.row, c.cols, 0.0f);
}

// c = a b, or c += a b, of a transposed b: a thread has some of its columns, which are contiguous.
void multiply_transposed(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  share_groups(b.cols, b.rows * b.cols, [&](std::int64_t lo, std::int64_t hi) {
    const Matrix result = columns_of(c, lo, hi);
    if (!adds) zero_rows(result);
    multiply_dots(a, columns_of(b, lo, hi), result);
  });
}

// The same of a row-major b: a thread has some of its rows, since parts of rows are read more
// slowly, and a sum of its own, which is small and is added to the first thread's.
void multiply_row_major(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  if (!adds) zero_rows(c);
  const int parts = team_size();
  if (parts == 1 || b.rows < parts * kDepth || b.rows * b.cols < worth_sharing()) {
    return multiply_updates(a, b, c);
  }
  const std::int64_t elements = c.rows * c.cols;
  float* const sums = scratch(kSumsSlot, (parts - 1) * elements);
  const auto sum_of = [&](int part) {
    return part == 0 ? c : Matrix::row_major(sums + (part - 1) * elements, c.rows, c.cols, c.cols);
  };
  share_out(parts, [&](int part) {
    const std::int64_t lo = part * b.rows / parts, hi = (part + 1) * b.rows / parts;
    Matrix its = b;
    its.data = b.at(lo * b.row);
    its.rows = hi - lo;
    if (part > 0) zero_rows(sum_of(part));
    multiply_updates(columns_of(a, lo, hi), its, sum_of(part));
  });
  for (int part = 1; part < parts; ++part) add_view(view_of(c), view_of(sum_of(part)));
}

// c = a^T b, or c += a^T b.
void multiply_outer(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  share_groups(c.rows, c.rows * c.cols, [&](std::int64_t lo, std::int64_t hi) {
    Matrix result = c;
    result.data = c.at(lo * c.row);
    result.rows = hi - lo;
    outer(columns_of(a, lo, hi), b, result, adds);
  });
}

}  // namespace

// Up to how many rows these are the faster ones was measured: docs/results.md, "Products of
// matrices".
bool suits(std::int64_t rows, const Matrix& factor) {
  if (!can_use(factor)) return false;
  if (factor.col != 1) return rows <= 32 && factor.cols % kTile == 0 && factor.rows >= kLanes;
  // Libraries cut such a factor into panels of some columns. Where its rows lie a page or more
  // apart, each row of a panel is on another page.
  constexpr std::int64_t kPage = 1024;
  return rows <= (factor.row >= kPage ? 64 : 4) && factor.cols >= kLanes;
}

bool suits(const Matrix& a, const Matrix& b, const Matrix& c) {
  if (!can_use(a) || !can_use(c) || c.col != 1) return false;
  if (a.col == 1) return suits(a.rows, b);
  return can_use(b) && b.col == 1 && b.rows <= 8 && c.rows % kTile == 0 && c.cols >= kLanes;
}

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  if (a.col != 1) return multiply_outer(a.transposed(), b, c, adds);
  if (b.col != 1) return multiply_transposed(a, b, c, adds);
  multiply_row_major(a, b, c, adds);
}

}  // namespace flexlegion::few_rows
