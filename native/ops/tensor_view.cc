// Passes over strided tiles: copy, sums, maxima; packing; and scratch memory.
//
// All passes are bound by memory. They walk runs that are contiguous in all views at once, as long
// as possible, on all threads of the device. Tiles of two bytes are widened in pieces that stay in
// the first cache.
//
// Scratch memory belongs to a thread and a slot, and grows to the largest size that was asked for.
// A training loop therefore allocates in its first iteration and never after, at the price of
// memory that is kept. Kernels number their slots; two buffers that are alive at once need
// different ones.
#include "ops/tensor_view.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>

#include "ops/floats.h"
#include "ops/merge_elements.h"
#include "ops/simd.h"
#include "support/huge_pages.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void add_run(float* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FLEXLEGION_SIMD void max_run(float* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = larger(to[i], from[i]);
}

// Calls run(offsets, length) for pieces that are contiguous in every view, on all threads; with the
// views of which these are offsets.
template <std::size_t N, typename Run>
void share_runs(const Views<N>& views, const Run& run) {
  share_views<N>(views, [&run](const Views<N>& parts) {
    for_each_run<N>(parts, [&](const Offsets<N>& at, std::int64_t n) { run(parts, at, n); });
  });
}

// What std::aligned_alloc() gave goes back by std::free().
struct Freed {
  void operator()(float* p) const { std::free(p); }
};

struct ScratchBuffer {
  std::unique_ptr<float, Freed> memory;
  std::int64_t elements = 0;
};

}  // namespace

bool TensorView::dense() const { return dense_from(0); }

bool TensorView::dense_from(int first) const {
  std::int64_t expected = 1;
  for (int d = rank() - 1; d >= first; --d) {
    if (extent(d) != 1 && stride[d] != expected) return false;
    expected *= extent(d);
  }
  return true;
}

// Row-major memory of a tile: its strides follow from the tile's extents, its coordinates stay the
// tensor's.
TensorView dense_view(void* buffer, const Rect& tile,
                      const std::array<std::int64_t, kMaxRegionRank>& shape, DataType type) {
  TensorView view;
  view.data = buffer;
  view.tile = tile;
  view.shape = shape;
  view.type = type;
  std::int64_t stride = 1;
  for (int d = tile.rank - 1; d >= 0; --d) {
    view.stride[d] = stride;
    stride *= tile.extent(d);
  }
  return view;
}

TensorView subview(const TensorView& view, std::int64_t i) {
  TensorView part;
  part.data = view.at(i * view.stride[0]);
  part.type = view.type;
  part.tile.rank = view.rank() - 1;
  for (int d = 0; d < part.rank(); ++d) {
    part.tile.lo[d] = view.tile.lo[d + 1];
    part.tile.hi[d] = view.tile.hi[d + 1];
    part.stride[d] = view.stride[d + 1];
    part.shape[d] = view.shape[d + 1];
  }
  return part;
}

// Equal types are copied as bits; others go through floats.
void copy_view(const TensorView& to, const TensorView& from) {
  share_runs<2>({&to, &from}, [](const Views<2>& parts, const Offsets<2>& at, std::int64_t n) {
    const TensorView &its = *parts[0], &source = *parts[1];
    if (its.fits(source.type)) {  // as bytes, so that any bit pattern survives
      std::memcpy(its.at(at[0]), source.at(at[1]),
                  static_cast<std::size_t>(n * element_bytes(its.type)));
    } else if (its.narrow()) {
      round_off(its.type, source.f32() + at[1], its.bits() + at[0], n);
    } else {
      widen(source.type, source.bits() + at[1], its.f32() + at[0], n);
    }
  });
}

// What is added to is read and written. Narrow sums are widened, added as floats and rounded once a
// call.
void add_view(const TensorView& to, const TensorView& from) {
  share_floats<1, 1, 2>({&to, &from},
                        [](const Pointers<2>& at, std::int64_t n) { add_run(at[0], at[1], n); });
}

void max_view(const TensorView& to, const TensorView& from) {
  share_floats<1, 1, 2>({&to, &from},
                        [](const Pointers<2>& at, std::int64_t n) { max_run(at[0], at[1], n); });
}

void log_add_exp_view(const TensorView& to, const TensorView& from) {
  share_floats<1, 1, 2>({&to, &from}, [](const Pointers<2>& at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) at[0][i] = log_add_exp(at[0][i], at[1][i]);
  });
}

// Zero is all bits 0 in every type.
void zero_view(const TensorView& to) {
  share_runs<1>({&to}, [](const Views<1>& parts, const Offsets<1>& at, std::int64_t n) {
    const auto bytes = static_cast<std::size_t>(n * element_bytes(parts[0]->type));
    std::memset(parts[0]->at(at[0]), 0, bytes);
  });
}

void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b) {
  share_floats<1, 1, 3>({&to, &a, &b}, [](const Pointers<3>& at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (same_number(at[1][i], at[2][i])) at[0][i] = 0.0f;
    }
  });
}

void write_or_add_view(const TensorView& to, const TensorView& from, bool adds) {
  (adds ? add_view : copy_view)(to, from);
}

TensorView narrowed(const TensorView& view, int d, std::int64_t lo, std::int64_t hi) {
  TensorView part = view;
  if (view.present()) part.data = view.at((lo - view.tile.lo[d]) * view.stride[d]);
  part.tile.lo[d] = lo;
  part.tile.hi[d] = hi;
  return part;
}

float* scratch(int slot, std::int64_t elements) {
  thread_local std::map<int, ScratchBuffer> buffers;
  ScratchBuffer& buffer = buffers[slot];
  if (elements > buffer.elements || buffer.memory == nullptr) {
    constexpr std::int64_t kLine = 16;  // floats in a cache line
    // Whole cache lines, as std::aligned_alloc() wants.
    const std::int64_t rounded = std::max(kLine, (elements + kLine - 1) / kLine * kLine);
    buffer.memory.reset();  // before the new one: it may be large
    buffer.elements = 0;
    const std::size_t bytes = static_cast<std::size_t>(rounded) * sizeof(float);
    buffer.memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (buffer.memory == nullptr) throw std::bad_alloc();
    // Large buffers on huge pages need fewer entries of the table of addresses that the processor
    // caches.
    use_huge_pages(buffer.memory.get(), bytes);
    buffer.elements = rounded;
  }
  return buffer.memory.get();
}

TensorView scratch_view(int slot, const TensorView& like, DataType type) {
  const std::int64_t floats = floats_for(like.volume(), type);
  return dense_view(scratch(slot, floats), like.tile, like.shape, type);
}

DenseInput::DenseInput(const TensorView& view, int scratch_slot, DataType type)
    : memory_(view.data) {
  if (!view.present() || (view.dense() && view.fits(type))) return;
  const TensorView copy = scratch_view(scratch_slot, view, type);
  copy_view(copy, view);
  memory_ = copy.data;
}

// A result that is added, or that lies with gaps, is computed in scratch memory first. All others
// are computed in place, and commit() does nothing.
DenseOutput::DenseOutput(const TensorView& view, int scratch_slot, bool adds, DataType type)
    : view_(view),
      result_(view.dense() && view.fits(type) && !adds ? view
                                                       : scratch_view(scratch_slot, view, type)),
      adds_(adds) {}

void DenseOutput::commit() const {
  if (result_.data != view_.data) write_or_add_view(view_, result_, adds_);
}

}  // namespace flexlegion
