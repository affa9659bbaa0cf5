// matmul, multi_head_attention and rotary against plain loops, cut into tiles.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ops/dropout.h"
#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

// The tile of an operand: dimension d takes the range of the output's dimension along[d], or all of
// it where that is -1.
Rect tile_along(const Tensor& operand, const Rect& output_tile, const std::vector<int>& along) {
  Rect tile = operand.whole();
  for (std::size_t d = 0; d < along.size(); ++d) {
    if (along[d] < 0) continue;
    tile.lo[d] = output_tile.lo[static_cast<std::size_t>(along[d])];
    tile.hi[d] = output_tile.hi[static_cast<std::size_t>(along[d])];
  }
  return tile;
}

void check_matmul(const Shape& batch, std::int64_t rows, std::int64_t inner, std::int64_t cols,
                  const std::vector<int>& parts, unsigned seed) {
  const auto shape = [&](std::int64_t r, std::int64_t c) {
    Shape s = batch;
    s.insert(s.end(), {r, c});
    return s;
  };
  Case c;
  c.type = "matmul";
  c.inputs = {Tensor::random(shape(rows, inner), seed),
              Tensor::random(shape(inner, cols), seed + 1)};
  c.output_shape = shape(rows, cols);
  c.reads_input = true;
  const int rank = static_cast<int>(c.output_shape.size());
  c.input_tile = [&](const Rect& tile, int i) {
    std::vector<int> along(c.output_shape.size());
    for (int d = 0; d < rank; ++d) along[static_cast<std::size_t>(d)] = d;
    along[static_cast<std::size_t>(i == 0 ? rank - 1 : rank - 2)] = -1;
    return tile_along(c.inputs[static_cast<std::size_t>(i)], tile, along);
  };
  Tensor y(c.output_shape), dy = Tensor::random(c.output_shape, seed + 2);
  Tensor da(c.inputs[0].shape), db(c.inputs[1].shape);
  const std::int64_t matrices = Rect::of_shape(batch).volume();
  for (std::int64_t n = 0; n < matrices; ++n) {
    float *const a = c.inputs[0].data.data() + n * rows * inner, *const b =
                                                                     c.inputs[1].data.data() +
                                                                     n * inner * cols;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        for (std::int64_t k = 0; k < inner; ++k) {
          const auto at = static_cast<std::size_t>((n * rows + i) * cols + j);
          y.data[at] += a[i * inner + k] * b[k * cols + j];
          da.data[static_cast<std::size_t>((n * rows + i) * inner + k)] +=
              dy.data[at] * b[k * cols + j];
          db.data[static_cast<std::size_t>((n * inner + k) * cols + j)] +=
              dy.data[at] * a[i * inner + k];
        }
  }
  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[0], da) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[1], db) < kTolerance);
}

struct Attention {
  std::int64_t samples, queries, keys, heads, channels, value_channels;
  bool causal = false;
  std::int64_t groups = 0;  // of heads with the same keys; 0: as many as heads
  Shape bias = {};
  double scale = 0;  // 0: 1 / sqrt(channels)
  double dropout = 0;

  double scores_scale() const {
    return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(channels));
  }
};

RunState training_run() {
  RunState run;
  run.training = 1;
  run.seed = 7;
  run.step = 3;
  return run;
}

