// conv2d and pool2d against loops over whole tensors.
#include <doctest/doctest.h>

#include <stdexcept>

#include "gpu/convolution.h"
#include "ops/kernel_gradient.h"
#include "ops/team.h"
#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct Window {
  std::int64_t n, h, w, c, o;  // o: filters of a convolution
  std::int64_t kh, kw, sh, sw, ph, pw;
  std::int64_t dh = 1, dw = 1;  // dilation

  std::int64_t span_h() const { return (kh - 1) * dh + 1; }
  std::int64_t span_w() const { return (kw - 1) * dw + 1; }
  std::int64_t oh() const { return (h + 2 * ph - span_h()) / sh + 1; }
  std::int64_t ow() const { return (w + 2 * pw - span_w()) / sw + 1; }

  Rect input_tile(const Rect& out, bool all_channels) const {
    Rect in = out;
    in.lo[1] = std::max<std::int64_t>(0, out.lo[1] * sh - ph);
    in.hi[1] = std::min(h, (out.hi[1] - 1) * sh - ph + span_h());
    in.lo[2] = std::max<std::int64_t>(0, out.lo[2] * sw - pw);
    in.hi[2] = std::min(w, (out.hi[2] - 1) * sw - pw + span_w());
    if (all_channels) {
      in.lo[3] = 0;
      in.hi[3] = c;
    }
    return in;
  }

  std::vector<std::pair<std::string, std::string>> attributes() const {
    const auto s = [](std::int64_t i) { return std::to_string(i); };
    return {{"kernel_h", s(kh)},   {"kernel_w", s(kw)},  {"stride_h", s(sh)},
            {"stride_w", s(sw)},   {"padding_h", s(ph)}, {"padding_w", s(pw)},
            {"dilation_h", s(dh)}, {"dilation_w", s(dw)}};
  }

  // body(n, oh, ow, h, w, kh, kw) for every element of every window that lies in the tensor.
  template <typename Body>
  void for_each(Body&& body) const {
    for (std::int64_t b = 0; b < n; ++b)
      for (std::int64_t y = 0; y < oh(); ++y)
        for (std::int64_t x = 0; x < ow(); ++x)
          for (std::int64_t i = 0; i < kh; ++i)
            for (std::int64_t j = 0; j < kw; ++j) {
              const std::int64_t r = y * sh - ph + i * dh, q = x * sw - pw + j * dw;
              if (r >= 0 && r < h && q >= 0 && q < w) body(b, y, x, r, q, i, j);
            }
  }
};

float activated(const std::string& f, float x) {
  if (f == "relu") return std::max(x, 0.0f);
  if (f == "sigmoid") return 1 / (1 + std::exp(-x));
  return f == "tanh" ? std::tanh(x) : x;
}

float derivative(const std::string& f, float y) {
  if (f == "relu") return y > 0 ? 1.0f : 0.0f;
  if (f == "sigmoid") return y * (1 - y);
  return f == "tanh" ? 1 - y * y : 1;
}

void check_conv(const Window& g, const std::string& activation, bool use_bias,
                const std::vector<int>& parts, unsigned seed, std::int64_t groups = 1,
                bool all_channels = true) {
  const std::int64_t of_group = g.c / groups, filters_of_group = g.o / groups;
  Case c;
  c.type = "conv2d";
  c.attributes = g.attributes();
  c.attributes.emplace_back("use_bias", use_bias ? "1" : "0");
  c.attributes.emplace_back("activation", activation);
  c.attributes.emplace_back("groups", std::to_string(groups));
  c.inputs = {Tensor::random({g.n, g.h, g.w, g.c}, seed)};
  c.weights = {Tensor::random({g.o, g.kh, g.kw, of_group}, seed + 1)};
  if (use_bias) c.weights.push_back(Tensor::random({g.o}, seed + 2));
  c.output_shape = {g.n, g.oh(), g.ow(), g.o};
  c.input_tile = [&](const Rect& out, int) {
    Rect in = g.input_tile(out, true);
    if (all_channels) return in;
    in.lo[3] = out.lo[3] / filters_of_group * of_group;
    in.hi[3] = ((out.hi[3] - 1) / filters_of_group + 1) * of_group;
    return in;
  };
  c.weight_tile = [&](const Rect& out, int i) {
    Rect r = c.weights[static_cast<std::size_t>(i)].whole();
    r.lo[0] = out.lo[3];
    r.hi[0] = out.hi[3];
    return r;
  };
  c.reads_input = true;
  c.reads_output = activation != "none";

  Tensor y(c.output_shape), dy = Tensor::random(c.output_shape, seed + 3), dx(c.inputs[0].shape);
  Tensor dw(c.weights[0].shape), db({g.o});
  const std::size_t filters = static_cast<std::size_t>(g.o);
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    y.data[i] = use_bias ? c.weights[1].data[i % filters] : 0;
  }
  g.for_each([&](auto b, auto oh, auto ow, auto h, auto w, auto i, auto j) {
    for (std::int64_t o = 0; o < g.o; ++o)
      for (std::int64_t k = 0; k < of_group; ++k)
        y.at(b, oh, ow, o) += c.inputs[0].at(b, h, w, o / filters_of_group * of_group + k) *
                              c.weights[0].at(o, i, j, k);
  });
  Tensor before = dy;
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    y.data[i] = activated(activation, y.data[i]);
    before.data[i] *= derivative(activation, y.data[i]);
    db.data[i % filters] += before.data[i];
  }
  g.for_each([&](auto b, auto oh, auto ow, auto h, auto w, auto i, auto j) {
    for (std::int64_t o = 0; o < g.o; ++o)
      for (std::int64_t k = 0; k < of_group; ++k) {
        const std::int64_t channel = o / filters_of_group * of_group + k;
        dx.at(b, h, w, channel) += before.at(b, oh, ow, o) * c.weights[0].at(o, i, j, k);
        dw.at(o, i, j, k) += before.at(b, oh, ow, o) * c.inputs[0].at(b, h, w, channel);
      }
  });

  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
  CHECK(largest_difference(tiled.weight_grads[0], dw) < kTolerance);
  if (use_bias) CHECK(largest_difference(tiled.weight_grads[1], db) < kTolerance);
}

