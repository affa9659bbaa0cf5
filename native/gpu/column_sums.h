// Sums over the rows of a table, one a column: of gradients of biases, statistics of channels.
//
// Blocks of threads sum parts of the rows, each thread some of its part's rows of a few columns;
// then a team sums a column's parts. Additions have an order that depends on the extents alone.
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
constexpr std::int64_t kMostInSingle = 64;

// Adds the rows [row, end), `step` apart, of W columns from c on.
template <int N, int W, typename Add>
FL_DEVICE inline void add_rows(std::int64_t row, std::int64_t end, std::int64_t step,
                               std::int64_t c, const Add& add, Some<W> (&sums)[N][W]) {
  for (; row < end; row += step) add(Width<W>(), row, c, sums);
}

#ifdef __CUDACC__

constexpr std::int64_t kBlocks = 1024;  // at least, if there are enough rows: a few each
                                        // multiprocessor
constexpr std::int64_t kMostParts = 65535;
constexpr std::int64_t kFewParts = 8;  // which are less work than a team's

// Block (x, y) sums part y of the rows of `groups` groups of W columns: each thread one group's,
// together with kThreads / groups others.
template <int N, int W, typename Add>
__global__ void __launch_bounds__(kThreads, 2)
    sum_parts(std::int64_t rows, std::int64_t columns, std::int64_t each, int groups,
              double* partial, Add add) {
  __shared__ Some<W> shared[N * W][kThreads];
  const int group = threadIdx.x % groups, lanes = kThreads / groups;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * groups;
  const std::int64_t begin = blockIdx.y * each, c = (first + group) * W;
  const std::int64_t end = rows < begin + each ? rows : begin + each;
  Some<W> sums[N][W] = {};
  if (c < columns) add_rows<N, W>(begin + threadIdx.x / groups, end, lanes, c, add, sums);
  for (int v = 0; v < N * W; ++v) shared[v][threadIdx.x] = sums[v / W][v % W];
  __syncthreads();
  for (int i = threadIdx.x; i < N * W * groups; i += kThreads) {
    const int v = i / groups, of = i % groups;
    double total = 0;
    for (int lane = 0; lane < lanes; ++lane) total += shared[v][lane * groups + of];
    const std::int64_t column = (first + of) * W + v % W;
    if (column < columns) partial[(column * N + v / W) * gridDim.y + blockIdx.y] = total;
  }
}

#endif

template <int N, int W, typename Add, typename Finish>
void sum(std::int64_t rows, std::int64_t columns, int slot, const Add& add, const Finish& finish) {
  if (columns <= 0) return;
#ifdef __CUDACC__
  const std::int64_t all = columns / W;
  int groups = 1;
  while (groups < 32 && groups < all) groups *= 2;
  const std::int64_t across = (all + groups - 1) / groups, lanes = kThreads / groups;
  const std::int64_t few = std::max(kBlocks / across, rows / (kMostInSingle * lanes) + 1);
  const std::int64_t parts =
      std::clamp<std::int64_t>(few, 1, std::clamp<std::int64_t>(rows / (8 * lanes), 1, kMostParts));
  const std::int64_t each = (rows + parts - 1) / parts;
  double* const partial = scratch_doubles(slot, parts * columns * N);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(parts));
  sum_parts<N, W><<<grid, kThreads, 0, stream()>>>(rows, columns, each, groups, partial, add);
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
      add_rows<N, W>(row, std::min(rows, row + kMostInSingle), 1, group * W, add, some);
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

}  // namespace columns

// add(width, r, c, sums) adds to sums[n][k] the n-th number of element (r, c + k), for each k of
// the width; and finish(c, sums) is called once a column. Where `aligned`, elements whose columns
// are multiples of kWide can be loaded and stored together. Takes scratch slot `slot`.
template <int N, typename Add, typename Finish>
void sum_wide_columns(std::int64_t rows, std::int64_t columns, bool aligned, int slot,
                      const Add& add, const Finish& finish) {
  if (aligned && columns % kWide == 0) {
    columns::sum<N, kWide>(rows, columns, slot, add, finish);
  } else {
    columns::sum<N, 1>(rows, columns, slot, add, finish);
  }
}

// The same, where value(r, c) returns the N numbers of an element.
template <int N, typename Value, typename Finish>
void sum_columns(std::int64_t rows, std::int64_t columns, int slot, const Value& value,
                 const Finish& finish) {
  columns::sum<N, 1>(
      rows, columns, slot,
      [=] FL_BODY(auto /*width*/, std::int64_t r, std::int64_t c, auto& sums) {
        const Sums<N> element = value(r, c);
        for (int n = 0; n < N; ++n) sums[n][0] += element.of[n];
      },
      finish);
}

}  // namespace flexlegion::gpu
