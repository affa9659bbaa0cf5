// gru against the recurrence, written out for single numbers in double precision, and against the
// differences of what it computes where an operand is a little larger or smaller.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct Sizes {
  std::int64_t n, steps, d, hidden;
  bool state, reverse;
};

// All operands in one list: x, (h0,) kernel, recurrent kernel, bias, recurrent bias.
std::vector<Tensor> operands_of(const Sizes& s) {
  std::vector<Tensor> operands{Tensor::random({s.n, s.steps, s.d}, 1)};
  if (s.state) operands.push_back(Tensor::random({s.n, s.hidden}, 2));
  for (const Shape& shape : {Shape{s.hidden, 3, s.d}, Shape{s.hidden, 3, s.hidden},
                             Shape{s.hidden, 3}, Shape{s.hidden, 3}}) {
    operands.push_back(Tensor::random(shape, static_cast<unsigned>(3 + operands.size())));
  }
  return operands;
}

using Numbers = std::vector<std::vector<double>>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// y (n, steps, hidden) and h (n, hidden).
Numbers outputs_of(const Sizes& s, const Numbers& operands) {
  const std::size_t first = s.state ? 2 : 1;
  const auto &x = operands[0], &kernel = operands[first], &recurrent = operands[first + 1];
  const auto &bias = operands[first + 2], &recurrent_bias = operands[first + 3];
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::vector<double> y(at(s.n * s.steps * s.hidden)), last;
  for (std::int64_t i = 0; i < s.n; ++i) {
    std::vector<double> h(at(s.hidden), 0.0);
    if (s.state) {
      h.assign(operands[1].begin() + i * s.hidden, operands[1].begin() + (i + 1) * s.hidden);
    }
    for (std::int64_t t = 0; t < s.steps; ++t) {
      const std::int64_t row = i * s.steps + (s.reverse ? s.steps - 1 - t : t);
      std::vector<double> next = h;
      for (std::int64_t u = 0; u < s.hidden; ++u) {
        double a[3], b[3];
        for (std::int64_t g = 0; g < 3; ++g) {
          a[g] = bias[at(3 * u + g)];
          b[g] = recurrent_bias[at(3 * u + g)];
          for (std::int64_t k = 0; k < s.d; ++k) {
            a[g] += kernel[at((3 * u + g) * s.d + k)] * x[at(row * s.d + k)];
          }
          for (std::int64_t k = 0; k < s.hidden; ++k) {
            b[g] += recurrent[at((3 * u + g) * s.hidden + k)] * h[at(k)];
          }
        }
        const double r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]);
        next[at(u)] = (1 - z) * std::tanh(a[2] + r * b[2]) + z * h[at(u)];
        y[at(row * s.hidden + u)] = next[at(u)];
      }
      h = next;
    }
    last.insert(last.end(), h.begin(), h.end());
  }
  return {y, last};
}

Numbers numbers_of(const std::vector<Tensor>& tensors) {
  Numbers numbers;
  for (const Tensor& t : tensors) numbers.emplace_back(t.data.begin(), t.data.end());
  return numbers;
}

// What is differentiated: the sum of outputs times their gradients.
double goal(const Sizes& s, const Numbers& operands, const std::vector<Tensor>& gradients) {
  const Numbers outputs = outputs_of(s, operands);
  double sum = 0;
  for (std::size_t o = 0; o < gradients.size(); ++o) {
    for (std::size_t i = 0; i < outputs[o].size(); ++i) sum += outputs[o][i] * gradients[o].data[i];
  }
  return sum;
}

void check(const Sizes& s, bool of_states) {
  CAPTURE(s.steps);
  CAPTURE(s.reverse);
  std::vector<Tensor> operands = operands_of(s);
  const std::size_t inputs = s.state ? 2 : 1;
  std::vector<Tensor> gradients{Tensor::random({s.n, s.steps, s.hidden}, 20),
                                Tensor::random({s.n, s.hidden}, 21)};
  if (!of_states) gradients[1] = Tensor({s.n, s.hidden});
  const auto kernel =
      make_kernel("gru", Attributes(Entries{{"reverse", s.reverse ? "1" : "0"}}), kTested);

  Tensor y({s.n, s.steps, s.hidden}, kNan), h({s.n, s.hidden}, kNan);
  Tensor saved({s.n, s.steps, 4, s.hidden}, kNan);
  std::vector<Tensor> sums;
  for (const Tensor& t : operands) sums.emplace_back(t.shape);
  for (const Rect& samples : random_tiles({s.n}, {2}, 1)) {
    const auto tile = [&](const Tensor& t) {
      Rect rect = t.whole();
      rect.lo[0] = samples.lo[0];
      rect.hi[0] = samples.hi[0];
      return rect;
    };
    const auto tile_of = [&](std::size_t i) {
      return i < inputs ? tile(operands[i]) : operands[i].whole();
    };
    KernelTask task;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      (i < inputs ? task.inputs : task.weights).push_back(operands[i].view(tile_of(i)));
    }
    task.outputs = {y.view(tile(y)), h.view(tile(h)), saved.view(tile(saved))};
    kernel->forward(task);
    const std::vector<Tensor> given(operands.begin(),
                                    operands.begin() + static_cast<std::ptrdiff_t>(inputs));
    const std::vector<Tensor> held(operands.begin() + static_cast<std::ptrdiff_t>(inputs),
                                   operands.end());
    const GradientTiles input_grads(given,
                                    [&](int i) { return tile_of(static_cast<std::size_t>(i)); });
    const GradientTiles weight_grads(
        held, [&](int i) { return tile_of(inputs + static_cast<std::size_t>(i)); });
    task.output_grads = {gradients[0].view(tile(y)), TensorView(), TensorView()};
    if (of_states) task.output_grads[1] = gradients[1].view(tile(h));
    task.input_grads = input_grads.views;
    task.weight_grads = weight_grads.views;
    kernel->backward(task);
    check_adds(*kernel, task, input_grads, weight_grads);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const bool input = i < inputs;
      const TensorView& view = input ? input_grads.views[i] : weight_grads.views[i - inputs];
      add_view(sums[i].view(view.tile), view);
    }
  }

  const Numbers exact = numbers_of(operands), outputs = outputs_of(s, exact);
  for (std::size_t i = 0; i < outputs[0].size(); ++i) {
    CHECK(y.data[i] == doctest::Approx(outputs[0][i]).epsilon(1e-4));
  }
  for (std::size_t i = 0; i < outputs[1].size(); ++i) {
    CHECK(h.data[i] == doctest::Approx(outputs[1][i]).epsilon(1e-4));
  }
  const double step = 1e-5;
  for (std::size_t o = 0; o < operands.size(); ++o) {
    CAPTURE(o);
    for (std::size_t i = 0; i < operands[o].data.size(); ++i) {
      Numbers moved = exact;
      moved[o][i] += step;
      const double above = goal(s, moved, gradients);
      moved[o][i] -= 2 * step;
      const double slope = (above - goal(s, moved, gradients)) / (2 * step);
      CHECK(std::abs(sums[o].data[i] - slope) < 1e-4 * (1 + std::abs(slope)));
    }
  }
}

TEST_CASE("gru: outputs, and gradients of all operands") {
  for (const bool state : {false, true}) {
    for (const bool reverse : {false, true}) {
      check({3, 4, 5, 6, state, reverse}, true);
      check({2, 1, 3, 7, state, reverse}, false);
    }
  }
}

}  // namespace
}  // namespace flexlegion::testing
