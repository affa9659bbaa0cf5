// Loops down the columns of a table, and sums over its rows, one a column: what normalisations and
// gradients of biases are made of.
//
// A table is cut into strips: each thread has a few columns, of which it keeps what it needs, and
// some of the rows. To sum, blocks of threads add up their strips, then a team adds those of a
// column. Additions have an order that depends on the extents alone.
//
// A body has three functions, for any width W (lanes.h):
//   column(Width<W>, c)       what is kept of columns [c, c + W);
//   read(Width<W>, r, c)      what is read of row r;
//   add(Width<W>, column, read, r, c, sums)   does it, and adds to sums[n][k] the n-th number of
//                                             element (r, c + k).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/lanes.h"
#include "gpu/launch.h"

namespace flexlegion::gpu {

template <int N>
struct Sums {
  double of[N] = {};
};

namespace columns {

// What a thread sums of some rows. Of wide columns, so many rows at most are summed in single
// precision, for speed; all other sums are in double precision.
template <int W>
using Some = std::conditional_t<W == 1, double, float>;
constexpr std::int64_t kMostInSingle = 16;

// A strip: the rows [row, end), `step` apart, of W columns from c on.
template <int N, int W, typename Body>
FL_DEVICE inline void run_strip(std::int64_t row, std::int64_t end, std::int64_t step,
                                std::int64_t c, const Body& body, Some<W> (&sums)[N][W]) {
  constexpr Width<W> width;
  if (row >= end) return;
  const auto column = body.column(width, c);
  for (; row < end; row += step) {
    body.add(width, column, body.read(width, row, c), row, c, sums);
  }
}

#ifdef __CUDACC__

// How a table is cut. Block (x, y) has part y of the rows of `groups` groups of columns: each of
// its threads one group's, together with kThreads / groups others.
struct Cut {
  static constexpr std::int64_t kBlocks = 1024;  // some for each multiprocessor
  static constexpr std::int64_t kLeastRows = 8;  // of a thread, if there are many
  static constexpr std::int64_t kMostParts = 65535;

  std::int64_t rows, columns, each, across, parts;
  int groups = 1;

  Cut(std::int64_t rows, std::int64_t columns, int width) : rows(rows), columns(columns) {
    const std::int64_t all = columns / width;
    while (groups < 32 && groups < all) groups *= 2;
    across = (all + groups - 1) / groups;
    const std::int64_t lanes = kThreads / groups;
    const std::int64_t wanted = std::max(kBlocks / across, rows / (kMostInSingle * lanes) + 1);
    const std::int64_t most = std::clamp<std::int64_t>(rows / (kLeastRows * lanes), 1, kMostParts);
    parts = std::clamp<std::int64_t>(wanted, 1, most);
    each = (rows + parts - 1) / parts;
  }
  dim3 grid() const { return {static_cast<unsigned>(across), static_cast<unsigned>(parts)}; }
};

// The calling thread's strip.
template <int N, int W, typename Body>
__device__ inline void run_own_strip(const Cut& cut, const Body& body, Some<W> (&sums)[N][W]) {
  const int group = threadIdx.x % cut.groups, lanes = kThreads / cut.groups;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * cut.groups + group) * W;
  const std::int64_t begin = blockIdx.y * cut.each;
  const std::int64_t end = cut.rows < begin + cut.each ? cut.rows : begin + cut.each;
  if (c >= cut.columns) return;
  run_strip<N, W>(begin + threadIdx.x / cut.groups, end, lanes, c, body, sums);
}

template <int W, typename Body>
__global__ void __launch_bounds__(kThreads, 3) run_strips(Cut cut, Body body) {
  Some<W> none[1][W] = {};
  run_own_strip<1, W>(cut, body, none);
}

template <int N, int W, typename Body>
__global__ void __launch_bounds__(kThreads, 2) sum_strips(Cut cut, double* partial, Body body) {
  __shared__ Some<W> shared[N * W][kThreads];
  Some<W> sums[N][W] = {};
  run_own_strip<N, W>(cut, body, sums);
  for (int v = 0; v < N * W; ++v) shared[v][threadIdx.x] = sums[v / W][v % W];
  __syncthreads();
  const int lanes = kThreads / cut.groups;
  for (int i = threadIdx.x; i < N * W * cut.groups; i += kThreads) {
    const int v = i / cut.groups, of = i % cut.groups;
    double total = 0;
    for (int lane = 0; lane < lanes; ++lane) total += shared[v][lane * cut.groups + of];
    const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * cut.groups + of;
    const std::int64_t column = group * W + v % W;
    if (column < cut.columns) partial[(column * N + v / W) * gridDim.y + blockIdx.y] = total;
  }
}

constexpr std::int64_t kFewParts = 8;  // which are less work than a team's

#endif

template <int W, typename Body>
void run(std::int64_t rows, std::int64_t columns, const Body& body) {
  if (rows <= 0 || columns <= 0) return;
#ifdef __CUDACC__
  const Cut cut(rows, columns, W);
  run_strips<W><<<cut.grid(), kThreads, 0, stream()>>>(cut, body);
  check(cudaGetLastError());
#else
  for_each(columns / W, [=](std::int64_t group) {
    Some<W> none[1][W] = {};
    run_strip<1, W>(0, rows, 1, group * W, body, none);
  });
#endif
}

template <int N, int W, typename Body, typename Finish>
void sum(std::int64_t rows, std::int64_t columns, int slot, const Body& body,
         const Finish& finish) {
  if (columns <= 0) return;
#ifdef __CUDACC__
  const Cut cut(rows, columns, W);
  const std::int64_t parts = cut.parts;
  double* const partial = scratch_doubles(slot, parts * columns * N);
  sum_strips<N, W><<<cut.grid(), kThreads, 0, stream()>>>(cut, partial, body);
  check(cudaGetLastError());
  if (parts <= kFewParts) {
    for_each(columns, [=] FL_BODY(std::int64_t c) {
      Sums<N> total;
      for (int n = 0; n < N; ++n) {
        for (std::int64_t part = 0; part < parts; ++part) {
          total.of[n] += partial[(c * N + n) * parts + part];
        }
      }
      finish(c, total);
    });
    return;
  }
  for_each_team(columns, parts, [=] FL_BODY(const Team& team, std::int64_t c) {
    Sums<N> total;
    for (int n = 0; n < N; ++n) {
      for (std::int64_t part = team.rank; part < parts; part += team.size) {
        total.of[n] += partial[(c * N + n) * parts + part];
      }
      total.of[n] = team.sum(total.of[n]);
    }
    if (team.rank == 0) finish(c, total);
  });
#else
  (void)slot;
  for_each(columns / W, [=](std::int64_t group) {
    double sums[N][W] = {};
    for (std::int64_t row = 0; row < rows; row += kMostInSingle) {
      Some<W> some[N][W] = {};
      run_strip<N, W>(row, std::min(rows, row + kMostInSingle), 1, group * W, body, some);
      for (int n = 0; n < N; ++n) {
        for (int w = 0; w < W; ++w) sums[n][w] += some[n][w];
      }
    }
    for (int w = 0; w < W; ++w) {
      Sums<N> total;
      for (int n = 0; n < N; ++n) total.of[n] = sums[n][w];
      finish(group * W + w, total);
    }
  });
#endif
}

// A body that keeps nothing: add(width, r, c, sums).
template <typename Add>
struct Plain {
  struct Nothing {};
  Add its;

