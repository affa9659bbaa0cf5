// experts, top_k and capacity against their definitions, written out; gradients against
// differences.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

using Numbers = std::vector<double>;

struct Sizes {
  std::int64_t n, steps, d, units, experts;
};

double activation(const std::string& name, double x) {
  if (name == "relu") return std::max(x, 0.0);
  if (name == "gelu") return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return x / (1 + std::exp(-x));
}

// The operands in double precision, so that differences are gradients: x, gates, up, down, gate.
struct Operands {
  Sizes size;
  std::string name;
  std::vector<Numbers> data;

  double goal(const Tensor& output_grad) const {
    const Numbers y = output();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * output_grad.data[i];
    return sum;
  }
  Numbers output() const {
    const auto [n, steps, d, units, experts] = size;
    Numbers y(static_cast<std::size_t>(n * steps * d));
    for (std::int64_t r = 0; r < n * steps; ++r) {
      for (std::int64_t e = 0; e < experts; ++e) {
        const double share = data[1][r * experts + e];
        if (share == 0) continue;
        for (std::int64_t u = 0; u < units; ++u) {
          double a = 0, b = 0;
          for (std::int64_t i = 0; i < d; ++i) {
            a += data[2][(e * units + u) * d + i] * data[0][r * d + i];
            if (data.size() > 4) b += data[4][(e * units + u) * d + i] * data[0][r * d + i];
          }
          const double h = activation(name, a) * (data.size() > 4 ? b : 1);
          for (std::int64_t o = 0; o < d; ++o) {
            y[r * d + o] += share * data[3][(e * d + o) * units + u] * h;
          }
        }
      }
    }
    return y;
  }
  Tensor gradient(std::size_t operand, const Shape& shape, const Tensor& output_grad) {
    constexpr double kStep = 1e-5;
    Tensor result(shape);
    for (std::size_t i = 0; i < result.data.size(); ++i) {
      double& x = data[operand][i];
      const double was = x;
      if (operand == 1 && was == 0) continue;  // who is not chosen has no gradient
      x = was + kStep;
      const double above = goal(output_grad);
      x = was - kStep;
      result.data[i] = static_cast<float>((above - goal(output_grad)) / (2 * kStep));
      x = was;
    }
    return result;
  }
};

// Gates of which about a third is not 0; none of the last expert's.
Tensor gates_of(const Sizes& s) {
  Tensor gates = Tensor::random({s.n, s.steps, s.experts}, 2);
  for (std::size_t i = 0; i < gates.data.size(); ++i) {
    const bool last = static_cast<std::int64_t>(i) % s.experts == s.experts - 1;
    if (last || gates.data[i] < 0.3f) gates.data[i] = 0;
  }
  return gates;
}

TEST_CASE("experts: every split") {
  for (const std::string name : {"relu", "gelu", "silu"}) {
    for (const bool gated : {false, true}) {
      const Sizes s{3, 4, 5, 6, 4};
      Case c;
      c.type = "experts";
      c.attributes = {{"activation", name}};
      c.inputs = {Tensor::random({s.n, s.steps, s.d}, 1), gates_of(s)};
      c.weights = {Tensor::random({s.experts, s.units, s.d}, 3),
                   Tensor::random({s.experts, s.d, s.units}, 4)};
      if (gated) c.weights.push_back(Tensor::random({s.experts, s.units, s.d}, 5));
      c.output_shape = c.inputs[0].shape;
      c.reads_input = true;
      c.input_tile = [&](const Rect& tile, int i) {
        Rect rect = c.inputs[static_cast<std::size_t>(i)].whole();
        for (int d = 0; d < 2; ++d) rect.lo[d] = tile.lo[d], rect.hi[d] = tile.hi[d];
        return rect;
      };
      c.weight_tile = [&](const Rect&, int i) {
        return c.weights[static_cast<std::size_t>(i)].whole();
      };
      Operands operands{s, name, {}};
      for (const auto* tensors : {&c.inputs, &c.weights}) {
        for (const Tensor& t : *tensors) operands.data.emplace_back(t.data.begin(), t.data.end());
      }
      const Tensor output_grad = Tensor::random(c.output_shape, 6);
      const Numbers y = operands.output();
      std::vector<Tensor> gradients;
      for (const auto* tensors : {&c.inputs, &c.weights}) {
        for (const Tensor& t : *tensors) {
          gradients.push_back(operands.gradient(gradients.size(), t.shape, output_grad));
        }
      }
      for (unsigned seed = 0; seed < 3; ++seed) {
        const auto parts = seed == 0 ? std::vector<int>{1, 1, 1} : std::vector<int>{2, 3, 1};
        Results results = run_tiles(c, random_tiles(c.output_shape, parts, seed), output_grad);
        for (std::size_t i = 0; i < y.size(); ++i) {
          CHECK(results.output.data[i] == doctest::Approx(y[i]).epsilon(1e-4));
        }
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          CAPTURE(i);
          const Tensor& found = i < 2 ? results.input_grads[i] : results.weight_grads[i - 2];
          CHECK(largest_difference(found, gradients[i]) < kTolerance);
        }
      }
    }
  }
}

