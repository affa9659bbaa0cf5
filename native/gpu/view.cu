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
    const Reals<2> tiles({&to, &from});
    for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
      const auto element = tiles(i);
      element.put(0, element[1]);
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
  const Reals<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element.put(0, element[0] + element[1]);
  });
}

void max_view(const TensorView& to, const TensorView& from) {
  const Reals<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element.put(0, larger(element[0], element[1]));
  });
}

void log_add_exp_view(const TensorView& to, const TensorView& from) {
  const Reals<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element.put(0, log_add_exp(element[0], element[1]));
  });
}

void zero_view(const TensorView& to) {
  const Reals<1> tiles({&to});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) { tiles(i).put(0, 0.0f); });
}

void zero_where_equal(const TensorView& to, const TensorView& a, const TensorView& b) {
  const Reals<3> tiles({&to, &a, &b});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    if (same_number(element[1], element[2])) element.put(0, 0.0f);
  });
}

void write_or_add_view(const TensorView& to, const TensorView& from, bool adds) {
  (adds ? add_view : copy_view)(to, from);
}

}  // namespace flexlegion::gpu
