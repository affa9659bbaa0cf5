// lstm against the recurrence and its derivatives, written out for single numbers. A layer that
// begins at the last step is one that begins at the first, of steps in the opposite order; a second
// bias adds to the first, and has the same gradient.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ops/vector_math.h"
#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct Sizes {
  std::int64_t n, steps, d, hidden;
  bool reverse = false, two_biases = false;

  // Which of the input's steps is computed as the t-th, counted from 1.
  std::int64_t at(std::int64_t t) const { return reverse ? steps - t : t - 1; }
  Attributes attributes() const { return Attributes(Entries{{"reverse", reverse ? "1" : "0"}}); }
};

// All tensors of an operator, and what is differentiated: the sum of outputs times their gradients.
struct Problem {
  Sizes size;
  std::vector<Tensor> inputs, weights, output_grads;

  Problem(const Sizes& s, bool state) : size(s) {
    inputs = {Tensor::random({s.n, s.steps, s.d}, 1)};
    if (state) {
      inputs.push_back(Tensor::random({s.n, s.hidden}, 2));
      inputs.push_back(Tensor::random({s.n, s.hidden}, 3));
    }
    weights = {Tensor::random({s.hidden, 4, s.d}, 4), Tensor::random({s.hidden, 4, s.hidden}, 5),
               Tensor::random({s.hidden, 4}, 6)};
    if (s.two_biases) weights.push_back(Tensor::random({s.hidden, 4}, 10));
    output_grads = {Tensor::random({s.n, s.steps, s.hidden}, 7), Tensor::random({s.n, s.hidden}, 8),
                    Tensor::random({s.n, s.hidden}, 9)};
  }
};

struct LstmResults {
  std::vector<Tensor> outputs, input_grads, weight_grads;  // y, h, c
};

std::vector<Tensor> like(const std::vector<Tensor>& tensors, float fill) {
  std::vector<Tensor> result;
  for (const Tensor& t : tensors) result.emplace_back(t.shape, fill);
  return result;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One sample's gates i, f, g, o, cells and states: those of step t at t + 1, after the initial
// ones.
struct Trace {
  std::vector<std::vector<double>> gates, c, h;
};

Trace forward(Problem& p, std::int64_t sample) {
  const auto [n, steps, d, hidden, reverse, two_biases] = p.size;
  Trace trace;
  trace.gates.resize(steps + 1, std::vector<double>(4 * hidden));
  trace.c.resize(steps + 1, std::vector<double>(hidden));
  trace.h = trace.c;
  for (std::int64_t u = 0; u < hidden && p.inputs.size() == 3; ++u) {
    trace.h[0][u] = p.inputs[1].at(sample, u);
    trace.c[0][u] = p.inputs[2].at(sample, u);
  }
  for (std::int64_t t = 1; t <= steps; ++t) {
    for (std::int64_t u = 0; u < hidden; ++u) {
      double* const a = &trace.gates[t][4 * u];
      for (int gate = 0; gate < 4; ++gate) {
        double sum = p.weights[2].at(u, gate) + (two_biases ? p.weights[3].at(u, gate) : 0.0f);
        for (std::int64_t k = 0; k < d; ++k) {
          sum += double{p.weights[0].at(u, gate, k)} * p.inputs[0].at(sample, p.size.at(t), k);
        }
        for (std::int64_t k = 0; k < hidden; ++k) {
          sum += p.weights[1].at(u, gate, k) * trace.h[t - 1][k];
        }
        a[gate] = gate == 2 ? std::tanh(sum) : sigmoid(sum);
      }
      trace.c[t][u] = a[1] * trace.c[t - 1][u] + a[0] * a[2];
      trace.h[t][u] = a[3] * std::tanh(trace.c[t][u]);
    }
  }
  return trace;
}

void backward(Problem& p, std::int64_t sample, const Trace& trace, LstmResults& results) {
  const auto [n, steps, d, hidden, reverse, two_biases] = p.size;
  std::vector<double> dh(hidden), dc(hidden);
  for (std::int64_t u = 0; u < hidden; ++u) {
    dh[u] = p.output_grads[1].at(sample, u);
    dc[u] = p.output_grads[2].at(sample, u);
  }
  for (std::int64_t t = steps; t > 0; --t) {
    std::vector<double> dh_before(hidden);
    for (std::int64_t u = 0; u < hidden; ++u) {
      const double* const a = &trace.gates[t][4 * u];
      const double tanh_c = std::tanh(trace.c[t][u]);
      const double dy = dh[u] + p.output_grads[0].at(sample, p.size.at(t), u);
      const double dcell = dc[u] + dy * a[3] * (1 - tanh_c * tanh_c);
      const double da[4] = {dcell * a[2] * a[0] * (1 - a[0]),
                            dcell * trace.c[t - 1][u] * a[1] * (1 - a[1]),
                            dcell * a[0] * (1 - a[2] * a[2]), dy * tanh_c * a[3] * (1 - a[3])};
      dc[u] = dcell * a[1];
      for (int gate = 0; gate < 4; ++gate) {
        for (std::int64_t k = 0; k < d; ++k) {
          results.input_grads[0].at(sample, p.size.at(t), k) +=
              da[gate] * p.weights[0].at(u, gate, k);
          results.weight_grads[0].at(u, gate, k) +=
              da[gate] * p.inputs[0].at(sample, p.size.at(t), k);
        }
        for (std::int64_t k = 0; k < hidden; ++k) {
          dh_before[k] += da[gate] * p.weights[1].at(u, gate, k);
          results.weight_grads[1].at(u, gate, k) += da[gate] * trace.h[t - 1][k];
        }
        for (std::size_t bias = 2; bias < p.weights.size(); ++bias) {
          results.weight_grads[bias].at(u, gate) += da[gate];
        }
      }
    }
    dh = dh_before;
  }
  for (std::int64_t u = 0; u < hidden && p.inputs.size() == 3; ++u) {
    results.input_grads[1].at(sample, u) = dh[u];
    results.input_grads[2].at(sample, u) = dc[u];
  }
}

LstmResults expected(Problem& p) {
  LstmResults results{like(p.output_grads, 0), like(p.inputs, 0), like(p.weights, 0)};
  for (std::int64_t i = 0; i < p.size.n; ++i) {
    const Trace trace = forward(p, i);
    for (std::int64_t u = 0; u < p.size.hidden; ++u) {
      for (std::int64_t t = 1; t <= p.size.steps; ++t) {
        results.outputs[0].at(i, p.size.at(t), u) = trace.h[t][u];
      }
      results.outputs[1].at(i, u) = trace.h.back()[u];
      results.outputs[2].at(i, u) = trace.c.back()[u];
    }
    backward(p, i, trace, results);
  }
  return results;
}

// What a task of samples [lo, hi) and units [from, to) touches, by operand.
struct Task {
  std::int64_t lo, hi, from, to;

  Rect cut(const Tensor& tensor, bool samples, int units_dim) const {
    Rect tile = Rect::of_shape(tensor.shape);
    if (samples) tile.lo[0] = lo, tile.hi[0] = hi;
    if (units_dim >= 0) tile.lo[units_dim] = from, tile.hi[units_dim] = to;
    return tile;
  }
  std::vector<TensorView> inputs(std::vector<Tensor>& t) const {
    std::vector<TensorView> views{t[0].view(cut(t[0], true, -1))};
    if (t.size() == 3) {
      views.push_back(t[1].view(cut(t[1], true, -1)));
      views.push_back(t[2].view(cut(t[2], true, 1)));
    }
    return views;
  }
  std::vector<TensorView> weights(std::vector<Tensor>& tensors) const {
    std::vector<TensorView> views;
    for (Tensor& t : tensors) views.push_back(t.view(cut(t, false, 0)));
    return views;
  }
  std::vector<TensorView> outputs(std::vector<Tensor>& t) const {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < t.size(); ++i) {
      views.push_back(t[i].view(cut(t[i], true, i == 0 ? 2 : i == 3 ? 3 : 1)));
    }
    return views;
  }
};

