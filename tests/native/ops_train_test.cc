// Losses and optimizers.
#include <doctest/doctest.h>

#include <stdexcept>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct LossResults {
  Tensor losses, gradient;
  Metrics metrics;
};

// Runs a loss operator over pieces of the batch.
LossResults run_loss(const std::string& type, const Attributes& attributes, Tensor& prediction,
                     const std::function<TensorView(const Rect& samples)>& labels,
                     std::int64_t valid, unsigned seed) {
  const auto kernel = make_kernel(type, attributes);
  const std::int64_t n = prediction.shape[0];
  LossResults results{Tensor({n}, kNan), Tensor(prediction.shape, kNan), {}};
  for (const Rect& samples : random_tiles({n}, {3}, seed)) {
    Rect tile = prediction.whole();
    tile.lo[0] = samples.lo[0];
    tile.hi[0] = samples.hi[0];
    KernelTask task;
    task.run.valid_samples = valid;
    task.inputs = {prediction.view(tile), labels(samples)};
    task.outputs = {results.losses.view(samples)};
    Metrics metrics;
    task.metrics = &metrics;
    kernel->forward(task);
    results.metrics.loss += metrics.loss;
    results.metrics.correct += metrics.correct;
    results.metrics.squared_error += metrics.squared_error;
    results.metrics.absolute_error += metrics.absolute_error;
    results.metrics.samples += metrics.samples;
    task.outputs = {TensorView()};
    task.input_grads = {results.gradient.view(tile), TensorView()};
    kernel->backward(task);
  }
  return results;
}

// What softmax_cross_entropy should give, for labels as a distribution a sample.
LossResults expected_cross_entropy(Tensor& logits, Tensor& targets, std::int64_t valid) {
  const std::int64_t n = logits.shape[0], classes = logits.shape[1];
  LossResults expected{Tensor({n}), Tensor(logits.shape), {}};
  expected.metrics.samples = valid;
  for (std::int64_t r = 0; r < valid; ++r) {
    double sum = 0, total = 0, loss = 0;
    std::int64_t best = 0, truth = 0;
    for (std::int64_t k = 0; k < classes; ++k) {
      sum += std::exp(static_cast<double>(logits.at(r, k)));
      total += targets.at(r, k);
      if (logits.at(r, k) > logits.at(r, best)) best = k;
      if (targets.at(r, k) > targets.at(r, truth)) truth = k;
    }
    for (std::int64_t k = 0; k < classes; ++k) {
      const double p = std::exp(static_cast<double>(logits.at(r, k))) / sum;
      loss -= targets.at(r, k) * std::log(p);
      expected.gradient.at(r, k) = static_cast<float>((p * total - targets.at(r, k)) / valid);
    }
    expected.losses.at(r) = static_cast<float>(loss);
    expected.metrics.loss += loss;
    expected.metrics.correct += best == truth ? 1 : 0;
  }
  return expected;
}

void check_losses(const LossResults& results, const LossResults& expected) {
  CHECK(largest_difference(results.losses, expected.losses) < kTolerance);
  CHECK(largest_difference(results.gradient, expected.gradient) < kTolerance);
  CHECK(results.metrics.loss == doctest::Approx(expected.metrics.loss).epsilon(1e-5));
  CHECK(results.metrics.correct == expected.metrics.correct);
  CHECK(results.metrics.squared_error == doctest::Approx(expected.metrics.squared_error));
  CHECK(results.metrics.absolute_error == doctest::Approx(expected.metrics.absolute_error));
  CHECK(results.metrics.samples == expected.metrics.samples);
}

TEST_CASE("softmax_cross_entropy: sparse labels, with padding") {
  Tensor logits = Tensor::random({11, 23}, 1), targets({11, 23});
  for (float& x : logits.data) x *= 5;
  std::vector<std::int32_t> labels(11);
  Tensor shape_of_labels({11});
  for (int i = 0; i < 11; ++i) {
    labels[static_cast<std::size_t>(i)] = i * 7 % 23;
    targets.at(i, i * 7 % 23) = 1;
    if (i % 2 == 0) logits.at(i, i * 7 % 23) += 10;  // half are right
  }
  labels[10] = 1000;  // padding may hold anything
  const auto view = [&](const Rect& samples) {
    TensorView v = shape_of_labels.view(samples);
    v.data = labels.data() + samples.lo[0];
    return v;
  };
  const Attributes sparse(Entries{{"labels", "sparse"}});
  for (unsigned seed = 0; seed < 4; ++seed) {
    check_losses(run_loss("softmax_cross_entropy", sparse, logits, view, 9, seed),
                 expected_cross_entropy(logits, targets, 9));
  }
  labels[3] = 23;
  CHECK_THROWS_WITH_AS(run_loss("softmax_cross_entropy", sparse, logits, view, 9, 0),
                       doctest::Contains("the label of sample 3 is 23"), std::invalid_argument);
  CHECK_THROWS_AS(make_kernel("softmax_cross_entropy", Attributes(Entries{{"labels", "fuzzy"}})),
                  std::invalid_argument);
}

TEST_CASE("softmax_cross_entropy: labels as distributions") {
  Tensor logits = Tensor::random({8, 5}, 2), targets = Tensor::random({8, 5}, 3);
  for (float& y : targets.data) y = std::abs(y);
  const auto view = [&](const Rect& samples) {
    Rect tile = targets.whole();
    tile.lo[0] = samples.lo[0];
    tile.hi[0] = samples.hi[0];
    return targets.view(tile);
  };
  const Attributes one_hot(Entries{{"labels", "one_hot"}});
  for (const std::int64_t valid : {8, 3}) {
    check_losses(run_loss("softmax_cross_entropy", one_hot, logits, view, valid, 1),
                 expected_cross_entropy(logits, targets, valid));
  }
}

