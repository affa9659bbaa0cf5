// Element-wise programs: broadcasting under tiles, their gradients, and the functions' precision.
#include <cmath>
#include <cstring>

#include "ops/vector_math.h"
#include "ops_harness.h"

using namespace flexlegion;
using namespace flexlegion::testing;

namespace {

// x (4, 5, 6) * row (1, 6) + sigmoid(column (4, 1, 1)) / plane (1, 5, 6)
Case broadcast_case() {
  Case c;
  c.type = "expression";
  c.attributes = {
      {"inputs", "4"}, {"integers", ""}, {"program", "multiply 0 1;sigmoid 2;divide 5 3;add 4 6"}};
  c.inputs = {Tensor::random({4, 5, 6}, 1), Tensor::random({1, 6}, 2), Tensor::random({4, 1, 1}, 3),
              Tensor::random({1, 5, 6}, 4)};
  for (float& v : c.inputs[3].data) v += v > 0 ? 2.0f : -2.0f;
  c.output_shape = {4, 5, 6};
  c.reads_input = true;
  c.input_tile = [](const Rect& tile, int operand) {
    Rect r = tile;
    if (operand == 1) {
      r = Rect::of_shape({1, 6});
      r.lo[1] = tile.lo[2];
      r.hi[1] = tile.hi[2];
    }
    for (int d = 0; operand >= 2 && d < 3; ++d) {
      if (operand == 2 ? d > 0 : d == 0) {
        r.lo[d] = 0;
        r.hi[d] = 1;
      }
    }
    return r;
  };
  return c;
}

}  // namespace

TEST_CASE("expression broadcasts, and sums gradients over what it repeats") {
  Case c = broadcast_case();
  Tensor dy = Tensor::random(c.output_shape, 9), y(c.output_shape);
  std::vector<Tensor> grads;
  for (const Tensor& input : c.inputs) grads.emplace_back(input.shape);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 5; ++j) {
      for (int k = 0; k < 6; ++k) {
        const float x = c.inputs[0].at(i, j, k), row = c.inputs[1].at(0, k);
        const float plane = c.inputs[3].at(0, j, k), g = dy.at(i, j, k);
        const float s = 1.0f / (1.0f + std::exp(-c.inputs[2].at(i, 0, 0)));
        y.at(i, j, k) = x * row + s / plane;
        grads[0].at(i, j, k) = g * row;
        grads[1].at(0, k) += g * x;
        grads[2].at(i, 0, 0) += g / plane * s * (1 - s);
        grads[3].at(0, j, k) -= g * s / (plane * plane);
      }
    }
  }
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<Rect> tiles =
        seed == 0 ? std::vector<Rect>{y.whole()} : random_tiles(c.output_shape, {3, 3, 3}, seed);
    const Results results = run_tiles(c, tiles, dy);
    CHECK(largest_difference(results.output, y) < kTolerance);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      CHECK(largest_difference(results.input_grads[i], grads[i]) < kTolerance);
    }
  }
}

TEST_CASE("expression repeats a number over more than a block, and copies") {
  Case c;
  c.type = "expression";
  c.attributes = {{"inputs", "1"}, {"integers", ""}, {"program", ""}};
  c.inputs = {Tensor::random({1, 1}, 1)};
  c.output_shape = {30, 700};
  c.input_tile = [](const Rect&, int) { return Rect::of_shape({1, 1}); };
  Tensor dy(c.output_shape, 0.25f);
  const Results results = run_tiles(c, random_tiles(c.output_shape, {2, 3}, 5), dy);
  CHECK(largest_difference(results.output, Tensor(c.output_shape, c.inputs[0].at(0, 0))) == 0);
  CHECK(results.input_grads[0].data[0] == doctest::Approx(30 * 700 * 0.25));
}

