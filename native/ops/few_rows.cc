// Products c = a b in which one matrix is large and the other has a few rows (few_rows.h).
//
// Which matrix is large, and how it lies, decides between three loops. Each keeps a tile of sums in
// registers, so that an element of the large matrix is loaded once for all of the few rows:
// - b transposed (its columns are contiguous): dot products. A tile is kColumns columns by some
//   rows of a, each sum a vector of partial sums, whose lanes are added at the end.
// - b row-major: updates. A tile is some vectors of a row of c by some rows, to which kDepth rows
//   of b are added at a time. More rows at a time visit the sums less often, but read more lines
//   that lie far apart.
// - a transposed: outer products. c is large, and a and b have a few rows: each tile of c is
//   written once.
//
// Edges: where columns do not fill a vector, the last vector ends with the last column and overlaps
// the one before it; lanes that were counted already are set to zero in one factor. So no loop for
// single elements is needed.
//
// Threads take ranges of the large matrix. Costs: 2 rows flops for each element of it, which hide
// behind reading it as long as rows are few.
#include "ops/few_rows.h"

#include <algorithm>

#include "ops/register_tiles.h"
#include "ops/team.h"

namespace flexlegion::few_rows {
namespace {

constexpr int kSumsSlot = kKernelSlots + 3;
constexpr int kColumns = 4;  // columns of a transposed large matrix in a tile of registers

// How a tile fits into the registers of a kind of processor: the lanes of its vectors, how many of
// them lie side by side, and of how many rows the tile is (where dot products are summed, too). Of
// a row-major large matrix, so many rows are read between two visits of a sum.
struct Avx512 {  // 32 registers
  static constexpr int kLanes = 16, kVectors = 4, kRows = 6, kDotRows = 6, kDepth = 32;
};
struct Avx2 {  // 16 registers, and caches that hold fewer lines at a distance of pages
  static constexpr int kLanes = 8, kVectors = 2, kRows = 6, kDotRows = 3, kDepth = 8;
};
constexpr std::int64_t kDepth = Avx512::kDepth;  // of the two, the larger
constexpr std::int64_t kGroup = 64;              // columns: whole vectors of every kind

// The last `count` elements of the vector at `from`, zeros before them.
template <typename Floats>
FLEXLEGION_INLINE void load_last(const float* from, std::int64_t count, Floats& v) {
  constexpr int kLanes = kLanesOf<Floats>;
  typename VectorOf<kLanes>::Indices lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  load(v, from);
  v = lane >= static_cast<std::int32_t>(kLanes - count) ? v : Floats{};
}

// Adds the sums of four vectors' lanes to four numbers.
FLEXLEGION_INLINE void add_lanes(const VectorOf<16>::Floats* v, float* to) {
  using Floats = VectorOf<16>::Floats;
  using Indices = VectorOf<16>::Indices;
  // Four vectors of sums become four numbers: lanes are folded in halves, of two vectors in one
  // addition, until four lanes, and then swapped within groups of four.
  const Indices low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  const Indices low4 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
  const Indices swap2 = {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13};
  const Indices swap1 = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
  const Floats a = __builtin_shuffle(v[0], v[1], low8) + __builtin_shuffle(v[0], v[1], low8 + 8);
  const Floats b = __builtin_shuffle(v[2], v[3], low8) + __builtin_shuffle(v[2], v[3], low8 + 8);
  Floats sums = __builtin_shuffle(a, b, low4) + __builtin_shuffle(a, b, low4 + 4);
  sums += __builtin_shuffle(sums, swap2);
  sums += __builtin_shuffle(sums, swap1);
  for (int j = 0; j < kColumns; ++j) to[j] += sums[4 * j];
}
FLEXLEGION_INLINE void add_lanes(const VectorOf<8>::Floats* v, float* to) {
  using Floats = VectorOf<8>::Floats;
  using Indices = VectorOf<8>::Indices;
  const Indices low4 = {0, 1, 2, 3, 8, 9, 10, 11}, low2 = {0, 1, 4, 5, 8, 9, 12, 13};
  const Floats a = __builtin_shuffle(v[0], v[1], low4) + __builtin_shuffle(v[0], v[1], low4 + 4);
  const Floats b = __builtin_shuffle(v[2], v[3], low4) + __builtin_shuffle(v[2], v[3], low4 + 4);
  const Floats sums = __builtin_shuffle(a, b, low2) + __builtin_shuffle(a, b, low2 + 2);
  for (int j = 0; j < kColumns; ++j) to[j] += sums[2 * j] + sums[2 * j + 1];
}

// Where a tile of a product lies: the first of its elements in each matrix, and how far their rows
// are apart.
struct Tile {
  const float *a, *b;
  float* c;
  std::int64_t a_row, b_row, c_row;
};

// N rows of a, with kColumns rows of b, of `inner` elements each: c += a b^T.
template <int N, int kLanes>
FLEXLEGION_INLINE void dot_tile(const Tile& t, std::int64_t inner) {
  using Floats = typename VectorOf<kLanes>::Floats;
  Floats sums[N][kColumns] = {};
  // The last vector of a row overlaps: of x, elements that were counted are zeros, so b's need no
  // mask.
  const auto add = [&](std::int64_t k, std::int64_t count) FLEXLEGION_INLINE_LAMBDA {
    Floats x[N], factor;
    for (int i = 0; i < N; ++i) load_last(t.a + i * t.a_row + k, count, x[i]);
    for (int j = 0; j < kColumns; ++j) {
      load(factor, t.b + j * t.b_row + k);
      for (int i = 0; i < N; ++i) sums[i][j] += x[i] * factor;
    }
  };
  std::int64_t k = 0;
  for (; k + kLanes <= inner; k += kLanes) add(k, kLanes);
  if (k < inner) add(inner - kLanes, inner - k);
  for (int i = 0; i < N; ++i) add_lanes(sums[i], t.c + i * t.c_row);
}

// N rows of a, of `depth` elements, with V vectors of each of `depth` rows of b: c += a b. Of each
// vector, the last `count` elements.
template <int N, int V, int kLanes>
FLEXLEGION_INLINE void update_tile(const Tile& t, std::int64_t depth, std::int64_t count) {
  using Floats = typename VectorOf<kLanes>::Floats;
  Floats sums[N][V], factor[V];
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < V; ++j) load(sums[i][j], t.c + i * t.c_row + j * kLanes);
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

// kOuterRows rows and V vectors of c: c = a^T b, or += for the last `count` elements of each
// vector.
constexpr int kOuterRows = 4;
template <int V, int kLanes>
FLEXLEGION_INLINE void outer_tile(const Tile& t, std::int64_t rows, bool adds, std::int64_t count) {
  using Floats = typename VectorOf<kLanes>::Floats;
  Floats sums[kOuterRows][V] = {}, factor[V];
  if (adds) {
    for (int i = 0; i < kOuterRows; ++i) {
      for (int j = 0; j < V; ++j) load(sums[i][j], t.c + i * t.c_row + j * kLanes);
    }
  }
  for (std::int64_t k = 0; k < rows; ++k) {
    for (int j = 0; j < V; ++j) load_last(t.b + k * t.b_row + j * kLanes, count, factor[j]);
    for (int i = 0; i < kOuterRows; ++i) {
      for (int j = 0; j < V; ++j) sums[i][j] += t.a[k * t.a_row + i] * factor[j];
    }
  }
  for (int i = 0; i < kOuterRows; ++i) {
    for (int j = 0; j < V; ++j) store(t.c + i * t.c_row + j * kLanes, sums[i][j]);
  }
}

// Calls body(first column, constant number of vectors, elements that count) for tiles of a row of
// `cols` elements. The last one overlaps the one before it, if it has to.
template <typename Registers, typename Body>
FLEXLEGION_INLINE void for_each_vector_tile(std::int64_t cols, Body&& body) {
  constexpr std::int64_t kLanes = Registers::kLanes, kVectors = Registers::kVectors;
  const std::integral_constant<int, 1> one;
  std::int64_t col = 0;
  for (; col + kVectors * kLanes <= cols; col += kVectors * kLanes) {
    body(col, std::integral_constant<int, kVectors>(), kLanes);
  }
  for (; col + kLanes <= cols; col += kLanes) body(col, one, kLanes);
  if (col < cols) body(cols - kLanes, one, cols - col);
}

FLEXLEGION_INLINE Tile tile_at(const Matrix& a, std::int64_t at_a, const Matrix& b,
                               std::int64_t at_b, const Matrix& c, std::int64_t at_c,
                               std::int64_t b_row) {
  return {a.f32() + at_a, b.f32() + at_b, c.f32() + at_c, a.row, b_row, c.row};
}

template <typename Registers>
FLEXLEGION_INLINE void dots(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (std::int64_t col = 0; col < b.cols; col += kColumns) {
    for_each_row_tile<Registers::kDotRows>(
        a.rows, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
          dot_tile<n, Registers::kLanes>(
              tile_at(a, row * a.row, b, col * b.col, c, row * c.row + col, b.col), b.rows);
        });
  }
}

template <typename Registers>
FLEXLEGION_INLINE void updates(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (std::int64_t k = 0; k < b.rows; k += Registers::kDepth) {
    const std::int64_t depth = std::min<std::int64_t>(Registers::kDepth, b.rows - k);
    for_each_vector_tile<Registers>(
        b.cols, [&](std::int64_t col, auto vectors, std::int64_t count) FLEXLEGION_INLINE_LAMBDA {
          for_each_row_tile<Registers::kRows>(
              a.rows, [&](std::int64_t row, auto n) FLEXLEGION_INLINE_LAMBDA {
                update_tile<n, vectors, Registers::kLanes>(
                    tile_at(a, row * a.row + k, b, k * b.row + col, c, row * c.row + col, b.row),
                    depth, count);
              });
        });
  }
}

FLEXLEGION_SIMD void dots_of_16(const Matrix& a, const Matrix& b, const Matrix& c) {
  dots<Avx512>(a, b, c);
}
FLEXLEGION_SIMD void dots_of_8(const Matrix& a, const Matrix& b, const Matrix& c) {
  dots<Avx2>(a, b, c);
}
FLEXLEGION_SIMD void updates_of_16(const Matrix& a, const Matrix& b, const Matrix& c) {
  updates<Avx512>(a, b, c);
}
FLEXLEGION_SIMD void updates_of_8(const Matrix& a, const Matrix& b, const Matrix& c) {
  updates<Avx2>(a, b, c);
}

// b is transposed: its columns are contiguous.
void multiply_dots(const Matrix& a, const Matrix& b, const Matrix& c) {
  (wide_vectors() ? dots_of_16 : dots_of_8)(a, b, c);
}

void multiply_updates(const Matrix& a, const Matrix& b, const Matrix& c) {
  (wide_vectors() ? updates_of_16 : updates_of_8)(a, b, c);
}

FLEXLEGION_SIMD void outer(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  constexpr std::int64_t kLanes = Avx512::kLanes;
  for (std::int64_t row = 0; row < c.rows; row += kOuterRows) {
    for_each_vector_tile<Avx512>(
        c.cols, [&](std::int64_t col, auto vectors, std::int64_t count) FLEXLEGION_INLINE_LAMBDA {
          // Without `adds`, what overlaps is written twice.
          outer_tile<vectors, kLanes>(tile_at(a, row, b, col, c, row * c.row + col, b.row), a.rows,
                                      adds, adds ? count : kLanes);
        });
  }
}

// Calls body(lo, hi) for pieces of so many columns (or rows) of the large matrix, a thread each. A
// piece is a number of whole groups, the last one with what is left over.
template <typename Body>
void share_groups(std::int64_t columns, std::int64_t elements, const Body& body) {
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
  return (wide_vectors() || narrow_vectors()) && m.type == DataType::float32 && m.batch == 1;
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
  if (factor.col != 1) {
    return rows <= 32 && factor.cols % kColumns == 0 && factor.rows >= Avx512::kLanes;
  }
  // Libraries cut such a factor into panels of some columns. Where its rows lie a page or more
  // apart, each row of a panel is on another page.
  constexpr std::int64_t kPage = 1024;
  const std::int64_t most = wide_vectors() && factor.row >= kPage ? 64 : 4;
  return rows <= most && factor.cols >= Avx512::kLanes;
}

bool suits(const Matrix& a, const Matrix& b, const Matrix& c) {
  if (!can_use(a) || !can_use(c) || c.col != 1) return false;
  if (a.col == 1) return suits(a.rows, b);
  return wide_vectors() && can_use(b) && b.col == 1 && b.rows <= 8 && c.rows % kOuterRows == 0 &&
         c.cols >= Avx512::kLanes;
}

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool adds) {
  if (a.col != 1) return multiply_outer(a.transposed(), b, c, adds);
  if (b.col != 1) return multiply_transposed(a, b, c, adds);
  multiply_row_major(a, b, c, adds);
}

}  // namespace flexlegion::few_rows