// One sample and head, in double precision: adds the gradients that dy causes.
void attend(Case& c, const Attention& s, std::int64_t n, std::int64_t h, Tensor& y, Tensor& dy,
            std::vector<Tensor>& grads) {
  Tensor &q = c.inputs[0], &k = c.inputs[1], &v = c.inputs[2];
  const DropoutMask mask(s.dropout, 5, c.run, 0);
  const std::int64_t g = h / (s.heads / k.shape[2]);
  const auto of_bias = [&](std::vector<Tensor>& tensors, std::int64_t i, std::int64_t j) -> float& {
    const auto index = [&](std::size_t d, std::int64_t x) { return s.bias[d] == 1 ? 0 : x; };
    return tensors[3].at(index(0, n), index(1, h), index(2, i), index(3, j));
  };
  for (std::int64_t i = 0; i < s.queries; ++i) {
    const std::int64_t keys = s.causal ? std::min(i + 1, s.keys) : s.keys;
    std::vector<double> weight(static_cast<std::size_t>(keys)), kept(weight), grad(weight);
    double sum = 0, mean = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (std::int64_t x = 0; x < s.channels; ++x) {
        score += s.scores_scale() * q.at(n, i, h, x) * k.at(n, j, g, x);
      }
      if (!s.bias.empty()) score += of_bias(c.inputs, i, j);
      sum += weight[static_cast<std::size_t>(j)] = std::exp(score);
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const std::int64_t place = ((n * s.heads + h) * s.queries + i) * s.keys + j;
      const bool drop =
          s.dropout > 0 && drops(mask.key, static_cast<std::uint64_t>(place), mask.threshold);
      weight[at] = sum > 0 ? weight[at] / sum : 0;
      kept[at] = drop ? 0 : weight[at] / (1 - s.dropout);
      for (std::int64_t x = 0; x < s.value_channels; ++x) {
        y.at(n, i, h, x) += static_cast<float>(kept[at] * v.at(n, j, g, x));
        grad[at] += double{dy.at(n, i, h, x)} * v.at(n, j, g, x);
        grads[2].at(n, j, g, x) += static_cast<float>(kept[at] * dy.at(n, i, h, x));
      }
      mean += kept[at] * grad[at];
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double biased = kept[at] * grad[at] - weight[at] * mean;
      if (!s.bias.empty()) of_bias(grads, i, j) += static_cast<float>(biased);
      const double score_grad = biased * s.scores_scale();
      for (std::int64_t x = 0; x < s.channels; ++x) {
        grads[0].at(n, i, h, x) += static_cast<float>(score_grad * k.at(n, j, g, x));
        grads[1].at(n, j, g, x) += static_cast<float>(score_grad * q.at(n, i, h, x));
      }
    }
  }
}

Case attention_case(const Attention& s, unsigned seed) {
  Case c;
  c.type = "multi_head_attention";
  c.attributes = {{"causal", s.causal ? "1" : "0"},
                  {"scale", std::to_string(s.scores_scale())},
                  {"dropout", std::to_string(s.dropout)},
                  {"id", "5"}};
  const std::int64_t groups = s.groups > 0 ? s.groups : s.heads;
  c.inputs = {Tensor::random({s.samples, s.queries, s.heads, s.channels}, seed),
              Tensor::random({s.samples, s.keys, groups, s.channels}, seed + 1),
              Tensor::random({s.samples, s.keys, groups, s.value_channels}, seed + 2)};
  if (!s.bias.empty()) c.inputs.push_back(Tensor::random(s.bias, seed + 3));
  for (float& x : c.inputs[0].data) x *= 5;  // so that the weights differ
  c.output_shape = {s.samples, s.queries, s.heads, s.value_channels};
  c.reads_input = true;
  c.run = training_run();
  c.input_tile = [s, groups, inputs = c.inputs](const Rect& tile, int i) {
    const Tensor& operand = inputs[static_cast<std::size_t>(i)];
    if (i == 0) return tile_along(operand, tile, {0, 1, 2, -1});
    if (i == 3) {
      const auto along = [&](std::size_t d, int output) { return s.bias[d] == 1 ? -1 : output; };
      Rect result = tile_along(operand, tile, {along(0, 0), along(1, 2), along(2, 1), -1});
      if (s.causal) result.hi[3] = std::min(result.hi[3], tile.hi[1]);
      return result;
    }
    Rect result = tile_along(operand, tile, {0, -1, -1, -1});
    if (s.causal) result.hi[1] = std::min(result.hi[1], tile.hi[1]);  // what stands before
    const std::int64_t sharing = s.heads / groups;
    result.lo[2] = tile.lo[2] / sharing;
    result.hi[2] = (tile.hi[2] + sharing - 1) / sharing;
    return result;
  };
  return c;
}

