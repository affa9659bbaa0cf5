// matmul and multi_head_attention against plain loops, cut into tiles.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

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

struct AttentionShape {
  std::int64_t samples, queries, keys, heads, channels, value_channels;
};

// One sample and head, in double precision: adds the gradients that dy causes.
void attend(Case& c, bool causal, std::int64_t n, std::int64_t h, Tensor& y, Tensor& dy,
            std::vector<Tensor>& grads) {
  Tensor &q = c.inputs[0], &k = c.inputs[1], &v = c.inputs[2];
  const std::int64_t d = q.shape[3], e = v.shape[3];
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::int64_t i = 0; i < q.shape[1]; ++i) {
    const std::int64_t keys = causal ? i + 1 : k.shape[1];
    std::vector<double> weight(static_cast<std::size_t>(keys)), grad(weight);
    double sum = 0, mean = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (std::int64_t x = 0; x < d; ++x) score += double{q.at(n, i, h, x)} * k.at(n, j, h, x);
      sum += weight[static_cast<std::size_t>(j)] = std::exp(score * scale);
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      double& w = weight[static_cast<std::size_t>(j)];
      double& g = grad[static_cast<std::size_t>(j)];
      w /= sum;
      for (std::int64_t x = 0; x < e; ++x) {
        y.at(n, i, h, x) += static_cast<float>(w * v.at(n, j, h, x));
        g += double{dy.at(n, i, h, x)} * v.at(n, j, h, x);
        grads[2].at(n, j, h, x) += static_cast<float>(w * dy.at(n, i, h, x));
      }
      mean += w * g;
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double score_grad = weight[at] * (grad[at] - mean) * scale;
      for (std::int64_t x = 0; x < d; ++x) {
        grads[0].at(n, i, h, x) += static_cast<float>(score_grad * k.at(n, j, h, x));
        grads[1].at(n, j, h, x) += static_cast<float>(score_grad * q.at(n, i, h, x));
      }
    }
  }
}

Case attention_case(const AttentionShape& s, bool causal, unsigned seed) {
  Case c;
  c.type = "multi_head_attention";
  c.attributes = {{"causal", causal ? "1" : "0"}};
  c.inputs = {Tensor::random({s.samples, s.queries, s.heads, s.channels}, seed),
              Tensor::random({s.samples, s.keys, s.heads, s.channels}, seed + 1),
              Tensor::random({s.samples, s.keys, s.heads, s.value_channels}, seed + 2)};
  for (float& x : c.inputs[0].data) x *= 5;  // so that the weights differ
  c.output_shape = {s.samples, s.queries, s.heads, s.value_channels};
  c.reads_input = true;
  return c;
}

void check_attention(const AttentionShape& s, bool causal, const std::vector<int>& parts,
                     unsigned seed) {
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  CAPTURE(causal);
  Case c = attention_case(s, causal, seed);
  c.input_tile = [&](const Rect& tile, int i) {
    return tile_along(c.inputs[static_cast<std::size_t>(i)], tile, {0, i == 0 ? 1 : -1, 2, -1});
  };
  Tensor y(c.output_shape), dy = Tensor::random(c.output_shape, seed + 3);
  std::vector<Tensor> grads;
  for (const Tensor& input : c.inputs) grads.emplace_back(input.shape);
  for (std::int64_t n = 0; n < s.samples; ++n)
    for (std::int64_t h = 0; h < s.heads; ++h) attend(c, causal, n, h, y, dy, grads);
  const Results tiled = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(largest_difference(tiled.input_grads[i], grads[i]) < kTolerance);
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
    check_attention({2, 7, 7, 3, 4, 5}, causal, {1, 1, 1, 1}, seed++);
    check_attention({2, 7, 7, 3, 4, 5}, causal, {2, 3, 2, 1}, seed++);
    check_attention({1, 1, 1, 1, 1, 1}, causal, {1, 1, 1, 1}, seed++);
    // More queries than a block takes, and more scores of all heads than a block takes.
    check_attention({1, 150, 150, 2, 8, 8}, causal, {1, 1, 1, 1}, seed++);
    check_attention({1, 150, 150, 2, 8, 8}, causal, {1, 3, 2, 1}, seed++);
    check_attention({1, 300, 300, 5, 2, 3}, causal, {1, 2, 1, 1}, seed++);
  }
  check_attention({2, 5, 9, 2, 4, 3}, false, {2, 2, 2, 1}, seed++);
  check_attention({1, 70, 130, 2, 4, 3}, false, {1, 2, 1, 1}, seed++);
}

TEST_CASE("multi_head_attention: large scores, and gradients that nobody wants") {
  Case c = attention_case({1, 6, 6, 2, 4, 4}, true, 1);
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
  for (std::size_t i = 0; i < 3; ++i) {
    Tensor alone(c.inputs[i].shape, kNan);
    task.input_grads.assign(3, TensorView());
    task.input_grads[i] = alone.view(alone.whole());
    kernel->backward(task);
    CHECK(alone.data == all[i].data);
  }
}

}  // namespace flexlegion::testing
