#include "gpu/view.h"

#include <cstring>

#include "ops/merge_elements.h"

namespace flexlegion::gpu {

void copy_view(const TensorView& to, const TensorView& from) {
  if (to.tile.empty()) return;
  if (to.dense() && from.dense()) {
    const auto bytes = static_cast<std::size_t>(to.volume()) * sizeof(float);
#if FLEXLEGION_CUDA
    check(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDefault, stream()));
#else
    std::memcpy(to.data, from.data, bytes);
#endif
    return;
  }
  const Tiles<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    // As integers, so that any bit pattern survives.
    *reinterpret_cast<std::int32_t*>(element.at[0]) =
        *reinterpret_cast<const std::int32_t*>(element.at[1]);
  });
}

void add_view(const TensorView& to, const TensorView& from) {
  const Tiles<2> tiles({&to, &from});
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
    const auto element = tiles(i);
    element[0] += element[1];
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

}  // namespace flexlegion::gpu
