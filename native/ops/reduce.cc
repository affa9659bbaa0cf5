// reduce: mean, sum or maximum over whole dimensions.
//
// The output is seen beside the input, with extents of 1 and strides of 0 where it is reduced
// (Reduction::beside). Then forwards is a pass over x in blocks, each added to the places where it
// falls (Sink, in double precision), and backwards one over dx, which reads dy from the same
// places. A task that has a part of a reduced dimension gives a partial value: the mean's factor
// counts the whole tensor, so that parts are summed.
//
// The maximum's gradient needs to know which elements have it, so x and y are read again: `max`
// gives it to the first one, `amax` to all in equal parts, as PyTorch's amax does.
#include "ops/reduce.h"

#include <limits>

#include "ops/blocks.h"
#include "ops/merge_elements.h"

namespace flexlegion {
namespace {

class Reduce : public Kernel {
 public:
  explicit Reduce(const Attributes& attributes) : reduction_(attributes) {}

  bool accumulates() const override { return true; }
  // A maximum grows where it is kept.
  bool takes(DataType) const override { return reduction_.kind != Reduction::Kind::maximum; }

  void forward(KernelTask& task) override {
    const TensorView& x = task.inputs[0];
    if (task.outputs[0].tile.empty()) return;
    const TensorView y = reduction_.beside(x, task.outputs[0]);
    if (reduction_.kind == Reduction::Kind::maximum) return maximum(x, y);
    const Source from(x, x, false, scratch(kGathered, kBlock));
    const Sink to(y, x, false, kSums);
    for_each_block(
        x, [&](std::int64_t first, std::int64_t n) { to.put(from.block(first, n), first, n); });
    to.finish(reduction_.factor(x));
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.output_grads[0].tile.empty()) return;
    const TensorView& dx = task.input_grads[0];
    const TensorView dy = reduction_.beside(dx, task.output_grads[0]);
    const Sink to(dx, dx, task.adds_to_input_grad(0), kSums);
    const Source gradient(dy, dx, false, scratch(kGathered, kBlock));
    float* const block = scratch(kResult, kBlock);
    if (reduction_.kind == Reduction::Kind::maximum) {
      const TensorView y = reduction_.beside(dx, task.outputs[0]);
      return (reduction_.shares ? share : reward)(task.inputs[0], y, gradient, to, block);
    }
    const auto factor = static_cast<float>(reduction_.factor(dx));
    for_each_block(dx, [&](std::int64_t first, std::int64_t n) {
      const float* const from = gradient.block(first, n);
      for (std::int64_t i = 0; i < n; ++i) block[i] = factor * from[i];
      to.put(block, first, n);
    });
  }

 private:
  enum Slot { kGathered, kOther, kThird, kResult, kTaken, kSums };

  template <typename Body>
  static void for_each_block(const TensorView& tile, Body&& body) {
    const std::int64_t volume = tile.volume();
    for (std::int64_t first = 0; first < volume; first += kBlock) {
      body(first, std::min(kBlock, volume - first));
    }
  }

  static void maximum(const TensorView& x, const TensorView& y) {
    for_each_index<1>({&y}, y.rank(), [&](const Offsets<1>& at) {
      y.f32()[at[0]] = -std::numeric_limits<float>::infinity();
    });
    const Source from(x, x, false, scratch(kGathered, kBlock));
    const Spread spread(y, x);
    for_each_block(x, [&](std::int64_t first, std::int64_t count) {
      const float* const values = from.block(first, count);
      for_each_piece(spread, first, count,
                     [&](std::int64_t offset, std::int64_t at, std::int64_t n, std::int64_t step) {
                       float* const to = y.f32() + offset;
                       for (std::int64_t i = 0; i < n; ++i) {
                         const float value = values[at + i];
                         // NaN wins and stays: no number is larger than NaN, for comparisons with
                         // it are false.
                         if (value > to[i * step] || value != value) to[i * step] = value;
                       }
                     });
    });
  }

  // The first element that has the maximum takes its gradient.
  static void reward(const TensorView& x, const TensorView& y, const Source& gradient,
                     const Sink& to, float* block) {
    const Source from(x, x, false, scratch(kOther, kBlock));
    const Source maxima(y, x, false, scratch(kThird, kBlock));
    const Spread places(y, x, true);
    float* const taken = scratch(kTaken, y.volume());
    std::fill_n(taken, y.volume(), 0.0f);
    for_each_block(x, [&](std::int64_t first, std::int64_t count) {
      const float* const values = from.block(first, count);
      const float* const most = maxima.block(first, count);
      const float* const dy = gradient.block(first, count);
      for_each_piece(places, first, count,
                     [&](std::int64_t offset, std::int64_t at, std::int64_t n, std::int64_t step) {
                       for (std::int64_t i = at; i < at + n; ++i) {
                         float& its = taken[offset + (i - at) * step];
                         const bool wins =
                             its == 0.0f && (values[i] == most[i] || values[i] != values[i]);
                         block[i] = wins ? dy[i] : 0.0f;
                         if (wins) its = 1.0f;
                       }
                     });
      to.put(block, first, count);
    });
  }

  // All elements that have the maximum take an equal part of its gradient. Tasks of an `amax` have
  // whole columns (flexlegion/ops/reduce.py), so all of these elements are here.
  static void share(const TensorView& x, const TensorView& y, const Source& gradient,
                    const Sink& to, float* block) {
    const Source from(x, x, false, scratch(kOther, kBlock));
    const Source maxima(y, x, false, scratch(kThird, kBlock));
    const Spread places(y, x, true);
    float* const sharing = scratch(kTaken, y.volume());
    std::fill_n(sharing, y.volume(), 0.0f);
    // Calls body(place in the block, whether that element has the maximum, how many have it).
    const auto visit = [&](std::int64_t first, std::int64_t count, auto&& body) {
      const float* const values = from.block(first, count);
      const float* const most = maxima.block(first, count);
      for_each_piece(places, first, count,
                     [&](std::int64_t offset, std::int64_t at, std::int64_t n, std::int64_t step) {
                       for (std::int64_t i = at; i < at + n; ++i) {
                         body(i, same_number(values[i], most[i]),
                              sharing[offset + (i - at) * step]);
                       }
                     });
    };
    for_each_block(x, [&](std::int64_t first, std::int64_t count) {
      visit(first, count,
            [](std::int64_t, bool has, float& number) { number += has ? 1.0f : 0.0f; });
    });
    for_each_block(x, [&](std::int64_t first, std::int64_t count) {
      const float* const dy = gradient.block(first, count);
      visit(first, count, [&](std::int64_t i, bool has, float number) {
        block[i] = has ? dy[i] / number : 0.0f;
      });
      to.put(block, first, count);
    });
  }

  Reduction reduction_;
};

const RegisterKernel registered("reduce",
                                [](const Attributes& a) { return std::make_unique<Reduce>(a); });

}  // namespace
}  // namespace flexlegion
