// cosine and angular_margin against their definitions, written out; gradients against differences.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return Numbers(t.data.begin(), t.data.end()); }

// Derivatives of sum(output_grad * output(x)) by each element of x.
Tensor gradient(const Shape& shape, Numbers x, const Tensor& output_grad,
                const std::function<Numbers(const Numbers&)>& output) {
  constexpr double kStep = 1e-6;
  const auto goal = [&] {
    const Numbers y = output(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * output_grad.data[i];
    return sum;
  };
  Tensor result(shape);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double was = x[i];
    x[i] = was + kStep;
    const double above = goal();
    x[i] = was - kStep;
    result.data[i] = static_cast<float>((above - goal()) / (2 * kStep));
    x[i] = was;
  }
  return result;
}

TEST_CASE("cosine: every split") {
  const std::int64_t n = 5, d = 7, units = 6;
  Case c;
  c.type = "cosine";
  c.inputs = {Tensor::random({n, d}, 1)};
  c.weights = {Tensor::random({units, d}, 2)};
  c.output_shape = {n, units};
  c.reads_input = c.reads_output = true;
  const auto rows_of = [&](int dim) {
    return [=](const Rect& tile, int) {
      Rect rect = Rect::of_shape({dim == 0 ? n : units, d});
      rect.lo[0] = tile.lo[dim], rect.hi[0] = tile.hi[dim];
      return rect;
    };
  };
  c.input_tile = rows_of(0);
  c.weight_tile = rows_of(1);
  const auto output = [=](const Numbers& x, const Numbers& w) {
    Numbers y;
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t u = 0; u < units; ++u) {
        double xx = 0, ww = 0, xw = 0;
        for (std::int64_t i = 0; i < d; ++i) {
          const double a = x[r * d + i], b = w[u * d + i];
          xx += a * a, ww += b * b, xw += a * b;
        }
        y.push_back(xw / std::sqrt(xx * ww));
      }
    }
    return y;
  };
  const Numbers x = numbers(c.inputs[0]), w = numbers(c.weights[0]), y = output(x, w);
  const Tensor output_grad = Tensor::random(c.output_shape, 3);
  const Tensor dx = gradient({n, d}, x, output_grad, [&](const auto& v) { return output(v, w); });
  const Tensor dw =
      gradient({units, d}, w, output_grad, [&](const auto& v) { return output(x, v); });
  for (unsigned seed = 0; seed < 4; ++seed) {
    const auto parts = seed == 0 ? std::vector<int>{1, 1} : std::vector<int>{2, 3};
    Results results = run_tiles(c, random_tiles(c.output_shape, parts, seed), output_grad);
    for (std::size_t i = 0; i < y.size(); ++i) {
      CHECK(results.output.data[i] == doctest::Approx(y[i]).epsilon(1e-5));
    }
    CHECK(largest_difference(results.input_grads[0], dx) < kTolerance);
    CHECK(largest_difference(results.weight_grads[0], dw) < kTolerance);
  }
}

TEST_CASE("angular_margin: every split, angles below and above pi - margin") {
  const std::int64_t n = 6, classes = 5;
  constexpr double kPi = 3.14159265358979, kMargin = 0.5, kScale = 4;
  for (const bool of_angle : {false, true}) {
    Case c;
    c.type = "angular_margin";
    c.attributes = {{"scale", "4.0"}, {"margin", "0.5"}, {"of_angle", of_angle ? "1" : "0"}};
    c.inputs = {Tensor::random({n, classes}, 1), Tensor({n})};
    std::int64_t labels[] = {0, 3, 4, 2, -1, 1};
    for (std::int64_t r = 0; r < n; ++r) {
      reinterpret_cast<std::int32_t*>(c.inputs[1].data.data())[r] =
          static_cast<std::int32_t>(labels[r]);
    }
    c.inputs[0].at(1, 3) = -0.95f;
    c.inputs[0].at(2, 4) = 0.9f;
    c.output_shape = {n, classes};
    c.reads_input = true;
    c.input_tile = [=](const Rect& tile, int i) {
      Rect rect = i == 0 ? tile : Rect::of_shape({n});
      rect.lo[0] = tile.lo[0], rect.hi[0] = tile.hi[0];
      return rect;
    };
    const auto output = [&](const Numbers& x) {
      Numbers y;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto r = static_cast<std::int64_t>(i) / classes;
        const double angle = std::acos(x[i]);
        double value = x[i];
        if (static_cast<std::int64_t>(i) % classes == labels[r]) {
          const double moved = angle + kMargin > kPi ? value - kMargin * std::sin(kMargin)
                                                     : std::cos(angle + kMargin);
          value = of_angle ? moved : value - kMargin;
        }
        y.push_back(kScale * value);
      }
      return y;
    };
    const Numbers x = numbers(c.inputs[0]), y = output(x);
    const Tensor output_grad = Tensor::random(c.output_shape, 3);
    const Tensor dx = gradient({n, classes}, x, output_grad, output);
    const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
    for (unsigned seed = 0; seed < 4; ++seed) {
      Tensor found(c.output_shape, kNan), grad(c.output_shape, kNan), added(c.output_shape, 1);
      const auto parts = seed == 0 ? std::vector<int>{1, 1} : std::vector<int>{3, 2};
      for (const Rect& tile : random_tiles(c.output_shape, parts, seed)) {
        KernelTask task;
        task.run.training = 1;
        task.inputs = {c.inputs[0].view(tile), c.inputs[1].view(c.input_tile(tile, 1))};
        task.outputs = {found.view(tile)};
        kernel->forward(task);
        task.run.training = 0;  // in evaluation, there is no margin
        Tensor plain(c.output_shape);
        task.outputs = {plain.view(tile)};
        kernel->forward(task);
        for (std::int64_t r = tile.lo[0]; r < tile.hi[0]; ++r) {
          for (std::int64_t k = tile.lo[1]; k < tile.hi[1]; ++k) {
            CHECK(plain.at(r, k) == doctest::Approx(kScale * c.inputs[0].at(r, k)));
          }
        }
        task.run.training = 1;
        Tensor dy = output_grad;
        task.outputs = {TensorView()};
        task.output_grads = {dy.view(tile)};
        task.input_grads = {grad.view(tile), TensorView()};
        kernel->backward(task);
        task.input_grads = {added.view(tile), TensorView()};
        task.adds_input_grad = {true, false};
        kernel->backward(task);
      }
      for (std::size_t i = 0; i < y.size(); ++i) {
        CHECK(found.data[i] == doctest::Approx(y[i]).epsilon(1e-5));
        CHECK(grad.data[i] == doctest::Approx(dx.data[i]).epsilon(1e-4));
        CHECK(added.data[i] == doctest::Approx(1 + dx.data[i]).epsilon(1e-4));
      }
    }
  }
}

}  // namespace
}  // namespace flexlegion::testing