// `masked` sets some of the biases to -infinity.
void check_attention(const Attention& s, const std::vector<int>& parts, unsigned seed,
                     bool masked = false) {
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  CAPTURE(s.causal);
  CAPTURE(s.groups);
  CAPTURE(s.dropout);
  CAPTURE(s.bias);
  Case c = attention_case(s, seed);
  for (std::size_t i = 0; masked && i < c.inputs[3].data.size(); ++i) {
    // Whole rows, too.
    if (i % 3 == 0 || i < static_cast<std::size_t>(s.bias[3])) c.inputs[3].data[i] = -INFINITY;
  }
  Tensor y(c.output_shape), dy = Tensor::random(c.output_shape, seed + 3);
  std::vector<Tensor> grads;
  for (const Tensor& input : c.inputs) grads.emplace_back(input.shape);
  for (std::int64_t n = 0; n < s.samples; ++n)
    for (std::int64_t h = 0; h < s.heads; ++h) attend(c, s, n, h, y, dy, grads);
  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    CAPTURE(i);
    CHECK(largest_difference(tiled.input_grads[i], grads[i]) < kTolerance);
  }
}

void check_rotary(const Shape& shape, const Shape& angles, bool interleaved,
                  const std::vector<int>& parts, unsigned seed) {
  CAPTURE(shape);
  CAPTURE(interleaved);
  Case c;
  c.type = "rotary";
  c.attributes = {{"interleaved", interleaved ? "1" : "0"}};
  c.inputs = {Tensor::random(shape, seed), Tensor::random(angles, seed + 1),
              Tensor::random(angles, seed + 2)};
  c.output_shape = shape;
  c.reads_input = true;
  const int sample = angles[0] == 1 ? -1 : 0;
  c.input_tile = [&](const Rect& tile, int i) {
    if (i == 0) return tile;
    return tile_along(c.inputs[static_cast<std::size_t>(i)], tile, {sample, 1});
  };
  const std::int64_t n_last = shape[0], s_last = shape[1], h_last = shape[2], d = shape[3];
  Tensor &x = c.inputs[0], y(shape), dx(shape), dy = Tensor::random(shape, seed + 3);
  for (std::int64_t n = 0; n < n_last; ++n)
    for (std::int64_t s = 0; s < s_last; ++s)
      for (std::int64_t h = 0; h < h_last; ++h)
        for (std::int64_t i = 0; i < d / 2; ++i) {
          const std::int64_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + d / 2;
          const std::int64_t row = ((angles[0] == 1 ? 0 : n) * s_last + s) * d;
          float *const cos = c.inputs[1].data.data() + row, *const sin =
                                                                c.inputs[2].data.data() + row;
          y.at(n, s, h, a) = x.at(n, s, h, a) * cos[a] - x.at(n, s, h, b) * sin[a];
          y.at(n, s, h, b) = x.at(n, s, h, b) * cos[b] + x.at(n, s, h, a) * sin[b];
          dx.at(n, s, h, a) = dy.at(n, s, h, a) * cos[a] + dy.at(n, s, h, b) * sin[b];
          dx.at(n, s, h, b) = dy.at(n, s, h, b) * cos[b] - dy.at(n, s, h, a) * sin[a];
        }
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  Tensor result(shape, kNan), gradient(shape, 1.0f);
  for (const bool adds : {false, true}) {
    for (const Rect& tile : random_tiles(shape, parts, seed)) {
      KernelTask task;
      for (int i = 0; i < 3; ++i) {
        task.inputs.push_back(c.inputs[static_cast<std::size_t>(i)].view(c.input_tile(tile, i)));
      }
      task.outputs = {result.view(tile)};
      kernel->forward(task);
      task.inputs[0] = TensorView();  // which the backward pass does not need
      task.outputs[0] = TensorView();
      task.output_grads = {dy.view(tile)};
      task.input_grads = {gradient.view(tile), TensorView(), TensorView()};
      task.adds_input_grad = {adds};
      kernel->backward(task);
    }
    CHECK(largest_difference(result, y) < kTolerance);
    CHECK(largest_difference(gradient, dx) < kTolerance);
    for (std::size_t i = 0; i < dx.data.size(); ++i) dx.data[i] *= 2;
  }
}

}  // namespace

