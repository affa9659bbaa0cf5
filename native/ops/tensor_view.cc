#include "ops/tensor_view.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>

#include "ops/merge_elements.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"
#include "ops/team.h"
#include "support/huge_pages.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void add_run(float* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FLEXLEGION_SIMD void max_run(float* to, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = larger(to[i], from[i]);
}

template <std::size_t N>
using Pointers = std::array<float*, N>;

// Calls run(pointers, length) for pieces that are contiguous in every view, on all threads.
template <std::size_t N, typename Run>
void share_runs(const Views<N>& views, const Run& run) {
  share_views<N>(views, [&run](const Views<N>& parts) {
    for_each_run<N>(parts, [&](const Offsets<N>& at, std::int64_t n) {
      Pointers<N> pointers;
      for (std::size_t v = 0; v < N; ++v) pointers[v] = parts[v]->f32() + at[v];
      run(pointers, n);
    });
  });
}

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

TensorView dense_view(void* buffer, const Rect& tile,
                      const std::array<std::int64_t, kMaxRegionRank>& shape) {
  TensorView view;
  view.data = buffer;
  view.tile = tile;
  view.shape = shape;
  std::int64_t stride = 1;
  for (int d = tile.rank - 1; d >= 0; --d) {
    view.stride[d] = stride;
    stride *= tile.extent(d);
  }
  return view;
}

TensorView subview(const TensorView& view, std::int64_t i) {
  TensorView part;
  part.data = view.f32() + i * view.stride[0];
  part.tile.rank = view.rank() - 1;
  for (int d = 0; d < part.rank(); ++d) {
    part.tile.lo[d] = view.tile.lo[d + 1];
    part.tile.hi[d] = view.tile.hi[d + 1];
    part.stride[d] = view.stride[d + 1];
    part.shape[d] = view.shape[d + 1];
  }
  return part;
}

void copy_view(const TensorView& to, const TensorView& from) {
  share_runs<2>({&to, &from}, [](const Pointers<2>& at, std::int64_t n) {
    // As bytes, so that any bit pattern survives.
    std::memcpy(at[0], at[1], static_cast<std::size_t>(n) * sizeof(float));
  });
}

void add_view(const TensorView& to, const TensorView& from) {
  share_runs<2>({&to, &from},
                [](const Pointers<2>& at, std::int64_t n) { add_run(at[0], at[1], n); });
}

void max_view(const TensorView& to, const TensorView& from) {
  share_runs<2>({&to, &from},
                [](const Pointers<2>& at, std::int64_t n) { max_run(at[0], at[1], n); });
}

void log_add_exp_view(const TensorView& to, const TensorView& from) {
  share_runs<2>({&to, &from}, [](const Pointers<2>& at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) at[0][i] = log_add_exp(at[0][i], at[1][i]);
  });
}

void zero_view(const TensorView& to) {
  share_runs<1>({&to}, [](const Pointers<1>& at, std::int64_t n) { std::fill_n(at[0], n, 0.0f); });
}

void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b) {
  share_runs<3>({&to, &a, &b}, [](const Pointers<3>& at, std::int64_t n) {
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
  if (view.present()) part.data = view.f32() + (lo - view.tile.lo[d]) * view.stride[d];
  part.tile.lo[d] = lo;
  part.tile.hi[d] = hi;
  return part;
}

float* scratch(int slot, std::int64_t elements) {
  thread_local std::map<int, ScratchBuffer> buffers;
  ScratchBuffer& buffer = buffers[slot];
  if (elements > buffer.elements || buffer.memory == nullptr) {
    constexpr std::int64_t kLine = 16;  // floats in a cache line
    const std::int64_t rounded = std::max(kLine, (elements + kLine - 1) / kLine * kLine);
    buffer.memory.reset();  // before the new one: it may be large
    buffer.elements = 0;
    const std::size_t bytes = static_cast<std::size_t>(rounded) * sizeof(float);
    buffer.memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (buffer.memory == nullptr) throw std::bad_alloc();
    use_huge_pages(buffer.memory.get(), bytes);
    buffer.elements = rounded;
  }
  return buffer.memory.get();
}

DenseInput::DenseInput(const TensorView& view, int scratch_slot) : data_(view.f32()) {
  if (!view.present() || view.dense()) return;
  data_ = scratch(scratch_slot, view.volume());
  copy_view(dense_view(data_, view.tile, view.shape), view);
}

DenseOutput::DenseOutput(const TensorView& view, int scratch_slot, bool adds)
    : view_(view),
      data_(view.dense() && !adds ? view.f32() : scratch(scratch_slot, view.volume())),
      adds_(adds) {}

void DenseOutput::commit() const {
  if (data_ == view_.f32()) return;
  write_or_add_view(view_, dense_view(data_, view_.tile, view_.shape), adds_);
}

}  // namespace flexlegion
