// Dropout on CPU processors (dropout.h): a hash of an element's place decides whether it is kept.
//
// A place is the element's row-major number in the whole tensor. A tile is walked beside a view of
// these places that has the tensor's own strides, so that a run of a tile is a run of places, and
// neighbouring elements take neighbouring numbers. The backward pass hashes again, which costs less
// than to store and move a mask. A strategy can cut the tensor as it likes: the same elements are
// dropped.
#include "ops/dropout.h"

#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

// Element i of the run stands for place `first` + i.
FLEXLEGION_SIMD void drop(const float* x, float* y, std::int64_t n, const DropoutMask& mask,
                          std::uint64_t first, bool adds) {
  // Copies in registers: the compiler cannot know that stores to y leave the mask as it is.
  const std::uint64_t key = mask.key;
  const std::uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  write_or_add(adds, y, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return drops(key, first + static_cast<std::uint64_t>(i), threshold) ? 0.0f : x[i] * scale;
  });
}

FLEXLEGION_SIMD void scale(const float* x, float factor, float* y, std::int64_t n, bool adds) {
  write_or_add(adds, y, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return x[i] * factor; });
}

void drop_elements(const TensorView& from, const TensorView& to, const DropoutMask& mask,
                   bool adds) {
  const Places places(from);
  for_each_run<3>({&from, &to, &places.view}, [&](const Offsets<3>& at, std::int64_t n) {
    drop(from.f32() + at[0], to.f32() + at[1], n, mask,
         static_cast<std::uint64_t>(places.first + at[2]), adds);
  });
}

// Whole samples are kept or dropped (drop_path), so one hash decides for all elements of a sample.
// A dropped sample is scaled by 0.
void drop_samples(const TensorView& from, const TensorView& to, const DropoutMask& mask,
                  bool adds) {
  for (std::int64_t sample = from.tile.lo[0]; sample < from.tile.hi[0]; ++sample) {
    const bool dropped = drops(mask.key, static_cast<std::uint64_t>(sample), mask.threshold);
    const TensorView x = narrowed(from, 0, sample, sample + 1);
    const TensorView y = narrowed(to, 0, sample, sample + 1);
    for_each_run<2>({&x, &y}, [&](const Offsets<2>& at, std::int64_t n) {
      scale(x.f32() + at[0], dropped ? 0.0f : mask.scale, y.f32() + at[1], n, adds);
    });
  }
}

struct Cpu {
  static constexpr bool kTakesNarrow = false;
  static void write(const TensorView& to, const TensorView& from, bool adds) {
    write_or_add_view(to, from, adds);
  }
  static void drop(const TensorView& from, const TensorView& to, const DropoutMask& mask,
                   bool samples, bool adds) {
    (samples ? drop_samples : drop_elements)(from, to, mask, adds);
  }
};

const RegisterKernel registered("dropout", [](const Attributes& a) {
  return std::make_unique<Dropout<Cpu>>(a, false);
});
const RegisterKernel registered_path("drop_path", [](const Attributes& a) {
  return std::make_unique<Dropout<Cpu>>(a, true);
});

}  // namespace
}  // namespace flexlegion
