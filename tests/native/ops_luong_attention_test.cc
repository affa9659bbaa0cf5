// luong_attention against its definition, written out; gradients against differences of it.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct Sizes {
  std::int64_t n, steps, source, d, e, units;
};

// The operands in double precision, so that differences are gradients: h, s, W_a, W_c.
struct Operands {
  Sizes size;
  std::vector<std::vector<double>> data;

  Operands(const Sizes& s, const Case& c) : size(s) {
    for (const auto* tensors : {&c.inputs, &c.weights}) {
      for (const Tensor& t : *tensors) data.emplace_back(t.data.begin(), t.data.end());
    }
  }

  // The output of a step of a sample.
  std::vector<double> output(std::int64_t sample, std::int64_t step) const {
    const auto [n, steps, source, d, e, units] = size;
    const double* const h = &data[0][(sample * steps + step) * d];
    const double* const s = &data[1][sample * source * e];
    std::vector<double> weights(source), joined(e + d), result(units);
    double total = 0;
    for (std::int64_t p = 0; p < source; ++p) {
      double score = 0;
      for (std::int64_t i = 0; i < d; ++i) {
        for (std::int64_t j = 0; j < e; ++j) score += h[i] * data[2][i * e + j] * s[p * e + j];
      }
      total += weights[p] = std::exp(score);
    }
    for (std::int64_t p = 0; p < source; ++p) {
      for (std::int64_t j = 0; j < e; ++j) joined[j] += weights[p] / total * s[p * e + j];
    }
    std::copy_n(h, d, joined.begin() + e);
    for (std::int64_t u = 0; u < units; ++u) {
      double sum = 0;
      for (std::int64_t k = 0; k < e + d; ++k) sum += data[3][u * (e + d) + k] * joined[k];
      result[u] = std::tanh(sum);
    }
    return result;
  }

  // The sum of the outputs times their gradients.
  double goal(const Tensor& output_grad) const {
    double sum = 0;
    for (std::int64_t i = 0; i < size.n; ++i) {
      for (std::int64_t t = 0; t < size.steps; ++t) {
        const auto y = output(i, t);
        for (std::int64_t u = 0; u < size.units; ++u) {
          sum += y[u] * output_grad.data[(i * size.steps + t) * size.units + u];
        }
      }
    }
    return sum;
  }

  Tensor gradient(std::size_t operand, const Shape& shape, const Tensor& output_grad) {
    constexpr double kStep = 1e-5;
    Tensor result(shape);
    for (std::size_t i = 0; i < result.data.size(); ++i) {
      double& x = data[operand][i];
      const double was = x;
      x = was + kStep;
      const double above = goal(output_grad);
      x = was - kStep;
      const double below = goal(output_grad);
      x = was;
      result.data[i] = static_cast<float>((above - below) / (2 * kStep));
    }
    return result;
  }
};

Case attention_case(const Sizes& s) {
  Case c;
  c.type = "luong_attention";
  c.inputs = {Tensor::random({s.n, s.steps, s.d}, 1), Tensor::random({s.n, s.source, s.e}, 2)};
  c.weights = {Tensor::random({s.d, s.e}, 3), Tensor::random({s.units, s.e + s.d}, 4)};
  for (Tensor& weight : c.weights) {
    for (float& x : weight.data) x *= 0.5f;
  }
  c.output_shape = {s.n, s.steps, s.units};
  c.reads_input = c.reads_output = true;
  c.input_tile = [s](const Rect& tile, int i) {
    Rect rect = Rect::of_shape(i == 0 ? Shape{s.n, s.steps, s.d} : Shape{s.n, s.source, s.e});
    for (int dim = 0; dim < 2 - i; ++dim) rect.lo[dim] = tile.lo[dim], rect.hi[dim] = tile.hi[dim];
    return rect;
  };
  c.weight_tile = [s](const Rect& tile, int i) {
    Rect rect = Rect::of_shape(i == 0 ? Shape{s.d, s.e} : Shape{s.units, s.e + s.d});
    if (i == 1) rect.lo[0] = tile.lo[2], rect.hi[0] = tile.hi[2];
    return rect;
  };
  return c;
}

TEST_CASE("luong_attention: every split") {
  for (const Sizes& s : {Sizes{2, 3, 4, 3, 5, 4}, Sizes{1, 1, 1, 1, 1, 1},
                         Sizes{2, 1, 5, 20, 16, 20}, Sizes{12, 3, 2, 4, 3, 2}}) {
    CAPTURE(s.n);
    Case c = attention_case(s);
    const Tensor output_grad = Tensor::random(c.output_shape, 5);
    Operands operands(s, c);
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < 2; ++i) {
      gradients.push_back(operands.gradient(i, c.inputs[i].shape, output_grad));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      gradients.push_back(operands.gradient(2 + i, c.weights[i].shape, output_grad));
    }
    for (unsigned seed = 0; seed < 4; ++seed) {
      const auto parts = seed == 0 ? std::vector<int>{1, 1, 1} : std::vector<int>{2, 2, 3};
      Results results = run_tiles(c, random_tiles(c.output_shape, parts, seed), output_grad);
      for (std::int64_t i = 0; i < s.n; ++i) {
        for (std::int64_t t = 0; t < s.steps; ++t) {
          const auto y = operands.output(i, t);
          for (std::int64_t u = 0; u < s.units; ++u) {
            CHECK(results.output.at(i, t, u) == doctest::Approx(y[u]).epsilon(1e-4));
          }
        }
      }
      for (std::size_t i = 0; i < 2; ++i) {
        CAPTURE(i);
        CHECK(largest_difference(results.input_grads[i], gradients[i]) < kTolerance);
        CHECK(largest_difference(results.weight_grads[i], gradients[2 + i]) < kTolerance);
      }
    }
  }
}

TEST_CASE("luong_attention adds to gradients") {
  Case c = attention_case({3, 2, 4, 18, 17, 20});
  const auto kernel = make_kernel(c.type, Attributes(Entries{}), kTested);
  CHECK(kernel->accumulates());
  Tensor output_grad = Tensor::random(c.output_shape, 5), y(c.output_shape);
  std::vector<Tensor> fresh, added;
  KernelTask task;
  for (auto* tensors : {&c.inputs, &c.weights}) {
    for (Tensor& t : *tensors) {
      (tensors == &c.inputs ? task.inputs : task.weights).push_back(t.view(t.whole()));
      fresh.emplace_back(t.shape, kNan);
      added.emplace_back(t.shape, 0.5f);
    }
  }
  task.outputs = {y.view(y.whole())};
  kernel->forward(task);
  task.output_grads = {output_grad.view(y.whole())};
  for (const bool adds : {false, true}) {
    auto& to = adds ? added : fresh;
    task.input_grads = {to[0].view(to[0].whole()), to[1].view(to[1].whole())};
    task.weight_grads = {to[2].view(to[2].whole()), to[3].view(to[3].whole())};
    task.adds_input_grad = task.adds_weight_grad = {adds, adds};
    kernel->backward(task);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    for (float& x : fresh[i].data) x += 0.5f;
    CHECK(largest_difference(added[i], fresh[i]) < kTolerance);
  }
}

}  // namespace
}  // namespace flexlegion::testing