void check_pool(const Window& g, bool maximum, bool count_padding, const std::vector<int>& parts,
                unsigned seed) {
  Case c;
  c.type = "pool2d";
  c.attributes = g.attributes();
  c.attributes.emplace_back("kind", maximum ? "max" : "average");
  c.attributes.emplace_back("count_include_pad", count_padding ? "1" : "0");
  c.inputs = {Tensor::random({g.n, g.h, g.w, g.c}, seed)};
  for (float& x : c.inputs[0].data) x = std::round(x * 2);  // many ties
  c.output_shape = {g.n, g.oh(), g.ow(), g.c};
  c.input_tile = [&](const Rect& out, int) { return g.input_tile(out, false); };
  c.reads_input = maximum;

  Tensor y(c.output_shape), count(c.output_shape), dx(c.inputs[0].shape);
  Tensor dy = Tensor::random(c.output_shape, seed + 3);
  Tensor winner(c.output_shape, -1);
  g.for_each([&](auto b, auto oh, auto ow, auto h, auto w, auto, auto) {
    for (std::int64_t k = 0; k < g.c; ++k) {
      const float x = c.inputs[0].at(b, h, w, k);
      float& place = winner.at(b, oh, ow, k);
      float& result = y.at(b, oh, ow, k);
      if (!maximum) {
        result += x;
        count.at(b, oh, ow, k) += 1;
      } else if (place < 0 || x > result) {
        result = x;
        place = static_cast<float>(h * g.w + w);
      }
    }
  });
  if (count_padding) count.data.assign(count.data.size(), static_cast<float>(g.kh * g.kw));
  if (!maximum) {
    for (std::size_t i = 0; i < y.data.size(); ++i) y.data[i] /= count.data[i];
  }
  g.for_each([&](auto b, auto oh, auto ow, auto h, auto w, auto, auto) {
    for (std::int64_t k = 0; k < g.c; ++k) {
      const float grad = dy.at(b, oh, ow, k);
      if (!maximum) {
        dx.at(b, h, w, k) += grad / count.at(b, oh, ow, k);
      } else if (winner.at(b, oh, ow, k) == static_cast<float>(h * g.w + w)) {
        dx.at(b, h, w, k) += grad;
      }
    }
  });

  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
}

// n, h, w, c, o, then kernel, stride and padding, each for h and w.
const Window kWindows[] = {
    {3, 12, 12, 1, 6, 5, 5, 1, 1, 0, 0},    // LeNet's first
    {2, 9, 11, 6, 16, 5, 5, 1, 1, 2, 2},    // LeNet's second, padded
    {2, 13, 10, 3, 20, 3, 3, 2, 2, 1, 1},   // strided
    {2, 11, 9, 4, 5, 3, 2, 1, 2, 2, 0},     // nothing square
    {2, 14, 15, 3, 7, 2, 3, 3, 5, 1, 2},    // stride > kernel: elements that no window touches
    {1, 7, 7, 18, 33, 1, 1, 1, 1, 0, 0},    // 1x1
    {1, 8, 6, 16, 32, 3, 3, 1, 1, 1, 1},    // whole vectors of channels
    {1, 20, 45, 2, 3, 4, 7, 1, 1, 3, 6},    // wide, as much padding as there can be
    {2, 20, 19, 16, 17, 3, 3, 1, 1, 1, 1},  // kernels whose gradients are computed by way of panels
    {1, 23, 22, 3, 20, 7, 7, 2, 2, 3, 3},  {1, 12, 13, 130, 18, 1, 1, 2, 2, 0, 0},
};

