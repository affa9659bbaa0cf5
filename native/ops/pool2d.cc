// pool2d: the maximum or the average of each window, over (n, h, w, c).
//
// Loops over whole rows of (w, c), which are contiguous. The maximum's gradient goes to the first
// largest element of the window in row-major order; it is found again in backward. Of a window with
// NaN, the maximum is NaN.
//
// A window's maximum or sum is separable: first down the columns, for a whole row (w, c) at once,
// then along the row. That takes kh + kw steps for an output instead of kh kw, and every load is a
// whole vector of channels. Backwards visits each window: a maximum's gradient goes to the place of
// its first largest element, an average's in equal shares to all of them.
//
// Bfloat16 tiles are widened on loading. A sample's gradient is summed in floats and rounded once.
#include "ops/pool2d.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/channel_rows.h"
#include "ops/register_tiles.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

// One sample's tile: windows over rows and columns of `channels` neighbouring elements.
struct PoolTile {
  WindowTile h, w;
  std::int64_t channels, in_row, out_row;  // elements of a row

  PoolTile(const PoolLayer& layer, const TensorView& input, const TensorView& output)
      : h(layer.h, input, output, 1),
        w(layer.w, input, output, 2),
        channels(output.extent(3)),
        in_row(w.in * channels),
        out_row(w.out * channels) {}
};

// Vectors of AVX2, for machines without wider ones: GCC would compare wider ones element by
// element.
using NarrowFloats = VectorOf<8>::Floats;

// Calls body(some V, first element) for `n` elements: V is Vector, or float for what is left.
template <typename Vector, typename Body>
FLEXLEGION_INLINE void for_each_vector(std::int64_t n, Body&& body) {
  std::int64_t i = 0;
  for (; i + kLanesOf<Vector> <= n; i += kLanesOf<Vector>) body(Vector{}, i);
  for (; i < n; ++i) body(0.0f, i);
}

// What combine() does: of `count` rows of n elements, `step` apart, their maximum, or their sum
// times `scale`. Both directions of a window are this: rows of the image `in_row` apart, then
// pixels `channels` apart.
struct Combined {
  bool maximum;
  std::int64_t count, step, n;
  float scale;
};

// Remembers which elements of some values were NaN, which a maximum by comparisons passes over.
// Bits tell, whose sign is set from the first NaN on: GCC makes slow code of a further comparison.
template <typename V>
struct Nans {
  typename VectorOf<kLanesOf<V>>::Indices found{};

  FLEXLEGION_INLINE void see(const V& value) {
    typename VectorOf<kLanesOf<V>>::Indices bits;
    std::memcpy(&bits, &value, sizeof(bits));
    found |= 0x7f800000 - (bits & 0x7fffffff);
  }
  FLEXLEGION_INLINE void put_into(V& result) const {
    typename VectorOf<kLanesOf<V>>::Indices bits;
    std::memcpy(&bits, &result, sizeof(bits));
    bits |= found >> 31;
    std::memcpy(&result, &bits, sizeof(bits));
  }
};
template <>
struct Nans<float> {
  float found = 0;

  FLEXLEGION_INLINE void see(float value) { found = value != value ? value : found; }
  FLEXLEGION_INLINE void put_into(float& result) const { result = found != found ? found : result; }
};

// One vector of the result at a time: it stays in a register while all rows are read.
template <bool kMaximum, typename Vector, typename From, typename To>
FLEXLEGION_INLINE void combine_as(const Combined& of, const From* from, To* to) {
  for_each_vector<Vector>(of.n, [&](const auto& like, std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    auto result = like, value = like;
    Nans<std::decay_t<decltype(like)>> nans;
    load(result, from + i);
    for (std::int64_t k = 1; k < of.count; ++k) {
      load(value, from + k * of.step + i);
      if (kMaximum) {
        result = value > result ? value : result;
        nans.see(value);
      } else {
        result += value;
      }
    }
    if (kMaximum) {
      nans.put_into(result);
    } else {
      result *= of.scale;
    }
    store(to + i, result);
  });
}

template <typename Vector = Floats, typename From, typename To>
FLEXLEGION_INLINE void combine_of(const Combined& of, const From* from, To* to) {
  of.maximum ? combine_as<true, Vector>(of, from, to) : combine_as<false, Vector>(of, from, to);
}

