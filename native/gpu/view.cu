// Copies and element-wise passes over strided tiles of device memory.
//
// A copy of one type between dense tiles is the driver's own; of strided tiles, 16 bytes a thread
// where runs of both begin aligned, else an element a thread. Copies move bits, so NaNs and
// integers survive. What converts or computes goes through floats (for_each_element). Each is one
// launch that reads and writes every element once.
#include "gpu/view.h"

#include <cstring>

#include "ops/merge_elements.h"

namespace flexlegion::gpu {
namespace {

// Where 16 bytes can be moved at a time, one thread moves a piece. Threads of a warp then ask for
// neighbouring pieces, which the memory serves together.
template <typename Integer>
void copy_elements(const TensorView& to, const TensorView& from) {
  const TileOffsets<2> places({&to, &from});
  auto* const results = static_cast<Integer*>(to.data);
  const auto* const values = static_cast<const Integer*>(from.data);
  constexpr auto kWidth = kPieceBytes / static_cast<std::int64_t>(sizeof(Integer));
  const auto aligned = [](const TensorView& view) { return begins_wide({view.data, view.type}); };
  if (aligned(to) && aligned(from) && places.follow_each_other(kWidth)) {
    for_each(to.volume() / kWidth, [=] FL_BODY(std::int64_t i) {
      const auto at = places(i * kWidth);
      store_piece(results + at.of[0], load_piece(values + at.of[1]));
    });
    return;
  }
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto at = places(i);
    results[at.of[0]] = values[at.of[1]];
  });
}

// to = f(to, from), in one pass over both.
template <typename Function>
void merge(const TensorView& to, const TensorView& from, const Function& f) {
  for_each_element<2>({&to, &from}, [=] FL_BODY(auto e) {
    auto mine = e[0];
    const auto its = e[1];
    for (int k = 0; k < e.kWidth; ++k) mine[k] = f(mine[k], its[k]);
    e.set(0, mine);
  });
}

struct Sum {
  FL_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  FL_DEVICE float operator()(float a, float b) const { return larger(a, b); }
};
struct LogAddExp {
  FL_DEVICE float operator()(float a, float b) const { return log_add_exp(a, b); }
};

}  // namespace

// Equal types are copied as bits; others go through floats.
void copy_view(const TensorView& to, const TensorView& from) {
  if (to.tile.empty()) return;
  if (!to.fits(from.type)) {
    for_each_element<2>({&to, &from}, [=] FL_BODY(auto e) { e.set(0, e[1]); });
    return;
  }
  if (to.dense() && from.dense()) {
    const auto bytes = static_cast<std::size_t>(to.volume() * element_bytes(to.type));
#if FLEXLEGION_CUDA
    check(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDefault, stream()));
#else
    std::memcpy(to.data, from.data, bytes);
#endif
    return;
  }
  // As integers, so that any bit pattern survives.
  if (to.narrow()) {
    copy_elements<std::uint16_t>(to, from);
  } else {
    copy_elements<std::uint32_t>(to, from);
  }
}

void add_view(const TensorView& to, const TensorView& from) { merge(to, from, Sum()); }
void max_view(const TensorView& to, const TensorView& from) { merge(to, from, Larger()); }
void log_add_exp_view(const TensorView& to, const TensorView& from) {
  merge(to, from, LogAddExp());
}

// The driver fills dense memory, without a kernel of ours.
void zero_view(const TensorView& to) {
#if FLEXLEGION_CUDA
  if (to.dense()) {
    const auto bytes = static_cast<std::size_t>(to.volume() * element_bytes(to.type));
    if (bytes > 0) check(cudaMemsetAsync(to.data, 0, bytes, stream()));
    return;
  }
#endif
  for_each_element<1>({&to}, [=] FL_BODY(auto e) { e.set(0, Lanes<e.kWidth>{}); });
}

// For the gradients of maxima: what an earlier part has reached already goes out.
void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b) {
  for_each_element<3>({&to, &a, &b}, [=] FL_BODY(auto e) {
    auto mine = e[0];
    const auto one = e[1], other = e[2];
    for (int k = 0; k < e.kWidth; ++k) {
      if (same_number(one[k], other[k])) mine[k] = 0.0f;
    }
    e.set(0, mine);
  });
}

void write_or_add_view(const TensorView& to, const TensorView& from, bool adds) {
  (adds ? add_view : copy_view)(to, from);
}

// Dense scratch memory of a tile's extents.
TensorView scratch_view(int slot, const TensorView& like, DataType type) {
  const std::int64_t floats = floats_for(like.volume(), type);
  return dense_view(scratch(slot, floats), like.tile, like.shape, type);
}

// A view that is dense and of the right type is used where it lies. Only others cost a copy.
DenseInput::DenseInput(const TensorView& view, int slot, DataType type) : memory_(view.data) {
  if (!view.present() || (view.dense() && view.fits(type))) return;
  const TensorView copy = gpu::scratch_view(slot, view, type);
  gpu::copy_view(copy, view);
  memory_ = copy.data;
}

// What is added to is computed apart as well, since libraries overwrite their results.
DenseOutput::DenseOutput(const TensorView& view, int slot, bool adds, DataType type)
    : view_(view),
      result_(view.dense() && view.fits(type) && !adds ? view
                                                       : gpu::scratch_view(slot, view, type)),
      adds_(adds) {}

void DenseOutput::commit() const {
  if (result_.data != view_.data) gpu::write_or_add_view(view_, result_, adds_);
}

}  // namespace flexlegion::gpu