TEST_CASE("conv2d: tiles of any cut compute what the whole does") {
  unsigned seed = 1;
  for (const Window& g : kWindows) {
    CAPTURE(g.kh);
    CAPTURE(g.c);
    for (const char* activation : {"none", "relu", "sigmoid", "tanh"}) {
      CAPTURE(activation);
      const bool use_bias = seed % 3 != 0;
      check_conv(g, activation, use_bias, {1, 1, 1, 1}, seed++);
      check_conv(g, activation, use_bias, {2, 1, 1, 1}, seed++);
      check_conv(g, activation, use_bias, {2, 2, 3, 2}, seed++);
    }
  }
}

// The same on every machine, of which only some take them.
TEST_CASE("conv2d: gradients of kernels by way of panels") {
  const Window more[] = {{1, 14, 15, 16, 18, 3, 3, 1, 2, 2, 2, 2, 2},
                         {2, 9, 8, 5, 7, 3, 2, 2, 3, 1, 0}};
  std::vector<Window> windows(std::begin(kWindows), std::end(kWindows));
  windows.insert(windows.end(), std::begin(more), std::end(more));
  for (const Window& g : windows) {
    CAPTURE(g.kh);
    CAPTURE(g.c);
    Tensor x = Tensor::random({g.n, g.h, g.w, g.c}, 1);
    Tensor dy = Tensor::random({g.n, g.oh(), g.ow(), g.o}, 2), dw({g.o, g.kh, g.kw, g.c});
    KernelTask task;
    task.inputs = {x.view(x.whole())};
    task.weights = {dw.view(dw.whole())};
    auto attributes = g.attributes();
    attributes.insert(attributes.end(),
                      {{"groups", "1"}, {"activation", "none"}, {"use_bias", "0"}});
    const ConvTile tile =
        ConvLayer(Attributes(attributes)).tile(ConvViews(task), dy.view(dy.whole()));
    std::vector<double> sums(dw.data.size());
    g.for_each([&](auto b, auto y, auto z, auto r, auto q, auto i, auto j) {
      for (std::int64_t o = 0; o < g.o; ++o) {
        for (std::int64_t c = 0; c < g.c; ++c) {
          sums.at(((o * g.kh + i) * g.kw + j) * g.c + c) +=
              double{dy.at(b, y, z, o)} * x.at(b, r, q, c);
        }
      }
    });
    Tensor expected(dw.shape);
    std::copy(sums.begin(), sums.end(), expected.data.begin());
    kernel_gradient::compute(tile, x.data.data(), dy.data.data(), dw.data.data(), false);
    CHECK(largest_difference(dw, expected) < kTolerance);
    const Team team(3, 1);
    kernel_gradient::compute(tile, x.data.data(), dy.data.data(), dw.data.data(), true);
    for (float& value : expected.data) value *= 2;
    CHECK(largest_difference(dw, expected) < kTolerance);
  }
}

TEST_CASE("conv2d: what a kernel reads may lie apart") {
  const Window dilated[] = {
      {1, 14, 15, 16, 18, 3, 3, 1, 2, 2, 2, 2, 2},  // by way of panels
      {2, 11, 10, 3, 5, 3, 3, 1, 1, 2, 2, 2, 2},    // as large as without
      {2, 13, 12, 16, 16, 3, 2, 1, 1, 0, 1, 3, 4},  // whole vectors
      {1, 12, 9, 4, 6, 2, 3, 2, 2, 3, 1, 4, 2},     // strided, more padding than taps
  };
  unsigned seed = 1;
  for (const Window& g : dilated) {
    CAPTURE(g.dh);
    for (const char* activation : {"none", "relu"}) {
      check_conv(g, activation, true, {1, 1, 1, 1}, seed++);
      check_conv(g, activation, false, {2, 3, 2, 2}, seed++);
    }
  }
  check_conv({2, 9, 8, 6, 9, 3, 3, 1, 1, 2, 2, 2, 2}, "none", true, {2, 2, 2, 2}, seed, 3);
}

