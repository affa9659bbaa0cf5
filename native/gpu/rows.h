// Tiles of many dimensions as few, so that finding an element takes few divisions.
#pragma once

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
  FL_DEVICE Real operator()(std::int64_t row, std::int64_t column) const {
    return outer.data[outer.offset_of(row) + column * step];
  }
};

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
