// Which elements dropout keeps: a pure function of (seed, layer, step, an element's place in the
// whole tensor), the same on every device.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "ops/kernel.h"

namespace flexlegion {

// The finalizer of SplitMix64: every bit of the result depends on every bit of the argument.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// One layer's choice in one step.
struct DropoutMask {
  static constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

  std::uint64_t key;
  std::uint32_t threshold;  // an element is dropped if its hash is below
  float scale;              // of those that are kept

  // `places`: of a sample. An element's place counts from the beginning of the whole batch, so that
  // the same are dropped in however many micro-batches it comes; what stands before this one is in
  // the key.
  DropoutMask(double rate, std::uint64_t layer, const RunState& run, std::int64_t places)
      : key(mixed(mixed(mixed(run.seed + kGolden) + layer + kGolden) +
                  static_cast<std::uint64_t>(run.step)) +
            kGolden * static_cast<std::uint64_t>(run.first_sample * places)),
        threshold(static_cast<std::uint32_t>(std::ldexp(rate, 32))),
        scale(static_cast<float>(1.0 / (1.0 - rate))) {}
};

constexpr bool drops(std::uint64_t key, std::uint64_t place, std::uint32_t threshold) {
  return static_cast<std::uint32_t>(mixed(key + DropoutMask::kGolden * place) >> 32) < threshold;
}

struct DropoutLayer {
  double rate;
  std::uint64_t id;

  // `name` is the attribute that holds the rate.
  explicit DropoutLayer(const Attributes& attributes, const char* name = "rate")
      : rate(attributes.number(name)), id(static_cast<std::uint64_t>(attributes.integer("id"))) {
    if (!(rate >= 0 && rate < 1)) {
      throw std::invalid_argument(std::string(name) + " not in [0, 1)");
    }
  }
  // Whether it drops anything in such a run.
  bool drops_in(const RunState& run) const { return rate > 0 && run.training != 0; }
  DropoutMask mask(const RunState& run, std::int64_t places) const {
    return {rate, id, run, places};
  }
};

// A tile's places in its whole tensor: `first` + the offsets of a view without memory. By samples,
// all elements of a sample are at one place.
struct Places {
  TensorView view;
  std::int64_t first = 0;

  explicit Places(const TensorView& tile, bool by_samples = false) {
    Rect whole = tile.tile;
    for (int d = 0; d < whole.rank; ++d) {
      whole.lo[d] = 0;
      whole.hi[d] = tile.shape[d];
      first = first * tile.shape[d] + tile.tile.lo[d];
    }
    view = dense_view(nullptr, whole, tile.shape);
    view.tile = tile.tile;
    if (by_samples) {
      first = tile.tile.lo[0];
      view.stride = {1};
    }
  }
};

// dropout, and drop_path, which drops whole samples: while training, each element is kept with
// probability 1 - rate and scaled by 1 / (1 - rate). Every strategy drops the same elements, and
// backward need not store a mask.
//
// A Device has functions write(to, from, adds), and drop(from, to, mask, samples, adds); and it
// says whether these take tiles of two bytes (kTakesNarrow).
template <typename Device>
class Dropout : public Kernel {
 public:
  Dropout(const Attributes& attributes, bool samples) : layer_(attributes), samples_(samples) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return Device::kTakesNarrow; }
  bool repeats() const override { return layer_.rate == 0; }

  void forward(KernelTask& task) override {
    apply(task.inputs[0], task.outputs[0], task.run, false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    apply(task.output_grads[0], task.input_grads[0], task.run, task.adds_to_input_grad(0));
  }

 private:
  void apply(const TensorView& from, const TensorView& to, const RunState& run, bool adds) const {
    if (run.training == 0) return Device::write(to, from, adds);
    std::int64_t places = 1;
    for (int d = 1; d < from.rank() && !samples_; ++d) places *= from.shape[d];
    Device::drop(from, to, layer_.mask(run, places), samples_, adds);
  }

  DropoutLayer layer_;
  bool samples_;
};

}  // namespace flexlegion