  template <int W>
  FL_DEVICE Nothing column(Width<W>, std::int64_t) const {
    return {};
  }
  template <int W>
  FL_DEVICE Nothing read(Width<W>, std::int64_t, std::int64_t) const {
    return {};
  }
  template <int W, typename Sums>
  FL_DEVICE void add(Width<W> width, Nothing, Nothing, std::int64_t r, std::int64_t c,
                     Sums& sums) const {
    its(width, r, c, sums);
  }
};

}  // namespace columns

// Does what the body says, and sums nothing. Where `aligned`, elements whose columns are multiples
// of kWide can be loaded and stored together.
template <typename Body>
void run_columns(std::int64_t rows, std::int64_t columns, bool aligned, const Body& body) {
  if (aligned && columns % kWide == 0) {
    columns::run<kWide>(rows, columns, body);
  } else {
    columns::run<1>(rows, columns, body);
  }
}

// The same, and finish(c, sums) is called once a column. Takes scratch slot `slot`.
template <int N, typename Body, typename Finish>
void run_and_sum_columns(std::int64_t rows, std::int64_t columns, bool aligned, int slot,
                         const Body& body, const Finish& finish) {
  if (aligned && columns % kWide == 0) {
    columns::sum<N, kWide>(rows, columns, slot, body, finish);
  } else {
    columns::sum<N, 1>(rows, columns, slot, body, finish);
  }
}

// Where all that there is to do is add(width, r, c, sums).
template <int N, typename Add, typename Finish>
void sum_wide_columns(std::int64_t rows, std::int64_t columns, bool aligned, int slot,
                      const Add& add, const Finish& finish) {
  run_and_sum_columns<N>(rows, columns, aligned, slot, columns::Plain<Add>{add}, finish);
}

// The same, where value(r, c) returns the N numbers of an element.
template <int N, typename Value, typename Finish>
void sum_columns(std::int64_t rows, std::int64_t columns, int slot, const Value& value,
                 const Finish& finish) {
  sum_wide_columns<N>(
      rows, columns, false, slot,
      [=] FL_BODY(auto /*width*/, std::int64_t r, std::int64_t c, auto& sums) {
        const Sums<N> element = value(r, c);
        for (int n = 0; n < N; ++n) sums[n][0] += element.of[n];
      },
      finish);
}

}  // namespace flexlegion::gpu