std::vector<Task> tasks_of(const Sizes& size, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<Task> tasks;
  for (const auto& [lo, hi] : random_pieces(size.n, 2, rng)) {
    for (const auto& [from, to] : random_pieces(size.hidden, size.steps == 1 ? 3 : 1, rng)) {
      tasks.push_back({lo, hi, from, to});
    }
  }
  return tasks;
}

enum Absent { kNothing, kY, kState };  // gradients of outputs that nobody reads

// Runs the tasks; with `adds`, they add to gradients that were `start` everywhere.
LstmResults run(Problem& p, const std::vector<Task>& tasks, bool adds, float start, Absent absent) {
  const auto kernel = make_kernel("lstm", p.size.attributes(), kTested);
  LstmResults results{like(p.output_grads, kNan), like(p.inputs, start), like(p.weights, start)};
  results.outputs.emplace_back(Shape{p.size.n, p.size.steps, 5, p.size.hidden}, kNan);
  for (const Task& task : tasks) {
    KernelTask forward;
    forward.inputs = task.inputs(p.inputs);
    forward.weights = task.weights(p.weights);
    forward.outputs = task.outputs(results.outputs);
    kernel->forward(forward);

    KernelTask backward = forward;
    for (std::size_t bias = 2; bias < p.weights.size(); ++bias)
      backward.weights[bias] = TensorView();
    if (p.size.steps == 1) backward.outputs[0] = TensorView();
    backward.outputs[1] = backward.outputs[2] = TensorView();
    backward.output_grads = task.outputs(p.output_grads);
    backward.output_grads.emplace_back();
    if (absent == kY) backward.output_grads[0] = TensorView();
    if (absent == kState) backward.output_grads[1] = backward.output_grads[2] = TensorView();
    std::vector<Tensor> input_grads = like(p.inputs, kNan), weight_grads = like(p.weights, kNan);
    backward.input_grads = task.inputs(adds ? results.input_grads : input_grads);
    backward.weight_grads = task.weights(adds ? results.weight_grads : weight_grads);
    if (adds) {
      backward.adds_input_grad.assign(p.inputs.size(), true);
      backward.adds_weight_grad.assign(p.weights.size(), true);
    }
    kernel->backward(backward);
    if (adds) continue;
    const auto add = [](const std::vector<TensorView>& to, const std::vector<TensorView>& from) {
      for (std::size_t i = 0; i < to.size(); ++i) add_view(to[i], from[i]);
    };
    add(task.inputs(results.input_grads), backward.input_grads);
    add(task.weights(results.weight_grads), backward.weight_grads);
  }
  return results;
}