TEST_CASE("experts: more rows of an expert than are computed at once") {
  const Sizes s{1, 1300, 3, 4, 2};
  Case c;
  c.type = "experts";
  c.attributes = {{"activation", "silu"}};
  c.inputs = {Tensor::random({s.n, s.steps, s.d}, 1), Tensor({s.n, s.steps, s.experts}, 0.5f)};
  c.weights = {Tensor::random({s.experts, s.units, s.d}, 3),
               Tensor::random({s.experts, s.d, s.units}, 4)};
  c.output_shape = c.inputs[0].shape;
  c.reads_input = true;
  c.input_tile = [&](const Rect&, int i) { return c.inputs[static_cast<std::size_t>(i)].whole(); };
  c.weight_tile = [&](const Rect&, int i) {
    return c.weights[static_cast<std::size_t>(i)].whole();
  };
  Operands operands{s, "silu", {}};
  for (const auto* tensors : {&c.inputs, &c.weights}) {
    for (const Tensor& t : *tensors) operands.data.emplace_back(t.data.begin(), t.data.end());
  }
  const Tensor output_grad = Tensor::random(c.output_shape, 6);
  Results results = run_tiles(c, {Rect::of_shape(c.output_shape)}, output_grad);
  const Numbers y = operands.output();
  for (std::size_t i = 0; i < y.size(); ++i) {
    CHECK(results.output.data[i] == doctest::Approx(y[i]).epsilon(1e-4));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const Tensor expected = operands.gradient(2 + i, c.weights[i].shape, output_grad);
    CHECK(largest_difference(results.weight_grads[i], expected) < 10 * kTolerance);
  }
}

// Runs a kernel that keeps some values over tiles; compares with what `kept` says of each element.
void check_kept(const std::string& type, const Entries& attributes, const Tensor& input,
                const std::vector<int>& parts, const std::vector<bool>& kept) {
  Case c;
  c.type = type;
  c.attributes = attributes;
  c.inputs = {input};
  c.output_shape = input.shape;
  c.reads_input = true;
  c.input_tile = [](const Rect& tile, int) { return tile; };
  const Tensor output_grad = Tensor::random(input.shape, 8);
  for (unsigned seed = 0; seed < 4; ++seed) {
    Results results = run_tiles(c, random_tiles(input.shape, parts, seed), output_grad);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      CHECK(results.output.data[i] == (kept[i] ? input.data[i] : 0.0f));
      CHECK(results.input_grads[0].data[i] == (kept[i] ? output_grad.data[i] : 0.0f));
    }
  }
}

TEST_CASE("top_k keeps the largest of each row, of equal ones the first") {
  const std::int64_t n = 6, c = 5, k = 2;
  Tensor input = Tensor::random({3, 2, c}, 1);
  input.at(1, 1, 0) = input.at(1, 1, 2) = input.at(1, 1, 4) = 2;
  input.at(2, 0, 1) = 0;  // also where it is one of the largest
  for (const std::int64_t other : {0, 2, 3}) input.at(2, 0, other) = -1;
  std::vector<bool> kept;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t i = 0; i < c; ++i) {
      const float* const row = input.data.data() + r * c;
      const auto before = std::count_if(row, row + c, [&](const float& x) {
        return x > row[i] || (x == row[i] && &x < row + i);
      });
      kept.push_back(before < k);
    }
  }
  check_kept("top_k", {{"k", "2"}}, input, {2, 2, 1}, kept);
}

TEST_CASE("capacity keeps the first values of each column") {
  Tensor input = Tensor::random({4, 3, 5}, 1);
  std::vector<bool> kept;
  int taken[5] = {};
  for (std::size_t i = 0; i < input.data.size(); ++i) {
    if (input.data[i] < 0) input.data[i] = 0;
    kept.push_back(input.data[i] != 0 && taken[i % 5]++ < 3);
  }
  check_kept("capacity", {{"most", "3"}}, input, {1, 1, 3}, kept);
}

}  // namespace
}  // namespace flexlegion::testing