TEST_CASE("expression converts integers") {
  Tensor x({2, 3}), y({2, 3});
  for (int i = 0; i < 6; ++i) {
    const std::int32_t value = i - 3;
    std::memcpy(&x.data[static_cast<std::size_t>(i)], &value, sizeof(value));
  }
  const auto kernel = make_kernel(
      "expression",
      Attributes({{"inputs", "1"}, {"integers", "0"}, {"program", "number 0.5;multiply 0 1"}}),
      kTested);
  KernelTask task;
  task.inputs = {x.view(x.whole())};
  task.outputs = {y.view(y.whole())};
  kernel->forward(task);
  for (int i = 0; i < 6; ++i) CHECK(y.data[static_cast<std::size_t>(i)] == 0.5f * (i - 3));
}

TEST_CASE("expression refuses what is no program") {
  for (const char* program : {"nothing 0", "add 0 1", "number x", "exp"}) {
    CHECK_THROWS_AS(
        make_kernel("expression",
                    Attributes({{"inputs", "1"}, {"integers", ""}, {"program", program}}), kTested),
        std::invalid_argument);
  }
}

TEST_CASE("vectorised functions are precise to a few units in the last place") {
  const auto compare = [](float from, float to, auto mine, auto exact) {
    double worst = 0;
    for (int i = 0; i <= 20000; ++i) {
      const float x = from + (to - from) * static_cast<float>(i) / 20000.0f;
      const double expected = exact(static_cast<double>(x));
      const double error = std::abs(mine(x) - expected) / std::max(1e-30, std::abs(expected));
      worst = std::max(worst, std::isfinite(expected) ? error : 0.0);
    }
    return worst;
  };
  // Not the functions themselves: calls by address are not inlined, as they have to be.
  const auto exp = [](float x) { return vector_whole_exp(x); };
  const auto expm1 = [](float x) { return vector_expm1(x); };
  const auto log = [](float x) { return vector_log(x); };
  const auto log1p = [](float x) { return vector_log1p(x); };
  const auto erf = [](float x) { return vector_erf(x); };
  const auto sine = [](float x) { return vector_sine(x, 0); };
  const auto cosine = [](float x) { return vector_sine(x, 1); };
  CHECK(compare(-80, 88, exp, [](double x) { return std::exp(x); }) < 8e-7);
  CHECK(compare(-20, 85, expm1, [](double x) { return std::expm1(x); }) < 8e-7);
  CHECK(compare(1e-6f, 10, log, [](double x) { return std::log(x); }) < 4e-7);
  CHECK(compare(1e-40f, 1e-37f, log, [](double x) { return std::log(x); }) < 4e-7);
  CHECK(compare(1, 1e30f, log, [](double x) { return std::log(x); }) < 4e-7);
  CHECK(compare(-0.9f, 10, log1p, [](double x) { return std::log1p(x); }) < 4e-7);
  CHECK(compare(-1e-5f, 1e-5f, log1p, [](double x) { return std::log1p(x); }) < 4e-7);
  CHECK(compare(-5, 5, erf, [](double x) { return std::erf(x); }) < 4e-7);
  CHECK(compare(-3, 3, sine, [](double x) { return std::sin(x); }) < 4e-7);
  const auto close = [](double a, double b) { return std::abs(a - b) < 4e-7; };
  for (float x = -8000; x < 8000; x += 0.37f) {
    CHECK(close(sine(x), std::sin(static_cast<double>(x))));
    CHECK(close(cosine(x), std::cos(static_cast<double>(x))));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(vector_whole_exp(100) == kInfinity);
  CHECK(vector_whole_exp(-kInfinity) == 0);
  CHECK(vector_log(0) == -kInfinity);
  CHECK(std::isnan(vector_log(-1)));
  CHECK(vector_log(kInfinity) == kInfinity);
  CHECK(vector_expm1(-kInfinity) == -1);
  CHECK(vector_erf(-kInfinity) == -1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float result : {exp(nan), expm1(nan), log(nan), log1p(nan), erf(nan)}) {
    CHECK(std::isnan(result));
  }
}