// A version for machines with vectors of 16 floats, and one for others (NarrowFloats).
FLEXLEGION_SIMD void combine_wide(const Combined& of, const float* from, float* to) {
  combine_of(of, from, to);
}
FLEXLEGION_SIMD void combine_narrow(const Combined& of, const float* from, float* to) {
  combine_of<NarrowFloats>(of, from, to);
}
void combine(const Combined& of, const float* from, float* to) {
  (wide_vectors() ? combine_wide : combine_narrow)(of, from, to);
}
FLEXLEGION_SIMD void combine(const Combined& of, const Bfloat16* from, float* to) {
  combine_of(of, from, to);
}
FLEXLEGION_SIMD void combine(const Combined& of, const float* from, Bfloat16* to) {
  combine_of(of, from, to);
}

// Gives dy to the first largest element of a window of `rows` by `cols`, whose first is x, of some
// channels (V, and as many Places). All elements are added to, be it zero: that is faster than to
// take the vector apart.
template <typename Places, typename V, typename Element>
FLEXLEGION_INLINE void reward_maximum(const PoolTile& t, std::int64_t rows, std::int64_t cols,
                                      const Element* x, const V& dy, float* dx) {
  V best, value;
  load(best, x);
  Places where{};
  for (std::int64_t h = 0; h < rows; ++h) {
    for (std::int64_t w = 0; w < cols; ++w) {
      const std::int64_t at = h * t.in_row + w * t.channels;
      load(value, x + at);
      where = value > best ? Places{} + static_cast<std::int32_t>(at) : where;
      best = value > best ? value : best;
    }
  }
  for (std::int64_t h = 0; h < rows; ++h) {
    for (std::int64_t w = 0; w < cols; ++w) {
      const std::int64_t at = h * t.in_row + w * t.channels;
      load(value, dx + at);
      value += where == Places{} + static_cast<std::int32_t>(at) ? dy : V{};
      store(dx + at, value);
    }
  }
}

// The windows of one output row: whole vectors of channels, then the channels that are left, one by
// one.
template <typename Vector = Floats, typename Element>
FLEXLEGION_INLINE void maximum_backward_of(const PoolTile& t, std::int64_t oh, const Element* x,
                                           const Element* dy, float* dx) {
  const std::int64_t top = t.h.begin(oh), rows = t.h.end(oh) - top;
  for (std::int64_t ow = 0; ow < t.w.out; ++ow, dy += t.channels) {
    const std::int64_t left = t.w.begin(ow), cols = t.w.end(ow) - left;
    const std::int64_t first = top * t.in_row + left * t.channels;
    std::int64_t c = 0;
    for (; c + kLanesOf<Vector> <= t.channels; c += kLanesOf<Vector>) {
      Vector grad;
      load(grad, dy + c);
      reward_maximum<typename VectorOf<kLanesOf<Vector>>::Indices>(t, rows, cols, x + first + c,
                                                                   grad, dx + first + c);
    }
    for (; c < t.channels; ++c) {
      float grad;
      load(grad, dy + c);
      reward_maximum<std::int32_t>(t, rows, cols, x + first + c, grad, dx + first + c);
    }
  }
}

FLEXLEGION_SIMD void maximum_backward_wide(const PoolTile& t, std::int64_t oh, const float* x,
                                           const float* dy, float* dx) {
  maximum_backward_of(t, oh, x, dy, dx);
}
FLEXLEGION_SIMD void maximum_backward_narrow(const PoolTile& t, std::int64_t oh, const float* x,
                                             const float* dy, float* dx) {
  maximum_backward_of<NarrowFloats>(t, oh, x, dy, dx);
}
void maximum_backward_row(const PoolTile& t, std::int64_t oh, const float* x, const float* dy,
                          float* dx) {
  (wide_vectors() ? maximum_backward_wide : maximum_backward_narrow)(t, oh, x, dy, dx);
}
FLEXLEGION_SIMD void maximum_backward_row(const PoolTile& t, std::int64_t oh, const Bfloat16* x,
                                          const Bfloat16* dy, float* dx) {
  maximum_backward_of(t, oh, x, dy, dx);
}

