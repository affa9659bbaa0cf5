#include "gpu/view.h"

#include <cstring>

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
  // As integers, so that any bit pattern survives.
  const Strided target = Strided::merged(to), source = Strided::merged(from);
  auto* const out = to.i32();
  const auto* const in = from.i32();
  for_each(to.volume(),
           [=] FL_BODY(std::int64_t i) { out[target.offset_of(i)] = in[source.offset_of(i)]; });
}

void add_view(const TensorView& to, const TensorView& from) {
  const Strided target = Strided::merged(to), source = Strided::merged(from);
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) { target[i] += source[i]; });
}

void zero_view(const TensorView& to) {
  const Strided target = Strided::merged(to);
  for_each(to.volume(), [=] FL_BODY(std::int64_t i) { target[i] = 0.0f; });
}

void write_or_add_view(const TensorView& to, const TensorView& from, bool adds) {
  (adds ? add_view : copy_view)(to, from);
}

}  // namespace flexlegion::gpu