TEST_CASE("matmul: tiles of any cut compute what the whole does") {
  unsigned seed = 1;
  check_matmul({3}, 5, 7, 9, {1, 1, 1}, seed++);
  check_matmul({3}, 5, 7, 9, {2, 2, 3}, seed++);
  check_matmul({1}, 1, 8, 1, {1, 1, 1}, seed++);
  check_matmul({2, 3}, 6, 1, 4, {2, 2, 2, 2}, seed++);
  check_matmul({2, 3, 2}, 6, 20, 33, {2, 2, 2, 2, 2}, seed++);
}

TEST_CASE("multi_head_attention: tiles of any cut compute what the whole does") {
  unsigned seed = 1;
  for (const bool causal : {false, true}) {
    check_attention({2, 7, 7, 3, 4, 5, causal}, {1, 1, 1, 1}, seed++);
    check_attention({2, 7, 7, 3, 4, 5, causal}, {2, 3, 2, 1}, seed++);
    check_attention({1, 1, 1, 1, 1, 1, causal}, {1, 1, 1, 1}, seed++);
    // More queries than a block takes, and more scores of all heads than a block takes.
    check_attention({1, 150, 150, 2, 8, 8, causal}, {1, 1, 1, 1}, seed++);
    check_attention({1, 150, 150, 2, 8, 8, causal}, {1, 3, 2, 1}, seed++);
    check_attention({1, 300, 300, 5, 2, 3, causal}, {1, 2, 1, 1}, seed++);
    check_attention({2, 5, 9, 2, 4, 3, causal}, {2, 2, 2, 1}, seed++);
    check_attention({2, 9, 5, 2, 4, 3, causal}, {2, 2, 2, 1}, seed++);
    check_attention({1, 70, 130, 2, 4, 3, causal}, {1, 2, 1, 1}, seed++);
    check_attention({1, 130, 70, 2, 4, 3, causal, 0, {}, 0.3}, {1, 2, 1, 1}, seed++);
  }
}

TEST_CASE("multi_head_attention: groups of heads share keys, wherever heads are cut") {
  unsigned seed = 1;
  for (const bool causal : {false, true}) {
    for (const std::int64_t groups : {1, 2, 3, 6}) {
      check_attention({2, 5, 7, 6, 4, 3, causal, groups}, {1, 1, 1, 1}, seed++);
      check_attention({2, 5, 7, 6, 4, 3, causal, groups}, {2, 2, 5, 1}, seed++);
      check_attention({2, 9, 5, 6, 4, 3, causal, groups}, {1, 2, 3, 1}, seed++);
    }
    check_attention({1, 70, 70, 8, 4, 3, causal, 2}, {1, 1, 3, 1}, seed++);
  }
}

TEST_CASE("multi_head_attention: biases of every broadcast, and masks") {
  unsigned seed = 1;
  for (int which = 0; which < 16; ++which) {
    const Shape bias = {which & 1 ? 2 : 1, which & 2 ? 4 : 1, which & 4 ? 5 : 1, which & 8 ? 7 : 1};
    check_attention({2, 5, 7, 4, 3, 6, false, 2, bias}, {1, 1, 1, 1}, seed++);
    check_attention({2, 5, 7, 4, 3, 6, which % 3 == 0, 0, bias, 0.4}, {2, 2, 3, 1}, seed++);
    check_attention({2, 5, 7, 4, 3, 6, false, 2, bias}, {2, 2, 3, 1}, seed++, true);
  }
  check_attention({1, 150, 150, 2, 8, 8, false, 1, {1, 2, 150, 150}}, {1, 1, 1, 1}, seed++);
}