void check_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                 float start) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    Tensor shifted = expected[i];
    for (float& x : shifted.data) x += start;
    CHECK(largest_difference(actual[i], shifted) < kTolerance);
  }
}

void check(const Sizes& size, bool state, Absent absent = kNothing) {
  CAPTURE(size.n);
  CAPTURE(size.steps);
  CAPTURE(size.d);
  CAPTURE(size.hidden);
  CAPTURE(size.reverse);
  CAPTURE(size.two_biases);
  CAPTURE(state);
  Problem p(size, state);
  if (absent == kY) p.output_grads[0] = Tensor(p.output_grads[0].shape);
  if (absent == kState) {
    for (int i : {1, 2}) p.output_grads[i] = Tensor(p.output_grads[i].shape);
  }
  const LstmResults reference = expected(p);
  const Task whole{0, size.n, 0, size.hidden};
  for (unsigned seed = 0; seed < 4; ++seed) {
    const auto tasks = seed == 0 ? std::vector<Task>{whole} : tasks_of(size, seed);
    const bool adds = seed % 2 == 1;
    const float start = adds ? 0.25f : 0.0f;
    const LstmResults results = run(p, tasks, adds, start, absent);
    check_close(results.outputs, reference.outputs, 0);
    check_close(results.input_grads, reference.input_grads, start);
    check_close(results.weight_grads, reference.weight_grads, start);
  }
}

TEST_CASE("lstm: one step, split by samples and units") {
  for (const bool state : {false, true}) {
    check({1, 1, 1, 1}, state);
    check({3, 1, 3, 5}, state);
    check({8, 1, 19, 20}, state);
    check({13, 1, 40, 36}, state);
    check({35, 1, 17, 23}, state);
  }
}

TEST_CASE("lstm: several steps, split by samples") {
  for (const bool state : {false, true}) {
    check({2, 3, 3, 5}, state);
    check({7, 4, 19, 20}, state);
    check({13, 2, 64, 33}, state);
    check({37, 5, 6, 18}, state);
  }
}

TEST_CASE("lstm: from the last step to the first, and with two biases") {
  for (const bool reverse : {false, true}) {
    check({7, 4, 19, 20, reverse, true}, true);
    check({3, 1, 3, 5, reverse, true}, false);
    check({16, 6, 3, 5, reverse, !reverse}, true);
  }
}

TEST_CASE("lstm: outputs without gradients") {
  for (const Absent absent : {kY, kState}) {
    check({5, 1, 18, 20}, true, absent);
    check({5, 3, 18, 20}, true, absent);
  }
}

TEST_CASE("lstm: gradients that nobody wants stay absent") {
  Problem p({3, 2, 4, 5}, true);
  const auto kernel = make_kernel("lstm", p.size.attributes(), kTested);
  LstmResults results{like(p.output_grads, kNan), like(p.inputs, 0), like(p.weights, 0)};
  results.outputs.emplace_back(Shape{3, 2, 5, 5});
  const Task whole{0, 3, 0, 5};
  KernelTask task;
  task.inputs = whole.inputs(p.inputs);
  task.weights = whole.weights(p.weights);
  task.outputs = whole.outputs(results.outputs);
  kernel->forward(task);
  task.output_grads = whole.outputs(p.output_grads);
  task.output_grads.emplace_back();
  task.input_grads.resize(3);
  task.weight_grads.resize(3);
  CHECK_NOTHROW(kernel->backward(task));
}

TEST_CASE("sigmoid and tanh of vectors are precise everywhere") {
  double worst_sigmoid = 0, worst_tanh = 0;
  for (int k = -6000; k <= 6000; ++k) {
    const float x = std::ldexp(1.0f + static_cast<float>(std::abs(k) % 97) / 97.0f, k % 40 - 33) *
                    (k < 0 ? -1.0f : 1.0f);
    const double s = sigmoid(x), t = std::tanh(static_cast<double>(x));
    if (std::abs(x) < 80)
      worst_sigmoid = std::max(worst_sigmoid, std::abs(vector_sigmoid(x) / s - 1));
    worst_tanh = std::max(worst_tanh, std::abs(vector_tanh(x) / t - 1));
  }
  CHECK(worst_sigmoid < 1e-6);
  CHECK(worst_tanh < 1e-6);
  CHECK(vector_tanh(0.0f) == 0.0f);
  CHECK(vector_tanh(1e9f) == 1.0f);
  CHECK(vector_tanh(-1e9f) == -1.0f);
  CHECK(vector_sigmoid(-1e9f) < 1e-37f);
  CHECK(std::isnan(vector_tanh(kNan)));
}

}  // namespace
}  // namespace flexlegion::testing
