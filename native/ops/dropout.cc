// dropout: while training, each element is kept with probability 1 - rate and scaled by
// 1 / (1 - rate). Whether an element is kept is a pure function of (seed, layer, step, its place in
// the whole tensor): every strategy drops the same elements, and backward need not store a mask.
#include <cmath>
#include <stdexcept>

#include "ops/kernel.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

// The finalizer of SplitMix64: every bit of the result depends on every bit of the argument.
inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// Element i of the run stands for place `first` + i; dropped if its hash is below the threshold.
FLEXLEGION_SIMD void drop(const float* x, float* y, std::int64_t n, std::uint64_t key,
                          std::uint64_t first, std::uint32_t threshold, float scale, bool adds) {
  write_or_add(adds, y, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    const std::uint64_t hash = mixed(key + kGolden * (first + static_cast<std::uint64_t>(i)));
    return static_cast<std::uint32_t>(hash >> 32) < threshold ? 0.0f : x[i] * scale;
  });
}

class Dropout : public Kernel {
 public:
  explicit Dropout(const Attributes& attributes)
      : rate_(attributes.number("rate")),
        id_(static_cast<std::uint64_t>(attributes.integer("id"))) {
    if (!(rate_ >= 0 && rate_ < 1)) throw std::invalid_argument("rate not in [0, 1)");
  }

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    apply(task.inputs[0], task.outputs[0], task.run, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    apply(task.output_grads[0], task.input_grads[0], task.run, task.adds_to_input_grad(0));
  }

 private:
  void apply(const TensorView& from, const TensorView& to, const RunState& run, bool adds) const {
    if (run.training == 0) return write_or_add_view(to, from, adds);
    const std::uint64_t key = mixed(mixed(mixed(run.seed + kGolden) + id_ + kGolden) +
                                    static_cast<std::uint64_t>(run.step));
    const auto threshold = static_cast<std::uint32_t>(std::ldexp(rate_, 32));
    const auto scale = static_cast<float>(1.0 / (1.0 - rate_));
    // A view without memory, whose offsets are places in the whole tensor.
    Rect whole = from.tile;
    std::int64_t first = 0;
    for (int d = 0; d < whole.rank; ++d) {
      whole.lo[d] = 0;
      whole.hi[d] = from.shape[d];
      first = first * from.shape[d] + from.tile.lo[d];
    }
    TensorView places = dense_view(nullptr, whole, from.shape);
    places.tile = from.tile;
    for_each_run<3>({&from, &to, &places}, [&](const Offsets<3>& at, std::int64_t n) {
      drop(from.f32() + at[0], to.f32() + at[1], n, key, static_cast<std::uint64_t>(first + at[2]),
           threshold, scale, adds);
    });
  }

  double rate_;
  std::uint64_t id_;
};

const RegisterKernel registered("dropout",
                                [](const Attributes& a) { return std::make_unique<Dropout>(a); });

}  // namespace
}  // namespace flexlegion