TEST_CASE("multi_head_attention: weights are dropped, wherever tensors are cut") {
  unsigned seed = 1;
  for (const std::int64_t groups : {2, 6}) {
    check_attention({2, 5, 7, 6, 4, 3, false, groups, {}, 0, 0.4}, {1, 1, 1, 1}, seed++);
    check_attention({2, 5, 7, 6, 4, 3, true, groups, {}, 0, 0.4}, {2, 3, 4, 1}, seed++);
    check_attention({2, 5, 7, 6, 4, 3, false, groups, {2, 1, 5, 7}, 0.7, 0.4}, {2, 3, 4, 1}, seed++,
                    true);
  }
  check_attention({1, 150, 150, 2, 8, 8, true, 0, {}, 0, 0.1}, {1, 2, 1, 1}, seed++);
}

TEST_CASE("multi_head_attention: nothing is dropped but in training") {
  const Attention s{2, 5, 7, 2, 4, 3, false, 0, {}, 0, 0.5};
  Attention whole = s;
  whole.dropout = 0;
  std::vector<Tensor> outputs;
  for (const Attention& attention : {s, whole}) {
    Case c = attention_case(attention, 1);
    const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
    outputs.emplace_back(c.output_shape);
    KernelTask task;
    for (Tensor& input : c.inputs) task.inputs.push_back(input.view(input.whole()));
    task.outputs = {outputs.back().view(outputs.back().whole())};
    task.run = c.run;
    task.run.training = 0;
    kernel->forward(task);
  }
  CHECK(outputs[0].data == outputs[1].data);
}

TEST_CASE("rotary: tiles of any cut compute what the whole does") {
  unsigned seed = 1;
  for (const bool interleaved : {false, true}) {
    check_rotary({2, 5, 3, 6}, {1, 5, 6}, interleaved, {1, 1, 1, 1}, seed++);
    check_rotary({2, 5, 3, 6}, {2, 5, 6}, interleaved, {2, 3, 2, 1}, seed++);
    check_rotary({3, 4, 3, 34}, {1, 4, 1, 34}, interleaved, {2, 3, 2, 1}, seed++);
    check_rotary({3, 4, 1, 2}, {3, 4, 1, 2}, interleaved, {2, 3, 1, 1}, seed++);
  }
}

TEST_CASE("multi_head_attention: large scores, and gradients that nobody wants") {
  Case c = attention_case({1, 6, 6, 2, 4, 4, true, 0, {1, 2, 1, 6}}, 1);
  for (float& x : c.inputs[0].data) x *= 1e4f;
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  Tensor y(c.output_shape), dy(c.output_shape, 1.0f);
  KernelTask task;
  for (Tensor& input : c.inputs) task.inputs.push_back(input.view(input.whole()));
  task.outputs = {y.view(y.whole())};
  kernel->forward(task);
  for (const float value : y.data) CHECK_UNARY(std::abs(value) <= 1.0f);  // a mean of values

  task.output_grads = {dy.view(dy.whole())};
  std::vector<Tensor> all;
  for (const Tensor& input : c.inputs) all.emplace_back(input.shape);
  for (Tensor& grad : all) task.input_grads.push_back(grad.view(grad.whole()));
  kernel->backward(task);
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    Tensor alone(c.inputs[i].shape, kNan);
    task.input_grads.assign(c.inputs.size(), TensorView());
    task.input_grads[i] = alone.view(alone.whole());
    kernel->backward(task);
    CHECK(alone.data == all[i].data);
  }
}

}  // namespace flexlegion::testing
