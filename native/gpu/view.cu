#include "gpu/view.h"

#include <cstring>

#include "ops/merge_elements.h"

namespace flexlegion::gpu {
namespace {

template <typename Integer>
void copy_elements(const TensorView& to, const TensorView& from) {
  const TileOffsets<2> places({&to, &from});
  auto* const results = static_cast<Integer*>(to.data);
  const auto* const values = static_cast<const Integer*>(from.data);
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto at = places(i);
    results[at.of[0]] = values[at.of[1]];
  });
}

}  // namespace

void copy_view(const TensorView& to, const TensorView& from) {
  if (to.tile.empty()) return;
  if (!to.fits(from.type)) {
    const Tiles<2> tiles({&to, &from});
    for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
      const auto element = tiles(i);
      element[0] = element[1];
    });
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

void add_view(const TensorView& to, const TensorView& from) {
  const Tiles<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element[0] = element[0] + element[1];
  });
}

void max_view(const TensorView& to, const TensorView& from) {
  const Tiles<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element[0] = larger(element[0], element[1]);
  });
}

void log_add_exp_view(const TensorView& to, const TensorView& from) {
  const Tiles<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element[0] = log_add_exp(element[0], element[1]);
  });
}

void zero_view(const TensorView& to) {
  const Tiles<1> tiles({&to});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) { tiles(i)[0] = 0.0f; });
}

void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b) {
  const Tiles<3> tiles({&to, &a, &b});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    if (same_number(element[1], element[2])) element[0] = 0.0f;
  });
}

void write_or_add_view(const TensorView& to, const TensorView& from, bool adds) {
  (adds ? add_view : copy_view)(to, from);
}

TensorView scratch_view(int slot, const TensorView& like, DataType type) {
  const std::int64_t floats = floats_for(like.volume(), type);
  return dense_view(scratch(slot, floats), like.tile, like.shape, type);
}

DenseInput::DenseInput(const TensorView& view, int slot, DataType type) : memory_(view.data) {
  if (!view.present() || (view.dense() && view.fits(type))) return;
  const TensorView copy = gpu::scratch_view(slot, view, type);
  gpu::copy_view(copy, view);
  memory_ = copy.data;
}

DenseOutput::DenseOutput(const TensorView& view, int slot, bool adds, DataType type)
    : view_(view),
      result_(view.dense() && view.fits(type) && !adds ? view
                                                       : gpu::scratch_view(slot, view, type)),
      adds_(adds) {}

void DenseOutput::commit() const {
  if (result_.data != view_.data) gpu::write_or_add_view(view_, result_, adds_);
}

}  // namespace flexlegion::gpu
