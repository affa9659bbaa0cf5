// Tiles of many dimensions as few, so that finding an element takes few divisions.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {

// The dimensions [first, last) of a tile, numbered as before; those whose elements lie at equal
// distances are one.
inline Strided joined(const TensorView& view, int first, int last) {
  Strided result;
  result.data = {view.data, view.type};
  int& rank = result.rank;
  for (int d = first; d < last; ++d) {
    if (view.extent(d) == 1) continue;
    if (rank > 0 && result.stride[rank - 1] == view.extent(d) * view.stride[d]) {
      result.extent[rank - 1] *= view.extent(d);
      result.stride[rank - 1] = view.stride[d];
    } else {
      result.extent[rank] = view.extent(d);
      result.stride[rank] = view.stride[d];
      ++rank;
    }
  }
  return result;
}

inline Strided joined(const TensorView& view) { return joined(view, 0, view.rank()); }

// A tile's elements by row, i.e. index of all dimensions but the last, and column.
struct Rows {
  Strided outer;  // without memory, if the tile is absent
  std::int64_t step = 0;

  explicit Rows(const TensorView& view) {
    if (!view.present()) return;
    const int last = view.rank() - 1;
    outer = joined(view, 0, last);
    step = view.stride[last];
  }
  FL_DEVICE bool present() const { return outer.data.present(); }
  FL_DEVICE std::int64_t offset_of(std::int64_t row) const {
    return outer.rank == 1 ? row * outer.stride[0] : outer.offset_of(row);
  }
  FL_DEVICE Real operator()(std::int64_t row, std::int64_t column) const {
    return outer.data[offset_of(row) + column * step];
  }

  // Several columns at a time.
  template <int W>
  FL_DEVICE Lanes<W> load(Width<W> width, std::int64_t row, std::int64_t column) const {
    return gpu::load(width, outer.data, offset_of(row) + column * step);
  }
  template <int W>
  FL_DEVICE void put(std::int64_t row, std::int64_t column, const Lanes<W>& lanes,
                     bool adds = false) const {
    gpu::put(outer.data, offset_of(row) + column * step, lanes, adds);
  }
  // Whether kWide of them, from a multiple of that on, can be loaded and stored together.
  bool aligned() const {
    if (!present()) return true;
    const auto whole = [](std::int64_t stride) { return stride % kWide == 0; };
    return step == 1 && begins_wide(outer.data) &&
           std::all_of(outer.stride, outer.stride + outer.rank, whole);
  }
};

inline bool all_aligned(std::initializer_list<Rows> tiles) {
  return std::all_of(tiles.begin(), tiles.end(), [](const Rows& rows) { return rows.aligned(); });
}

// Where the gradient of a weight of channels goes; without memory, if it is not wanted, or there is
// no such weight (-1).
struct WeightGradient {
  float* data = nullptr;
  bool adds = false;

  WeightGradient(const KernelTask& task, int weight) {
    if (weight < 0 || !task.wants_weight_grad(static_cast<std::size_t>(weight))) return;
    data = task.weight_grads[static_cast<std::size_t>(weight)].f32();
    adds = task.adds_to_weight_grad(static_cast<std::size_t>(weight));
  }
};

}  // namespace flexlegion::gpu
