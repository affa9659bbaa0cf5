// Dropout on GPUs (ops/dropout.h): a thread for each element hashes its place in the whole tensor,
// as the CPU's kernel does, so both drop the same elements.
//
// One pass in either direction, and no mask in memory. A step's key is part of the launch, so such
// a task cannot be recorded and replayed (Kernel::repeats).
#include "ops/dropout.h"

#include "gpu/rows.h"

namespace flexlegion::gpu {
namespace {

struct Gpu {
  static constexpr bool kTakesNarrow = true;
  static void write(const TensorView& to, const TensorView& from, bool adds) {
    gpu::write_or_add_view(to, from, adds);
  }
  static void drop(const TensorView& from, const TensorView& to, const DropoutMask& mask,
                   bool samples, bool adds) {
    const Places whole(from, samples);
    const Strided x = joined(from), y = joined(to), places = joined(whole.view);
    const std::int64_t first = whole.first;
    const std::uint64_t key = mask.key;
    const std::uint32_t threshold = mask.threshold;
    const float scale = mask.scale;
    for_each(to.volume(), [=] FL_BODY(std::int64_t i) {
      const auto place = static_cast<std::uint64_t>(first + places.offset_of(i));
      put(y[i], drops(key, place, threshold) ? 0.0f : x[i] * scale, adds);
    });
  }
};

const RegisterKernel registered(
    "dropout", [](const Attributes& a) { return std::make_unique<Dropout<Gpu>>(a, false); },
    DeviceKind::gpu);
const RegisterKernel registered_path(
    "drop_path", [](const Attributes& a) { return std::make_unique<Dropout<Gpu>>(a, true); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
