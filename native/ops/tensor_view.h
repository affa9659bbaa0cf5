// A strided window onto one tile of a tensor, as a leaf kernel sees it, and the few loops that
// every kernel needs.
#pragma once

#include <cstdint>
#include <vector>

#include "support/rect.h"

namespace flexlegion {

struct TensorView {
  void* data =
      nullptr;  // the element at tile.lo; null: this operand is absent (a gradient nobody needs)
  Rect tile;    // in the tensor's own (global) coordinates
  std::array<std::int64_t, kMaxRegionRank> stride{};  // in elements
  std::array<std::int64_t, kMaxRegionRank> shape{};   // extents of the whole tensor, absent or not

  bool present() const { return data != nullptr; }
  int rank() const { return tile.rank; }
  std::int64_t extent(int d) const { return tile.extent(d); }
  std::int64_t volume() const { return tile.volume(); }
  float* f32() const { return static_cast<float*>(data); }
  std::int32_t* i32() const { return static_cast<std::int32_t*>(data); }

  // True if the tile is one contiguous, row-major piece of memory.
  bool dense() const;
  // The same, for the dimensions from `first` on.
  bool dense_from(int first) const;
};

// A row-major tensor of that tile over `buffer`.
TensorView dense_view(void* buffer, const Rect& tile,
                      const std::array<std::int64_t, kMaxRegionRank>& shape);

// Index `i` of the first dimension, counted from the tile's start: a view of one rank less.
TensorView subview(const TensorView& view, std::int64_t i);

// Element-wise over tiles of equal extents (32-bit elements). Strides may differ.
void copy_view(const TensorView& to, const TensorView& from);
void add_view(const TensorView& to, const TensorView& from);  // float: to += from
void max_view(const TensorView& to, const TensorView& from);  // to = max(to, from); of NaN, NaN
void log_add_exp_view(const TensorView& to, const TensorView& from);  // to = log(e^to + e^from)
void zero_view(const TensorView& to);
void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b);
void write_or_add_view(const TensorView& to, const TensorView& from, bool adds);

// The range [lo, hi) of dimension d, in global coordinates, of a view that holds it.
TensorView narrowed(const TensorView& view, int d, std::int64_t lo, std::int64_t hi);

// Kernels take scratch slots below this; those from here on are taken by the functions that they
// call (products, oneDNN's primitives).
constexpr int kKernelSlots = 32;

// Scratch memory of the calling thread; `slot` tells apart buffers that live at the same time.
// Valid until the thread asks again for the same slot; grows, is never given back, 64-byte aligned.
float* scratch(int slot, std::int64_t elements);

// A tile as dense memory: the tile itself if it is dense, else a packed copy in scratch memory;
// null if it is absent.
class DenseInput {
 public:
  DenseInput(const TensorView& view, int scratch_slot);
  float* data() const { return data_; }

 private:
  float* data_;
};

// The counterpart for a result: write to data(), then call commit(), which, if the result `adds`,
// adds it to what stands in the view.
class DenseOutput {
 public:
  DenseOutput(const TensorView& view, int scratch_slot, bool adds = false);
  float* data() const { return data_; }
  void commit() const;

 private:
  TensorView view_;
  float* data_;
  bool adds_;
};

}  // namespace flexlegion