TEST_CASE("softmax_cross_entropy: huge logits neither overflow nor vanish") {
  // Differences of 1000: the loss of the wrong class is 1000, that of the right one 0.
  Tensor logits({2, 2}), targets({2, 2});
  logits.data = {1000, 0, 1000, 0};
  targets.data = {1, 0, 0, 1};
  const auto view = [&](const Rect& samples) {
    Rect tile = targets.whole();
    tile.lo[0] = samples.lo[0];
    tile.hi[0] = samples.hi[0];
    return targets.view(tile);
  };
  const Attributes one_hot(Entries{{"labels", "one_hot"}});
  LossResults results = run_loss("softmax_cross_entropy", one_hot, logits, view, 2, 1);
  CHECK(results.losses.data == std::vector<float>{0, 1000});
  CHECK(results.gradient.at(1, 0) == doctest::Approx(0.5));
}

TEST_CASE("mean_squared_error") {
  Tensor x = Tensor::random({9, 3, 4}, 4), target = Tensor::random({9, 3, 4}, 5);
  const std::int64_t valid = 7;
  LossResults expected{Tensor({9}), Tensor(x.shape), {}};
  expected.metrics.samples = valid;
  for (std::size_t i = 0; i < static_cast<std::size_t>(valid) * 12; ++i) {
    const double error = static_cast<double>(x.data[i]) - target.data[i];
    expected.losses.data[i / 12] += static_cast<float>(error * error / 12);
    expected.metrics.squared_error += error * error / 12;
    expected.metrics.absolute_error += std::abs(error) / 12;
    expected.gradient.data[i] = static_cast<float>(2 * error / (12 * valid));
  }
  expected.metrics.loss = expected.metrics.squared_error;
  const auto view = [&](const Rect& samples) {
    Rect tile = target.whole();
    tile.lo[0] = samples.lo[0];
    tile.hi[0] = samples.hi[0];
    return target.view(tile);
  };
  for (unsigned seed = 0; seed < 4; ++seed) {
    check_losses(run_loss("mean_squared_error", Attributes(), x, view, valid, seed), expected);
  }
}

// The value of one weight and its states after three steps, as PyTorch's documentation has them.
using Step = std::function<void(double& w, double g, double& s0, double& s1, int t)>;

void check_optimizer(const std::string& name, const Attributes& attributes, int states,
                     const Step& step) {
  const auto kernel = make_update_kernel(name, attributes);
  const Shape shape{6, 20};
  Tensor w = Tensor::random(shape, 1), s0(shape), s1(shape);
  std::vector<double> ew(w.data.begin(), w.data.end()), e0(w.data.size()), e1(w.data.size());
  RunState run;
  run.learning_rate = 0.05;
  for (int t = 1; t <= 3; ++t) {
    Tensor g = Tensor::random(shape, 10 + static_cast<unsigned>(t));
    run.step = t - 1;
    for (const Rect& tile : random_tiles(shape, {2, 3}, static_cast<unsigned>(t))) {
      std::vector<float> dense(static_cast<std::size_t>(tile.volume()));
      const TensorView gradient = dense_view(dense.data(), tile, g.view(tile).shape);
      copy_view(gradient, g.view(tile));
      std::vector<TensorView> views{s0.view(tile), s1.view(tile)};
      views.resize(static_cast<std::size_t>(states));
      kernel->update(w.view(tile), gradient, views, run);
    }
    for (std::size_t i = 0; i < ew.size(); ++i) step(ew[i], g.data[i], e0[i], e1[i], t);
  }
  for (std::size_t i = 0; i < ew.size(); ++i) {
    CHECK(w.data[i] == doctest::Approx(ew[i]).epsilon(1e-4));
    CHECK(s0.data[i] == doctest::Approx(e0[i]).epsilon(1e-4));
  }
}

TEST_CASE("sgd") {
  for (const double momentum : {0.0, 0.9})
    for (const bool nesterov : {false, true})
      for (const double decay : {0.0, 0.1}) {
        const Attributes attributes({{"momentum", std::to_string(momentum)},
                                     {"nesterov", nesterov ? "1" : "0"},
                                     {"weight_decay", std::to_string(decay)}});
        const auto step = [=](double& w, double g, double& v, double&, int) {
          g += decay * w;
          if (momentum != 0) {
            v = momentum * v + g;
            g = nesterov ? g + momentum * v : v;
          }
          w -= 0.05 * g;
        };
        check_optimizer("sgd", attributes, momentum != 0 ? 1 : 0, step);
      }
}

TEST_CASE("adam and adamw") {
  for (const bool decoupled : {false, true}) {
    const Attributes attributes(
        {{"beta1", "0.9"}, {"beta2", "0.999"}, {"epsilon", "1e-8"}, {"weight_decay", "0.1"}});
    const auto step = [=](double& w, double g, double& m, double& v, int t) {
      if (decoupled) {
        w -= 0.05 * 0.1 * w;
      } else {
        g += 0.1 * w;
      }
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      const double m_hat = m / (1 - std::pow(0.9, t)), v_hat = v / (1 - std::pow(0.999, t));
      w -= 0.05 * m_hat / (std::sqrt(v_hat) + 1e-8);
    };
    check_optimizer(decoupled ? "adamw" : "adam", attributes, 2, step);
  }
}

}  // namespace
}  // namespace flexlegion::testing
