// What Realm's own kernels do, by their names: copies and fills of rectangles, and transpositions.
#include <cstdint>
#include <cstring>
#include <string>

#include "driver.h"
#include "realm/cuda/cuda_memcpy.h"

namespace soft_gpu {
namespace {

// Elements of Bits; strides and extents count them, and a stride is how many elements of the
// dimension before make up one step, as coordinates are multiplied up.
template <std::size_t N>
std::size_t place(std::size_t index, const std::size_t* extents, const std::size_t* strides) {
  std::size_t offset = 0, volume = 1;
  for (std::size_t d = 0; d < N; ++d) {
    const std::size_t coordinate = d + 1 < N ? index % extents[d] : index;
    if (d + 1 < N) index /= extents[d];
    offset += volume * coordinate;
    if (d + 1 < N) volume *= strides[d];
  }
  return offset;
}

template <std::size_t N>
std::function<void()> copy(void** arguments, std::size_t bytes) {
  using Info = Realm::Cuda::AffineCopyInfo<N, std::size_t>;
  auto info = std::make_shared<Info>(*static_cast<const Info*>(arguments[0]));
  return [info, bytes] {
    for (unsigned r = 0; r < info->num_rects; ++r) {
      const auto& rect = info->subrects[r];
      for (std::size_t i = 0; i < rect.volume; ++i) {
        const std::size_t from = place<N>(i, rect.extents, rect.src.strides);
        const std::size_t to = place<N>(i, rect.extents, rect.dst.strides);
        std::memcpy(reinterpret_cast<void*>(rect.dst.addr + to * bytes),
                    reinterpret_cast<const void*>(rect.src.addr + from * bytes), bytes);
      }
    }
  };
}

template <std::size_t N>
std::function<void()> fill(void** arguments, std::size_t bytes) {
  using Info = Realm::Cuda::AffineFillInfo<N, std::size_t>;
  auto info = std::make_shared<Info>(*static_cast<const Info*>(arguments[0]));
  return [info, bytes] {
    for (unsigned r = 0; r < info->num_rects; ++r) {
      const auto& rect = info->subrects[r];
      for (std::size_t i = 0; i < rect.volume; ++i) {
        const std::size_t to = place<N>(i, rect.extents, rect.strides);
        std::memcpy(reinterpret_cast<void*>(rect.addr + to * bytes), info->fill_value, bytes);
      }
    }
  };
}

std::function<void()> transpose(void** arguments) {
  const auto info =
      *static_cast<const Realm::Cuda::MemcpyTransposeInfo<std::size_t>*>(arguments[0]);
  return [info] {
    for (std::size_t y = 0; y < info.extents[1]; ++y) {
      for (std::size_t x = 0; x < info.extents[2]; ++x) {
        std::memcpy(
            reinterpret_cast<void*>(info.dst + y * info.dst_strides[0] + x * info.dst_strides[1]),
            reinterpret_cast<const void*>(info.src + y * info.src_strides[0] +
                                          x * info.src_strides[1]),
            info.extents[0]);
      }
    }
  };
}

template <std::size_t Bytes>
Launchable of_size(const std::string& kind) {
  if (kind == "memcpy_affine_batch1D") return [](void** a) { return copy<1>(a, Bytes); };
  if (kind == "memcpy_affine_batch2D") return [](void** a) { return copy<2>(a, Bytes); };
  if (kind == "memcpy_affine_batch3D") return [](void** a) { return copy<3>(a, Bytes); };
  if (kind == "fill_affine_batch1D") return [](void** a) { return fill<1>(a, Bytes); };
  if (kind == "fill_affine_batch2D") return [](void** a) { return fill<2>(a, Bytes); };
  if (kind == "fill_affine_batch3D") return [](void** a) { return fill<3>(a, Bytes); };
  return nullptr;
}

}  // namespace

Launchable realm_kernel(const char* name) {
  const std::string text = name, prefix = "memcpy_transpose";
  if (text.compare(0, prefix.size(), prefix) == 0) return transpose;
  const std::size_t bar = text.rfind('_');
  if (bar == std::string::npos) return nullptr;
  const std::string kind = text.substr(0, bar), bits = text.substr(bar + 1);
  if (bits == "8") return of_size<1>(kind);
  if (bits == "16") return of_size<2>(kind);
  if (bits == "32") return of_size<4>(kind);
  if (bits == "64") return of_size<8>(kind);
  if (bits == "128") return of_size<16>(kind);
  return nullptr;
}

}  // namespace soft_gpu
