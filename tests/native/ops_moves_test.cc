// Operators that move or spread elements, against the linear maps that they are: pad, roll, slice
// with a step, take, resize2d, conv2d_transpose.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

using Index = std::vector<std::int64_t>;

std::int64_t offset_of(const Shape& shape, const Index& index) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) offset = offset * shape[d] + index[d];
  return offset;
}

// body(index) for every element.
void for_each_index(const Shape& shape, const std::function<void(const Index&)>& body) {
  Index index(shape.size(), 0);
  const std::int64_t count = Rect::of_shape(shape).volume();
  for (std::int64_t i = 0; i < count; ++i) {
    body(index);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

// Of an output: the inputs that it is the sum of, with their factors.
using Terms = std::function<void(const Index& y, const std::function<void(Index, float)>& add)>;

// `c` without gradients but the first input's, whose map it is.
void check_linear(Case& c, const Terms& terms, const std::vector<int>& parts, unsigned seed) {
  Tensor y(c.output_shape), dx(c.inputs[0].shape);
  const Tensor dy = Tensor::random(c.output_shape, seed + 3);
  for_each_index(c.output_shape, [&](const Index& at) {
    const auto to = static_cast<std::size_t>(offset_of(c.output_shape, at));
    terms(at, [&](const Index& from, float factor) {
      const auto in = static_cast<std::size_t>(offset_of(c.inputs[0].shape, from));
      y.data[to] += factor * c.inputs[0].data[in];
      dx.data[in] += factor * dy.data[to];
    });
  });
  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
}

std::string text(std::int64_t number) { return std::to_string(number); }

TEST_CASE("pad: zeros around tiles of any cut") {
  unsigned seed = 1;
  for (const std::vector<int>& parts : {std::vector<int>{1, 1, 1, 1}, {2, 3, 2, 2}, {1, 5, 4, 1}}) {
    Case c;
    c.type = "pad";
    c.attributes = {{"before", "0,2,0,1"}, {"after", "0,1,3,0"}};
    c.inputs = {Tensor::random({3, 4, 3, 2}, seed)};
    c.output_shape = {3, 7, 6, 3};
    const std::int64_t before[] = {0, 2, 0, 1};
    c.input_tile = [&](const Rect& out, int) {
      Rect in = out;
      for (int d = 0; d < 4; ++d) {
        const std::int64_t extent = c.inputs[0].shape[static_cast<std::size_t>(d)];
        in.lo[d] = std::clamp<std::int64_t>(out.lo[d] - before[d], 0, extent);
        in.hi[d] = std::clamp<std::int64_t>(out.hi[d] - before[d], in.lo[d], extent);
      }
      return in;
    };
    check_linear(
        c,
        [&](const Index& y, const auto& add) {
          Index x = y;
          for (std::size_t d = 0; d < 4; ++d) {
            x[d] -= before[d];
            if (x[d] < 0 || x[d] >= c.inputs[0].shape[d]) return;
          }
          add(x, 1.0f);
        },
        parts, seed++);
  }
}

TEST_CASE("roll: a dimension turned round") {
  unsigned seed = 1;
  for (const std::int64_t shift : {0, 1, 4, 6}) {
    for (const std::vector<int>& parts : {std::vector<int>{1, 1, 1}, {2, 3, 2}}) {
      Case c;
      c.type = "roll";
      c.attributes = {{"axis", "1"}, {"shift", text(shift)}};
      c.inputs = {Tensor::random({2, 7, 3}, seed)};
      c.output_shape = {2, 7, 3};
      c.input_tile = [](const Rect& out, int) {
        Rect in = out;
        in.lo[1] = 0;
        in.hi[1] = 7;
        return in;
      };
      check_linear(
          c,
          [&](const Index& y, const auto& add) {
            add({y[0], (y[1] - shift + 7) % 7, y[2]}, 1.0f);
          },
          parts, seed++);
    }
  }
}

TEST_CASE("slice: each step-th element") {
  unsigned seed = 1;
  for (const std::int64_t step : {1, 2, 3}) {
    for (const std::vector<int>& parts : {std::vector<int>{1, 1, 1}, {2, 3, 2}}) {
      Case c;
      c.type = "slice";
      c.attributes = {{"axis", "1"}, {"start", "2"}, {"size", "4"}, {"step", text(step)}};
      c.inputs = {Tensor::random({3, 12, 4}, seed)};
      c.output_shape = {3, 4, 4};
      c.input_tile = [&](const Rect& out, int) {
        Rect in = out;
        in.lo[1] = 2 + out.lo[1] * step;
        in.hi[1] = 2 + (out.hi[1] - 1) * step + 1;
        return in;
      };
      check_linear(
          c,
          [&](const Index& y, const auto& add) {
            add({y[0], 2 + y[1] * step, y[2]}, 1.0f);
          },
          parts, seed++);
    }
  }
}

// Whole numbers as they lie in a tensor's memory.
Tensor numbers(const std::vector<std::int32_t>& values) {
  Tensor tensor({1, static_cast<std::int64_t>(values.size())});
  std::copy_n(reinterpret_cast<const float*>(values.data()), values.size(), tensor.data.begin());
  return tensor;
}

TEST_CASE("take: elements by their numbers, some of them often, some never") {
  const std::vector<std::int32_t> picked{4, 0, 4, 2, 4, 5};
  unsigned seed = 1;
  for (const std::vector<int>& parts : {std::vector<int>{1, 1, 1}, {2, 4, 2}}) {
    Case c;
    c.type = "take";
    c.attributes = {{"axis", "1"}};
    c.inputs = {Tensor::random({2, 6, 3}, seed), numbers(picked), numbers({1, 3, 0, 2, 4, 5}),
                numbers({0, 1, 1, 2, 2, 5, 6})};
    c.output_shape = {2, 6, 3};
    c.reads_input = true;
    c.input_tile = [&](const Rect& out, int i) {
      if (i > 0) return c.inputs[static_cast<std::size_t>(i)].whole();
      Rect in = out;
      in.lo[1] = 0;
      in.hi[1] = 6;
      return in;
    };
    c.wants_input_grad = [](int i) { return i == 0; };
    check_linear(
        c,
        [&](const Index& y, const auto& add) {
          add({y[0], picked[static_cast<std::size_t>(y[1])], y[2]}, 1.0f);
        },
        parts, seed++);
  }
}

// The place of output o among `extent` inputs.
double place_of(std::int64_t o, std::int64_t extent, std::int64_t factor, bool aligned) {
  if (aligned) {
    return extent * factor > 1
               ? static_cast<double>(o * (extent - 1)) / static_cast<double>(extent * factor - 1)
               : 0.0;
  }
  return std::max(0.0, (static_cast<double>(o) + 0.5) / static_cast<double>(factor) - 0.5);
}

TEST_CASE("resize2d: the nearest, or means of four") {
  unsigned seed = 1;
  const std::int64_t h = 5, w = 4;
  for (const char* kind : {"nearest", "bilinear"}) {
    for (const bool aligned : {false, true}) {
      for (const auto& [fh, fw] : {std::pair<std::int64_t, std::int64_t>{2, 3}, {1, 4}}) {
        for (const std::vector<int>& parts : {std::vector<int>{1, 1, 1, 1}, {2, 3, 3, 2}}) {
          const bool nearest = std::string(kind) == "nearest";
          Case c;
          c.type = "resize2d";
          c.attributes = {{"kind", kind},
                          {"factor_h", text(fh)},
                          {"factor_w", text(fw)},
                          {"align_corners", aligned ? "1" : "0"}};
          c.inputs = {Tensor::random({2, h, w, 3}, seed)};
          c.output_shape = {2, h * fh, w * fw, 3};
          c.input_tile = [&](const Rect& out, int) {
            Rect in = out;
            for (int d : {1, 2}) {
              const std::int64_t extent = d == 1 ? h : w, factor = d == 1 ? fh : fw;
              if (nearest) {
                in.lo[d] = out.lo[d] / factor;
                in.hi[d] = (out.hi[d] - 1) / factor + 1;
              } else {
                const double first = place_of(out.lo[d], extent, factor, aligned);
                const double last = place_of(out.hi[d] - 1, extent, factor, aligned);
                in.lo[d] = std::max<std::int64_t>(0, static_cast<std::int64_t>(first) - 1);
                in.hi[d] = std::min(extent, static_cast<std::int64_t>(last) + 3);
              }
            }
            return in;
          };
          check_linear(
              c,
              [&](const Index& y, const auto& add) {
                if (nearest) return add({y[0], y[1] / fh, y[2] / fw, y[3]}, 1.0f);
                const double at[] = {place_of(y[1], h, fh, aligned),
                                     place_of(y[2], w, fw, aligned)};
                for (int i = 0; i < 2; ++i) {
                  for (int j = 0; j < 2; ++j) {
                    const double down = at[0] - std::floor(at[0]),
                                 right = at[1] - std::floor(at[1]);
                    const double share = (i ? down : 1 - down) * (j ? right : 1 - right);
                    add({y[0], std::min(h - 1, static_cast<std::int64_t>(at[0]) + i),
                         std::min(w - 1, static_cast<std::int64_t>(at[1]) + j), y[3]},
                        static_cast<float>(share));
                  }
                }
              },
              parts, seed++);
        }
      }
    }
  }
}

// An axis of a transposed convolution.
struct Axis {
  std::int64_t in, kernel, stride, padding, extra, dilation;

  std::int64_t span() const { return (kernel - 1) * dilation + 1; }
  std::int64_t out() const { return (in - 1) * stride - 2 * padding + span() + extra; }
  // The inputs that outputs [lo, hi) need, perhaps one more at either end
  // (graph/operator_type.py).
  std::pair<std::int64_t, std::int64_t> read(std::int64_t lo, std::int64_t hi) const {
    const auto floor = [](std::int64_t a, std::int64_t b) {
      return a >= 0 ? a / b : -((-a + b - 1) / b);
    };
    const std::int64_t first = lo / stride + floor(padding - span(), stride) + 1;
    const std::int64_t end = (hi + stride - 1) / stride + (padding + stride - 1) / stride;
    return {std::clamp<std::int64_t>(first, 0, in),
            std::clamp<std::int64_t>(end, std::clamp<std::int64_t>(first, 0, in), in)};
  }
};

void check_transposed(const Axis& h, const Axis& w, std::int64_t channels, std::int64_t filters,
                      bool use_bias, const std::vector<int>& parts, unsigned seed) {
  Case c;
  c.type = "conv2d_transpose";
  for (const auto& [name, axis] : {std::pair<std::string, Axis>{"h", h}, {"w", w}}) {
    c.attributes.insert(c.attributes.end(), {{"kernel_" + name, text(axis.kernel)},
                                             {"stride_" + name, text(axis.stride)},
                                             {"padding_" + name, text(axis.padding)},
                                             {"dilation_" + name, text(axis.dilation)}});
  }
  c.attributes.emplace_back("use_bias", use_bias ? "1" : "0");
  c.inputs = {Tensor::random({2, h.in, w.in, channels}, seed)};
  c.weights = {Tensor::random({h.kernel, w.kernel, filters, channels}, seed + 1)};
  if (use_bias) c.weights.push_back(Tensor::random({filters}, seed + 2));
  c.output_shape = {2, h.out(), w.out(), filters};
  c.reads_input = true;
  c.input_tile = [&](const Rect& out, int) {
    Rect in = out;
    std::tie(in.lo[1], in.hi[1]) = h.read(out.lo[1], out.hi[1]);
    std::tie(in.lo[2], in.hi[2]) = w.read(out.lo[2], out.hi[2]);
    in.lo[3] = 0;
    in.hi[3] = channels;
    return in;
  };
  c.weight_tile = [&](const Rect& out, int i) {
    Rect tile = c.weights[static_cast<std::size_t>(i)].whole();
    const int d = i == 0 ? 2 : 0;
    tile.lo[d] = out.lo[3];
    tile.hi[d] = out.hi[3];
    return tile;
  };
  Tensor y(c.output_shape), dx(c.inputs[0].shape), dkernel(c.weights[0].shape), dbias({filters});
  Tensor dy = Tensor::random(c.output_shape, seed + 3);
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    const std::size_t o = i % static_cast<std::size_t>(filters);
    y.data[i] = use_bias ? c.weights[1].data[o] : 0;
    dbias.data[o] += dy.data[i];
  }
  for_each_index(c.inputs[0].shape, [&](const Index& at) {
    for (std::int64_t i = 0; i < h.kernel; ++i) {
      for (std::int64_t j = 0; j < w.kernel; ++j) {
        const std::int64_t oh = at[1] * h.stride - h.padding + i * h.dilation;
        const std::int64_t ow = at[2] * w.stride - w.padding + j * w.dilation;
        if (oh < 0 || oh >= h.out() || ow < 0 || ow >= w.out()) continue;
        for (std::int64_t o = 0; o < filters; ++o) {
          const float x = c.inputs[0].at(at[0], at[1], at[2], at[3]);
          const float k = c.weights[0].at(i, j, o, at[3]);
          y.at(at[0], oh, ow, o) += x * k;
          dx.at(at[0], at[1], at[2], at[3]) += dy.at(at[0], oh, ow, o) * k;
          dkernel.at(i, j, o, at[3]) += dy.at(at[0], oh, ow, o) * x;
        }
      }
    }
  });
  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
  CHECK(largest_difference(tiled.weight_grads[0], dkernel) < kTolerance);
  if (use_bias) CHECK(largest_difference(tiled.weight_grads[1], dbias) < kTolerance);
}

TEST_CASE("conv2d_transpose: tiles of any cut compute what the whole does") {
  struct Pair {
    Axis h, w;
    std::int64_t channels, filters;
  };
  const Pair cases[] = {
      {{5, 2, 2, 0, 0, 1}, {4, 2, 2, 0, 0, 1}, 6, 4},    // U-Net's: nothing overlaps
      {{5, 4, 2, 1, 0, 1}, {6, 4, 2, 1, 0, 1}, 3, 5},    // overlapping
      {{4, 3, 2, 1, 1, 1}, {5, 3, 2, 1, 1, 1}, 16, 16},  // an extra row and column
      {{5, 3, 1, 2, 0, 1}, {4, 2, 3, 0, 2, 1}, 2, 3},    // strides over the kernel
      {{4, 3, 2, 2, 1, 2}, {3, 2, 3, 1, 0, 3}, 4, 2},    // dilated
  };
  unsigned seed = 1;
  for (const Pair& g : cases) {
    CAPTURE(g.h.kernel);
    CAPTURE(g.channels);
    for (const std::vector<int>& parts :
         {std::vector<int>{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 3, 2, 2}, {2, 4, 3, 1}}) {
      check_transposed(g.h, g.w, g.channels, g.filters, seed % 3 != 0, parts, seed);
      ++seed;
    }
  }
}

}  // namespace
}  // namespace flexlegion::testing