// to += from, of the channels of one pixel.
FLEXLEGION_SIMD void add_row(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// Sample by sample: a sample's rows are in the cache while its windows are combined.
class Pool2d : public Kernel {
 public:
  explicit Pool2d(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const PoolTile tile(layer_, task.inputs[0], output);
    const DenseInput x(task.inputs[0], kInput, output.type);
    const DenseOutput y(output, kOutput, false, output.type);
    with_element(output.type, [&](auto element) {
      using Element = decltype(element);
      for (std::int64_t n = 0; n < output.extent(0); ++n) {
        forward_sample(tile, static_cast<const Element*>(x.memory()) + n * tile.h.in * tile.in_row,
                       static_cast<Element*>(y.memory()) + n * tile.h.out * tile.out_row);
      }
    });
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    if (output_grad.tile.empty()) {
      if (!adds) zero_view(input_grad);
      return;
    }
    // The windows' bounds are the same for all samples, so they are found once.
    const PoolTile tile(layer_, input_grad, output_grad);
    const DataType type = output_grad.type;
    const DenseInput dy(output_grad, kOutputGrad, type);
    const void* const x =
        layer_.maximum ? DenseInput(task.inputs[0], kInput, type).memory() : nullptr;
    with_element(type, [&](auto element) {
      using Element = decltype(element);
      for (std::int64_t n = 0; n < output_grad.extent(0); ++n) {
        const auto* const grads =
            static_cast<const Element*>(dy.memory()) + n * tile.h.out * tile.out_row;
        write_sample(subview(input_grad, n), adds, [&](float* dx) {
          if (layer_.maximum) {
            const auto* const in = static_cast<const Element*>(x) + n * tile.h.in * tile.in_row;
            for (std::int64_t oh = 0; oh < tile.h.out; ++oh) {
              maximum_backward_row(tile, oh, in, grads + oh * tile.out_row, dx);
            }
          } else {
            average_backward(tile, grads, dx);
          }
        });
      }
    });
  }

 private:
  enum Slot { kInput, kOutput, kOutputGrad, kRow, kSample };

  // First down the columns, over whole rows, then along the row.
  template <typename Element>
  void forward_sample(const PoolTile& t, const Element* x, Element* y) const {
    float* const column = scratch(kRow, t.in_row);
    for (std::int64_t oh = 0; oh < t.h.out; ++oh) {
      const std::int64_t top = t.h.begin(oh), rows = t.h.end(oh) - top;
      combine({layer_.maximum, rows, t.in_row, t.in_row, 1}, x + top * t.in_row, column);
      for (std::int64_t ow = 0; ow < t.w.out; ++ow, y += t.channels) {
        const std::int64_t left = t.w.begin(ow), cols = t.w.end(ow) - left;
        combine({layer_.maximum, cols, t.channels, t.channels, weight(t, oh, ow)},
                column + left * t.channels, y);
      }
    }
  }

  // Windows overlap, so a sample's gradient adds up in floats: in place, where they lie so.
  template <typename Body>
  static void write_sample(const TensorView& gradient, bool adds, const Body& body) {
    const bool in_place = gradient.dense() && !gradient.narrow();
    float* const dx = in_place ? gradient.f32() : scratch(kSample, gradient.volume());
    // In place, a gradient that adds goes on from what is there.
    if (!in_place || !adds) std::fill_n(dx, gradient.volume(), 0.0f);
    body(dx);
    if (in_place) return;
    write_or_add_view(gradient, dense_view(dx, gradient.tile, gradient.shape), adds);
  }

  // A window's share of dy is computed once and added to each of its pixels.
  template <typename Element>
  void average_backward(const PoolTile& t, const Element* dy, float* dx) const {
    float* const share = scratch(kRow, t.channels);
    for (std::int64_t oh = 0; oh < t.h.out; ++oh) {
      for (std::int64_t ow = 0; ow < t.w.out; ++ow, dy += t.channels) {
        combine({false, 1, 0, t.channels, weight(t, oh, ow)}, dy, share);
        for (std::int64_t h = t.h.begin(oh); h < t.h.end(oh); ++h) {
          for (std::int64_t w = t.w.begin(ow); w < t.w.end(ow); ++w) {
            add_row(share, dx + h * t.in_row + w * t.channels, t.channels);
          }
        }
      }
    }
  }

  float weight(const PoolTile& t, std::int64_t oh, std::int64_t ow) const {
    return average_weight(t.h, t.w, oh, ow, layer_.count_padding);
  }

  PoolLayer layer_;
};

const RegisterKernel registered("pool2d",
                                [](const Attributes& a) { return std::make_unique<Pool2d>(a); });

}  // namespace
}  // namespace flexlegion