TEST_CASE("conv2d: groups, cut within and at their borders") {
  struct Grouped {
    Window window;
    std::int64_t groups;
  };
  const Grouped cases[] = {
      {{2, 9, 8, 6, 9, 3, 3, 1, 1, 1, 1}, 3},             // 2 channels and 3 filters a group
      {{2, 8, 7, 7, 7, 3, 2, 2, 1, 1, 0}, 7},             // depthwise
      {{2, 6, 7, 5, 15, 3, 3, 1, 1, 1, 1}, 5},            // three filters a channel
      {{1, 6, 6, 12, 4, 1, 1, 1, 1, 0, 0}, 4},            // one filter of three channels
      {{2, 7, 6, 32, 64, 3, 3, 1, 1, 1, 1}, 2},           // whole vectors
      {{1, 7, 6, 48, 48, 3, 3, 1, 1, 1, 1}, 48},          // depthwise, whole vectors
      {{2, 12, 17, 40, 40, 5, 5, 1, 1, 2, 2}, 40},        // and half of one
      {{2, 20, 11, 16, 16, 7, 7, 1, 1, 3, 3}, 16},        // images not much larger than kernels
      {{1, 14, 15, 24, 24, 3, 5, 2, 2, 1, 2}, 24},        // windows that step
      {{2, 11, 12, 17, 17, 2, 3, 3, 4, 1, 2}, 17},        // elements that no window touches
      {{1, 15, 14, 16, 16, 3, 4, 2, 3, 2, 4, 2, 3}, 16},  // taps that lie apart
      {{1, 3, 2, 32, 32, 5, 5, 1, 1, 2, 2}, 32},          // images smaller than kernels
  };
  unsigned seed = 1;
  for (const Grouped& g : cases) {
    CAPTURE(g.groups);
    for (const char* activation : {"none", "relu"}) {
      for (const bool all_channels : {true, false}) {
        const bool use_bias = seed % 3 != 0;
        check_conv(g.window, activation, use_bias, {1, 1, 1, 1}, seed++, g.groups, all_channels);
        check_conv(g.window, activation, use_bias, {2, 2, 2, 1}, seed++, g.groups, all_channels);
        check_conv(g.window, activation, use_bias, {1, 1, 2, 3}, seed++, g.groups, all_channels);
        check_conv(g.window, activation, use_bias, {1, 1, 1, 4}, seed++, g.groups, all_channels);
      }
    }
  }
}

TEST_CASE("pool2d: tiles of any cut compute what the whole does") {
  unsigned seed = 1;
  for (const Window& g : kWindows) {
    CAPTURE(g.kh);
    CAPTURE(g.c);
    for (const bool maximum : {true, false}) {
      for (const bool count_padding : {true, false}) {
        check_pool(g, maximum, count_padding, {1, 1, 1, 1}, seed++);
        check_pool(g, maximum, count_padding, {2, 2, 3, 2}, seed++);
      }
    }
  }
  for (const bool maximum : {true, false}) {
    check_pool({3, 10, 10, 6, 6, 2, 2, 2, 2, 0, 0}, maximum, true, {2, 2, 2, 2}, seed++);
    check_pool({3, 11, 9, 16, 16, 2, 2, 2, 2, 0, 0}, maximum, true, {1, 1, 1, 1}, seed++);
    check_pool({2, 28, 28, 40, 40, 3, 3, 2, 2, 1, 1}, maximum, false, {2, 2, 2, 2}, seed++);
  }
}

TEST_CASE("a window with more padding than kernel is refused") {
  Window g{1, 4, 4, 1, 1, 2, 2, 1, 1, 2, 0};
  auto attributes = g.attributes();
  attributes.insert(attributes.end(), {{"activation", "none"}, {"use_bias", "0"}, {"groups", "1"}});
  CHECK_THROWS_WITH_AS(make_kernel("conv2d", Attributes(attributes)), doctest::Contains("conv2d: "),
                       std::invalid_argument);
}

TEST_CASE("cuDNN's padding and the padding in memory make up a tile's") {
  for (const Window& g : kWindows) {
    Tensor x({g.n, g.h, g.w, g.c}), y({g.n, g.oh(), g.ow(), g.o});
    for (unsigned seed = 1; seed < 30; ++seed) {
      for (const Rect& out : random_tiles(y.shape, {1, 3, 3, 1}, seed)) {
        const WindowAxis axis(Attributes(g.attributes()), "h");
        const WindowTile t(axis, x.view(g.input_tile(out, true)), y.view(out), 1);
        const gpu::AxisPadding padding(t);
        CHECK(padding.both + padding.before == t.before);
        const std::int64_t padded = padding.before + t.in + padding.after + 2 * padding.both;
        CHECK((padded - t.kernel) / t.stride + 1 == t.out);
      }
    }
    // A whole tensor needs no copy.
    const WindowAxis axis(Attributes(g.attributes()), "h");
    const Rect whole = y.whole();
    const WindowTile t(axis, x.view(g.input_tile(whole, true)), y.view(whole), 1);
    CHECK(!gpu::AxisPadding(t).in_memory());
  }
}

}  // namespace
}  // namespace flexlegion::testing
