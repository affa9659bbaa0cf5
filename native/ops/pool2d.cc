// pool2d: the maximum or the average of each window, over (n, h, w, c).
//
// Loops over whole rows of (w, c), which are contiguous. The maximum's gradient goes to the first
// largest element of the window in row-major order; it is found again in backward.
#include "ops/pool2d.h"

#include <cstdint>
#include <cstring>

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

FLEXLEGION_SIMD void maximum_row(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
}

FLEXLEGION_SIMD void add_row(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FLEXLEGION_SIMD void scale_row(const float* from, float factor, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

using Floats = float __attribute__((vector_size(32)));
using Places = std::int32_t __attribute__((vector_size(32)));

// Gives dy to the first largest element of a window of `rows` by `cols`, whose first is x: for one
// channel (float, int32_t) or eight (Floats, Places).
template <typename Value, typename Place>
FLEXLEGION_INLINE void reward_maximum(const PoolTile& t, std::int64_t rows, std::int64_t cols,
                                      const float* x, const float* dy, float* dx) {
  constexpr int kChannels = sizeof(Value) / sizeof(float);
  Value best;
  std::memcpy(&best, x, sizeof(best));
  Place where{};
  for (std::int64_t h = 0; h < rows; ++h) {
    for (std::int64_t w = 0; w < cols; ++w) {
      const std::int64_t at = h * t.in_row + w * t.channels;
      Value value;
      std::memcpy(&value, x + at, sizeof(value));
      where = value > best ? Place{} + static_cast<std::int32_t>(at) : where;
      best = value > best ? value : best;
    }
  }
  std::int32_t places[kChannels];
  std::memcpy(places, &where, sizeof(places));
  for (int c = 0; c < kChannels; ++c) dx[places[c] + c] += dy[c];
}

FLEXLEGION_SIMD void maximum_backward_row(const PoolTile& t, std::int64_t oh, const float* x,
                                          const float* dy, float* dx) {
  const std::int64_t top = t.h.begin(oh), rows = t.h.end(oh) - top;
  for (std::int64_t ow = 0; ow < t.w.out; ++ow, dy += t.channels) {
    const std::int64_t left = t.w.begin(ow), cols = t.w.end(ow) - left;
    const std::int64_t first = top * t.in_row + left * t.channels;
    std::int64_t c = 0;
    for (; c + 8 <= t.channels; c += 8) {
      reward_maximum<Floats, Places>(t, rows, cols, x + first + c, dy + c, dx + first + c);
    }
    for (; c < t.channels; ++c) {
      reward_maximum<float, std::int32_t>(t, rows, cols, x + first + c, dy + c, dx + first + c);
    }
  }
}

class Pool2d : public Kernel {
 public:
  explicit Pool2d(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const PoolTile tile(layer_, task.inputs[0], output);
    const DenseInput x(task.inputs[0], 0);
    const DenseOutput y(output, 1);
    for (std::int64_t n = 0; n < output.extent(0); ++n) {
      forward_sample(tile, x.data() + n * tile.h.in * tile.in_row,
                     y.data() + n * tile.h.out * tile.out_row);
    }
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    // Windows add up anyhow, so a dense tile needs no sum of its own.
    const bool adds = task.adds_to_input_grad(0), in_place = adds && input_grad.dense();
    const DenseOutput dx(input_grad, 0, adds && !in_place);
    if (!in_place) std::fill_n(dx.data(), input_grad.volume(), 0.0f);
    if (!output_grad.tile.empty()) {
      const PoolTile tile(layer_, input_grad, output_grad);
      const DenseInput dy(output_grad, 1);
      const float* const x = layer_.maximum ? DenseInput(task.inputs[0], 2).data() : nullptr;
      for (std::int64_t n = 0; n < output_grad.extent(0); ++n) {
        const std::int64_t in = n * tile.h.in * tile.in_row, out = n * tile.h.out * tile.out_row;
        if (layer_.maximum) {
          for (std::int64_t oh = 0; oh < tile.h.out; ++oh) {
            maximum_backward_row(tile, oh, x + in, dy.data() + out + oh * tile.out_row,
                                 dx.data() + in);
          }
        } else {
          average_backward(tile, dy.data() + out, dx.data() + in);
        }
      }
    }
    dx.commit();
  }

 private:
  // First down the columns, over whole rows, then along the row.
  void forward_sample(const PoolTile& t, const float* x, float* y) const {
    const auto combine = layer_.maximum ? maximum_row : add_row;
    float* const column = scratch(3, t.in_row);
    for (std::int64_t oh = 0; oh < t.h.out; ++oh, y += t.out_row) {
      std::copy_n(x + t.h.begin(oh) * t.in_row, t.in_row, column);
      for (std::int64_t h = t.h.begin(oh) + 1; h < t.h.end(oh); ++h) {
        combine(x + h * t.in_row, column, t.in_row);
      }
      for (std::int64_t ow = 0; ow < t.w.out; ++ow) {
        float* const out = y + ow * t.channels;
        std::copy_n(column + t.w.begin(ow) * t.channels, t.channels, out);
        for (std::int64_t w = t.w.begin(ow) + 1; w < t.w.end(ow); ++w) {
          combine(column + w * t.channels, out, t.channels);
        }
        if (!layer_.maximum) scale_row(out, weight(t, oh, ow), out, t.channels);
      }
    }
  }

  void average_backward(const PoolTile& t, const float* dy, float* dx) const {
    float* const share = scratch(3, t.channels);
    for (std::int64_t oh = 0; oh < t.h.out; ++oh) {
      for (std::int64_t ow = 0; ow < t.w.out; ++ow, dy += t.channels) {
        scale_row(dy, weight(t, oh, ow), share, t.channels);
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
