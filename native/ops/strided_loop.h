// Loops over strided tiles: the one place that knows how to walk several views at once.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>

#include "ops/tensor_view.h"

namespace flexlegion {

template <std::size_t N>
using Views = std::array<const TensorView*, N>;
template <std::size_t N>
using Offsets = std::array<std::int64_t, N>;

// Calls body(offsets) for every index of the first `dims` dimensions, in row-major order; offsets
// are in elements, from each view's `data`. The views' tiles have equal extents there.
template <std::size_t N, typename Body>
void for_each_index(const Views<N>& views, int dims, Body&& body) {
  const Rect& tile = views[0]->tile;
  for (int d = 0; d < dims; ++d) {
    if (tile.extent(d) <= 0) return;
  }
  std::array<std::int64_t, kMaxRegionRank> index{};
  Offsets<N> outer{}, steps{};
  const int last = dims - 1;
  const std::int64_t count = dims > 0 ? tile.extent(last) : 1;
  for (std::size_t v = 0; v < N && dims > 0; ++v) steps[v] = views[v]->stride[last];
  for (;;) {
    Offsets<N> offsets = outer;
    for (std::int64_t i = 0; i < count; ++i) {
      body(static_cast<const Offsets<N>&>(offsets));
      for (std::size_t v = 0; v < N; ++v) offsets[v] += steps[v];
    }
    int d = last - 1;
    for (; d >= 0; --d) {  // an odometer: carry into the dimension before
      const std::int64_t moves = ++index[d] < tile.extent(d) ? 1 : 1 - tile.extent(d);
      for (std::size_t v = 0; v < N; ++v) outer[v] += moves * views[v]->stride[d];
      if (moves == 1) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

// Calls body(offsets, length) for pieces, as long as possible, that are contiguous in every view.
template <std::size_t N, typename Body>
void for_each_run(const Views<N>& views, Body&& body) {
  const Rect& tile = views[0]->tile;
  if (tile.empty()) return;
  std::int64_t length = 1;
  int outer = tile.rank;
  const auto continues = [&](int d) {
    for (const TensorView* view : views) {
      if (tile.extent(d) != 1 && view->stride[d] != length) return false;
    }
    return true;
  };
  while (outer > 0 && continues(outer - 1)) length *= tile.extent(--outer);
  for_each_index<N>(views, outer, [&](const Offsets<N>& at) { body(at, length); });
}

// Calls body(offsets) for every row, i.e. every index of all dimensions but the last. Within a row
// the elements are neighbours in memory, as they are in a view of any row-major tensor. The last
// extents may differ between the views.
template <std::size_t N, typename Body>
void for_each_row(const Views<N>& views, Body&& body) {
  const int last = views[0]->rank() - 1;
  for (const TensorView* view : views) {
    if (view->extent(last) > 1 && view->stride[last] != 1) {
      throw std::invalid_argument("a tile whose rows are not contiguous");
    }
  }
  for_each_index<N>(views, last, body);
}

}  // namespace flexlegion
