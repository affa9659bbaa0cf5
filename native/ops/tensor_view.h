// A strided window onto one tile of a tensor, as a leaf kernel sees it, and the few loops that
// every kernel needs.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

#include "ops/narrow.h"
#include "support/data_type.h"
#include "support/rect.h"

namespace flexlegion {

struct TensorView {
  void* data =
      nullptr;  // the element at tile.lo; null: this operand is absent (a gradient nobody needs)
  Rect tile;    // in the tensor's own (global) coordinates
  std::array<std::int64_t, kMaxRegionRank> stride{};  // in elements
  std::array<std::int64_t, kMaxRegionRank> shape{};   // extents of the whole tensor, absent or not
  DataType type = DataType::float32;

  bool present() const { return data != nullptr; }
  int rank() const { return tile.rank; }
  std::int64_t extent(int d) const { return tile.extent(d); }
  std::int64_t volume() const { return tile.volume(); }
  float* f32() const {
    assert(!is_narrow(type));
    return static_cast<float*>(data);
  }
  Narrow* bits() const { return static_cast<Narrow*>(data); }  // of numbers of two bytes
  template <typename Element>
  Element* as() const {
    return static_cast<Element*>(data);
  }
  std::int32_t* i32() const { return static_cast<std::int32_t*>(data); }

  bool narrow() const { return is_narrow(type); }
  // Whether elements of that type can be moved as its own are. (Whole numbers are moved as floats
  // are.)
  bool fits(DataType other) const { return type == other || !(narrow() || is_narrow(other)); }
  // So many elements from the first.
  void* at(std::int64_t offset) const {
    return static_cast<char*>(data) + offset * element_bytes(type);
  }

  // True if the tile is one contiguous, row-major piece of memory.
  bool dense() const;
  // The same, for the dimensions from `first` on.
  bool dense_from(int first) const;
};

// A row-major tensor of that tile over `buffer`.
TensorView dense_view(void* buffer, const Rect& tile,
                      const std::array<std::int64_t, kMaxRegionRank>& shape,
                      DataType type = DataType::float32);

// Index `i` of the first dimension, counted from the tile's start: a view of one rank less.
TensorView subview(const TensorView& view, std::int64_t i);

// Element-wise over tiles of equal extents. Strides may differ, and so may types, if both are of
// real numbers; what is computed is float32, and rounded once where it is stored narrower.
void copy_view(const TensorView& to, const TensorView& from);
void add_view(const TensorView& to, const TensorView& from);  // to += from
void max_view(const TensorView& to, const TensorView& from);  // to = max(to, from); of NaN, NaN
void log_add_exp_view(const TensorView& to, const TensorView& from);  // to = log(e^to + e^from)
void zero_view(const TensorView& to);
void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b);
void write_or_add_view(const TensorView& to, const TensorView& from, bool adds);

// Calls body() with an element of that type: a float, or a bfloat16.
template <typename Body>
void with_element(DataType type, Body&& body) {
  if (type == DataType::bfloat16) {
    body(Bfloat16());
  } else {
    body(float());
  }
}

// The range [lo, hi) of dimension d, in global coordinates, of a view that holds it.
TensorView narrowed(const TensorView& view, int d, std::int64_t lo, std::int64_t hi);

// Kernels take scratch slots below this; those from here on are taken by the functions that they
// call (products, oneDNN's primitives).
constexpr int kKernelSlots = 32;

// Scratch memory of the calling thread; `slot` tells apart buffers that live at the same time.
// Valid until the thread asks again for the same slot; grows, is never given back, 64-byte aligned.
float* scratch(int slot, std::int64_t elements);

// A dense tile of the same extents as another in scratch memory, of its own type or another.
TensorView scratch_view(int slot, const TensorView& like, DataType type = DataType::float32);

// A tile as dense memory: the tile itself if it is dense and of that type, else a copy in scratch
// memory; null if it is absent.
class DenseInput {
 public:
  DenseInput(const TensorView& view, int scratch_slot, DataType type = DataType::float32);
  float* data() const { return static_cast<float*>(memory_); }
  void* memory() const { return memory_; }  // of any type

 private:
  void* memory_;
};

// The counterpart for a result: write to data(), then call commit(), which, if the result `adds`,
// adds it to what stands in the view.
class DenseOutput {
 public:
  DenseOutput(const TensorView& view, int scratch_slot, bool adds = false,
              DataType type = DataType::float32);
  float* data() const { return result_.f32(); }
  void* memory() const { return result_.data; }
  void commit() const;

 private:
  TensorView view_, result_;
  bool adds_;
};

}  // namespace flexlegion
