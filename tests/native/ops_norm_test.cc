// Batch normalisation's three operators and layer normalisation.
#include <doctest/doctest.h>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

constexpr double kEpsilon = 1e-3;

// The part of a smaller tensor that goes with a tile of (n, ..., c): its channels, and its samples
// if it has any.
Rect of_channels(const Rect& tile, Rect whole) {
  whole.lo[whole.rank - 1] = tile.lo[tile.rank - 1];
  whole.hi[whole.rank - 1] = tile.hi[tile.rank - 1];
  return whole;
}

Rect of_samples(const Rect& tile, const Rect& whole) {
  Rect rect = of_channels(tile, whole);
  rect.lo[0] = tile.lo[0];
  rect.hi[0] = tile.hi[0];
  return rect;
}

RunState training(std::int64_t samples) {
  RunState run;
  run.training = 1;
  run.valid_samples = samples;
  return run;
}

std::size_t channels_of(const Tensor& t) { return static_cast<std::size_t>(t.shape.back()); }

Case statistics_case(const Shape& shape, float mean, float deviation) {
  Case c;
  c.type = "batch_norm_statistics";
  c.attributes = {{"evaluated", "0"}};
  c.narrow_output = false;
  c.inputs = {Tensor::random(shape, 1)};
  for (float& x : c.inputs[0].data) x = x * deviation + mean;
  c.output_shape = {shape.front(), 2, shape.back()};
  const Rect whole = c.inputs[0].whole();
  c.input_tile = [whole](const Rect& out, int) { return of_samples(out, whole); };
  c.reads_input = c.reads_output = true;
  c.run = training(shape.front());
  return c;
}

void check_statistics(const Shape& shape, const std::vector<int>& parts, float mean = 0.3f,
                      float deviation = 1) {
  Case c = statistics_case(shape, mean, deviation);
  Tensor& x = c.inputs[0];
  Tensor dy = Tensor::random(c.output_shape, 2), y(c.output_shape), dx(shape);
  const std::size_t samples = static_cast<std::size_t>(shape.front()), channels = channels_of(x);
  const std::size_t rows = x.data.size() / samples / channels;
  for (std::size_t n = 0; n < samples; ++n) {
    for (std::size_t k = 0; k < channels; ++k) {
      const auto at = [&](std::size_t r) { return (n * rows + r) * channels + k; };
      const auto p = static_cast<double>(rows);
      double sum = 0, squares = 0;
      for (std::size_t r = 0; r < rows; ++r) sum += x.data[at(r)];
      for (std::size_t r = 0; r < rows; ++r) squares += std::pow(x.data[at(r)] - sum / p, 2);
      y.data[2 * n * channels + k] = static_cast<float>(sum / p);
      y.data[(2 * n + 1) * channels + k] = static_cast<float>(squares / p);
      const double dmean = dy.data[2 * n * channels + k],
                   dvariance = dy.data[(2 * n + 1) * channels + k];
      for (std::size_t r = 0; r < rows; ++r) {
        dx.data[at(r)] = static_cast<float>(
            (dmean + 2 * dvariance * (static_cast<double>(x.data[at(r)]) - sum / p)) / p);
      }
    }
  }
  const Results results = run_tiles(c, random_tiles(c.output_shape, parts, 3), dy);
  CHECK(largest_difference(results.output, y) < kTolerance);
  CHECK(largest_difference(results.input_grads[0], dx) < kTolerance);
  // A variance that is small beside 1 must be right, too.
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    if (rows > 1) CHECK(results.output.data[i] == doctest::Approx(y.data[i]).epsilon(1e-5));
  }
}

TEST_CASE("batch_norm_statistics: tiles of samples and channels") {
  check_statistics({3, 5, 7, 64}, {1, 1, 1});
  check_statistics({3, 5, 7, 64}, {3, 1, 3});
  check_statistics({4, 33, 29, 16}, {2, 1, 2});  // rows joined, of any number
  for (const std::int64_t channels : {1, 3, 17, 24, 80, 131, 1040}) {
    check_statistics({2, 5, 3, channels}, {2, 1, 2});
    check_statistics({2, 5, 3, channels}, {1, 1, 1});
  }
  check_statistics({5, 9}, {2, 1, 2});      // one position: no variance
  check_statistics({3, 40, 6}, {2, 1, 1});  // sequences
  check_statistics({2, 3, 4, 2, 5}, {1, 1, 2});
}

TEST_CASE("batch_norm_statistics: a mean far from zero cancels nothing") {
  check_statistics({2, 56, 56, 16}, {1, 1, 1}, 4096, 1);
  check_statistics({2, 30, 20, 70}, {1, 1, 2}, -300, 0.01f);
}

TEST_CASE("batch_norm_statistics: evaluation computes nothing") {
  Case c = statistics_case({2, 3, 3, 4}, 0, 1);
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  Tensor y(c.output_shape, 7);
  KernelTask task;
  task.inputs = {c.inputs[0].view(c.inputs[0].whole())};
  task.outputs = {y.view(y.whole())};
  kernel->forward(task);
  CHECK(y.data == Array<float>(y.data.size(), 7));
}

Case moments_case(std::int64_t valid) {
  Case c;
  c.type = "batch_norm_moments";
  c.attributes = {{"positions", "10"}, {"momentum", "0.25"}, {"running", "1"}};
  c.inputs = {Tensor::random({6, 2, 19}, 4)};
  c.weights = {Tensor::random({19}, 5), Tensor::random({19}, 6)};
  c.trains_weights = false;
  c.output_shape = {1, 2, 19};
  const Rect whole = c.inputs[0].whole();
  c.input_tile = [whole](const Rect& out, int) { return of_channels(out, whole); };
  c.weight_tile = [](const Rect& out, int) {
    return of_channels(out, Rect::of_shape({out.hi[2]}));
  };
  c.reads_input = c.reads_output = true;
  c.run = training(valid);
  return c;
}

TEST_CASE("batch_norm_moments: joint moments, running averages, gradients, without padding") {
  for (const std::int64_t valid : {6, 4, 1}) {
    Case c = moments_case(valid);
    const std::vector<Tensor> before = c.weights;
    Tensor dy = Tensor::random(c.output_shape, 7);
    const Results results = run_tiles(c, random_tiles(c.output_shape, {1, 1, 3}, 8), dy);
    Tensor& x = c.inputs[0];
    Tensor y(c.output_shape), dx(x.shape), mean({19}), variance({19});
    const auto n = static_cast<double>(valid);
    for (std::int64_t k = 0; k < 19; ++k) {
      double joint = 0, spread = 0;
      for (std::int64_t i = 0; i < valid; ++i) joint += x.at(i, 0, k) / n;
      for (std::int64_t i = 0; i < valid; ++i) {
        spread += (x.at(i, 1, k) + std::pow(x.at(i, 0, k) - joint, 2)) / n;
        dx.at(i, 0, k) =
            static_cast<float>((dy.at(0, 0, k) + 2 * dy.at(0, 1, k) * (x.at(i, 0, k) - joint)) / n);
        dx.at(i, 1, k) = static_cast<float>(dy.at(0, 1, k) / n);
      }
      y.at(0, 0, k) = static_cast<float>(joint);
      y.at(0, 1, k) = static_cast<float>(spread);
      const auto u = static_cast<std::size_t>(k);
      mean.at(k) = static_cast<float>(0.75 * before[0].data[u] + 0.25 * joint);
      variance.at(k) =
          static_cast<float>(0.75 * before[1].data[u] + 0.25 * spread * 10 * n / (10 * n - 1));
    }
    CHECK(largest_difference(results.output, y) < kTolerance);
    CHECK(largest_difference(results.input_grads[0], dx) < kTolerance);
    CHECK(largest_difference(c.weights[0], mean) < kTolerance);
    CHECK(largest_difference(c.weights[1], variance) < kTolerance);
  }
}

TEST_CASE("batch_norm_moments: evaluation takes the running averages as they are") {
  Case c = moments_case(6);
  c.run.training = 0;
  const std::vector<Tensor> before = c.weights;
  const Results results = run_tiles(c, {Rect::of_shape(c.output_shape)}, Tensor(c.output_shape));
  for (std::size_t w = 0; w < 2; ++w) {
    CHECK(c.weights[w].data == before[w].data);
    CHECK(std::equal(before[w].data.begin(), before[w].data.end(),
                     results.output.data.begin() + static_cast<std::ptrdiff_t>(19 * w)));
  }
}

TEST_CASE("batch_norm_moments: without running averages, evaluation takes the batch's") {
  Case trained = moments_case(4), c = moments_case(4);
  c.attributes[2].second = "0";
  c.weights.clear();
  const std::vector<Rect> whole = {Rect::of_shape(c.output_shape)};
  const Results wanted = run_tiles(trained, whole, Tensor(c.output_shape));
  for (const int training : {1, 0}) {
    c.run.training = training;
    const Results results = run_tiles(c, whole, Tensor(c.output_shape));
    CHECK(results.output.data == wanted.output.data);
  }
}

Case batch_norm_case(const Shape& shape, const std::string& activation, bool residual) {
  Case c;
  const std::int64_t channels = shape.back();
  c.type = "batch_norm";
  c.narrow_input = [](int i) { return i != 1; };  // the moments
  c.attributes = {{"epsilon", "0.001"}, {"activation", activation}};
  c.inputs = {Tensor::random(shape, 1), Tensor::random({1, 2, channels}, 2)};
  for (float& m : c.inputs[1].data) m = std::abs(m) + 0.1f;  // half of them are variances
  if (residual) c.inputs.push_back(Tensor::random(shape, 7));
  c.weights = {Tensor::random({channels}, 3), Tensor::random({channels}, 4)};
  c.output_shape = shape;
  c.input_tile = [channels](const Rect& out, int operand) {
    return operand == 1 ? of_channels(out, Rect::of_shape({1, 2, channels})) : out;
  };
  c.weight_tile = [channels](const Rect& out, int) {
    return of_channels(out, Rect::of_shape({channels}));
  };
  c.reads_input = true;
  c.reads_output = activation == "relu" && residual;
  c.run = training(shape.front());
  return c;
}

// An activation, and its slope.
std::pair<double, double> activated(const std::string& activation, double z) {
  if (activation == "relu") return z > 0 ? std::pair(z, 1.0) : std::pair(0.0, 0.0);
  if (activation == "relu6" && z >= 6) return {6.0, 0.0};
  if (activation == "relu6") return activated("relu", z);
  if (activation == "silu") {
    const double gate = 1 / (1 + std::exp(-z));
    return {z * gate, gate + z * gate * (1 - gate)};
  }
  if (activation == "hardswish") {
    if (z <= -3) return {0.0, 0.0};
    if (z >= 3) return {z, 1.0};
    return {z * (z + 3) / 6, (2 * z + 3) / 6};
  }
  return {z, 1.0};
}

// What batch_norm should give for the whole tensor.
Results expected_batch_norm(const Case& c, const Tensor& dz, const std::string& activation) {
  const Tensor &x = c.inputs[0], &moments = c.inputs[1];
  const bool residual = c.inputs.size() > 2;
  Results e{Tensor(x.shape), {Tensor(x.shape), Tensor(moments.shape)}, c.weights};
  if (residual) e.input_grads.emplace_back(x.shape);
  const std::size_t channels = channels_of(x), rows = x.data.size() / channels;
  for (std::size_t k = 0; k < channels; ++k) {
    const double mean = moments.data[k], gamma = c.weights[0].data[k], beta = c.weights[1].data[k];
    const double r = 1 / std::sqrt(moments.data[channels + k] + kEpsilon);
    double s = 0, t = 0;
    for (std::size_t i = k; i < rows * channels; i += channels) {
      const double y =
          (x.data[i] - mean) * r * gamma + beta + (residual ? c.inputs[2].data[i] : 0.0f);
      const auto [value, slope] = activated(activation, y);
      const double grad = slope * dz.data[i];
      e.output.data[i] = static_cast<float>(value);
      e.input_grads[0].data[i] = static_cast<float>(grad * gamma * r);
      if (residual) e.input_grads[2].data[i] = static_cast<float>(grad);
      s += grad;
      t += grad * (x.data[i] - mean);
    }
    e.weight_grads[0].data[k] = static_cast<float>(t * r);
    e.weight_grads[1].data[k] = static_cast<float>(s);
    e.input_grads[1].data[k] = static_cast<float>(-gamma * r * s);
    e.input_grads[1].data[channels + k] = static_cast<float>(-gamma * r * r * r * t / 2);
  }
  return e;
}

void check_results(const Results& results, const Results& expected) {
  CHECK(largest_difference(results.output, expected.output) < kTolerance);
  for (std::size_t i = 0; i < expected.input_grads.size(); ++i) {
    CHECK(largest_difference(results.input_grads[i], expected.input_grads[i]) < kTolerance);
  }
  for (std::size_t i = 0; i < expected.weight_grads.size(); ++i) {
    CHECK(largest_difference(results.weight_grads[i], expected.weight_grads[i]) < kTolerance);
  }
}

// Calls check(case, output gradient, expected) with every activation, with and without residual.
template <typename Check>
void for_each_batch_norm(const Shape& shape, Check&& check) {
  for (const std::string activation : {"none", "relu", "relu6", "silu", "hardswish"}) {
    for (const bool residual : {false, true}) {
      if (residual && activation != "none" && activation != "relu") continue;
      Case c = batch_norm_case(shape, activation, residual);
      Tensor dz = Tensor::random(shape, 5);
      check(c, dz, expected_batch_norm(c, dz, activation));
    }
  }
}

void check_batch_norm(const Shape& shape, const std::vector<int>& parts) {
  for_each_batch_norm(shape, [&](Case& c, const Tensor& dz, const Results& expected) {
    check_results(run_tiles(c, random_tiles(shape, parts, 6), dz), expected);
  });
}

TEST_CASE("batch_norm: any split") {
  check_batch_norm({3, 5, 7, 64}, {1, 1, 1, 1});
  check_batch_norm({4, 9, 11, 70}, {2, 3, 2, 3});
  check_batch_norm({2, 40, 33, 16}, {1, 2, 1, 1});  // joined rows
  check_batch_norm({2, 40, 33, 16}, {1, 1, 2, 2});
  for (const std::int64_t channels : {1, 3, 17, 24, 80, 1040}) {
    check_batch_norm({3, 4, 3, channels}, {2, 2, 1, 1});
  }
  check_batch_norm({7, 9}, {2, 3});
  check_batch_norm({3, 40, 6}, {2, 3, 1});
}

// Runs forward and backward over the whole tensor, where every gradient adds to ones.
Results run_adding(Case& c, Tensor& dz) {
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  Results results{Tensor(c.output_shape), {}, {}};
  KernelTask task;
  task.run = c.run;
  const auto bind = [](std::vector<Tensor>& operands, std::vector<Tensor>& grads,
                       std::vector<TensorView>& views, std::vector<TensorView>& grad_views) {
    for (Tensor& t : operands) grads.emplace_back(t.shape, 1.0f);
    for (Tensor& t : operands) views.push_back(t.view(t.whole()));
    for (Tensor& t : grads) grad_views.push_back(t.view(t.whole()));
  };
  bind(c.inputs, results.input_grads, task.inputs, task.input_grads);
  bind(c.weights, results.weight_grads, task.weights, task.weight_grads);
  task.outputs = {results.output.view(results.output.whole())};
  task.output_grads = {dz.view(dz.whole())};
  task.adds_input_grad.assign(c.inputs.size(), true);
  task.adds_weight_grad.assign(c.weights.size(), true);
  REQUIRE(kernel->accumulates());
  kernel->forward(task);
  kernel->backward(task);
  for (auto* grads : {&results.input_grads, &results.weight_grads}) {
    for (Tensor& t : *grads) {
      for (float& g : t.data) g -= 1;
    }
  }
  // Nobody wants a gradient: nothing is written, nothing fails.
  task.input_grads.assign(c.inputs.size(), TensorView());
  task.weight_grads.assign(c.weights.size(), TensorView());
  kernel->backward(task);
  return results;
}

TEST_CASE("batch_norm: adds to gradients") {
  for_each_batch_norm({3, 5, 4, 23}, [](Case& c, Tensor& dz, const Results& expected) {
    check_results(run_adding(c, dz), expected);
  });
  Case statistics = statistics_case({3, 5, 4, 23}, 0, 1);
  Case moments = moments_case(4);
  for (Case* c : {&statistics, &moments}) {
    Tensor dy = Tensor::random(c->output_shape, 9);
    const Results fresh = run_tiles(*c, {Rect::of_shape(c->output_shape)}, dy);
    const Results added = run_adding(*c, dy);
    CHECK(largest_difference(added.input_grads[0], fresh.input_grads[0]) < kTolerance);
  }
}

enum class Use { none, write, add };

// Whether a tile of a gradient is as that use leaves it, of a tensor that was full of ones.
bool is_left_by(Use use, Tensor& found, const Tensor& gradient, const Rect& tile) {
  Tensor correct(found.shape, 1);
  if (use == Use::write) zero_view(correct.view(tile));
  if (use != Use::none) {
    Tensor copy = gradient;
    add_view(correct.view(tile), copy.view(tile));
  }
  return largest_difference(found, correct) < kTolerance;
}

TEST_CASE("batch_norm: each of two gradients is written, added or unwanted; no residual is read") {
  const Shape shape{2, 5, 4, 70};
  for_each_batch_norm(shape, [&](Case& c, Tensor& dz, const Results& expected) {
    if (c.inputs.size() < 3) return;
    const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
    Tensor z = expected.output;
    Rect tile = z.whole();
    tile.lo[1] = 2;
    tile.hi[3] = 67;
    for (const Use x_use : {Use::none, Use::write, Use::add}) {
      for (const Use residual_use : {Use::none, Use::write, Use::add}) {
        Tensor dx(shape, 1), d_residual(shape, 1);
        KernelTask task;
        task.run = c.run;
        task.inputs = {c.inputs[0].view(tile), c.inputs[1].view(c.input_tile(tile, 1)), {}};
        task.weights = {c.weights[0].view(c.weight_tile(tile, 0)), {}};
        task.outputs = {c.reads_output ? z.view(tile) : TensorView()};
        task.output_grads = {dz.view(tile)};
        task.input_grads.resize(3);
        task.weight_grads.resize(2);
        if (x_use != Use::none) task.input_grads[0] = dx.view(tile);
        if (residual_use != Use::none) task.input_grads[2] = d_residual.view(tile);
        task.adds_input_grad = {x_use == Use::add, false, residual_use == Use::add};
        kernel->backward(task);
        CHECK(is_left_by(x_use, dx, expected.input_grads[0], tile));
        CHECK(is_left_by(residual_use, d_residual, expected.input_grads[2], tile));
      }
    }
  });
}

Case layer_norm_case(const Shape& shape) {
  Case c;
  c.type = "layer_norm";
  c.attributes = {{"epsilon", "0.001"}, {"center", "1"}, {"use_scale", "1"}, {"use_bias", "1"}};
  c.inputs = {Tensor::random(shape, 1)};
  for (float& x : c.inputs[0].data) x += 2;
  c.weights = {Tensor::random({shape.back()}, 3), Tensor::random({shape.back()}, 4)};
  c.output_shape = shape;
  c.input_tile = [](const Rect& out, int) { return out; };
  c.weight_tile = [](const Rect& out, int) { return Rect::of_shape({out.hi[out.rank - 1]}); };
  c.reads_input = true;
  return c;
}

Results expected_layer_norm(const Case& c, const Tensor& dy) {
  const Tensor& x = c.inputs[0];
  Results e{Tensor(x.shape), {Tensor(x.shape)}, {Tensor(c.weights[0].shape), c.weights[1]}};
  const std::size_t n = channels_of(x);
  std::vector<double> dgamma(n), dbeta(n);
  const auto &gamma = c.weights[0].data, &beta = c.weights[1].data;
  for (std::size_t row = 0; row < x.data.size(); row += n) {
    double mean = 0, variance = 0, g_mean = 0, gh_mean = 0;
    for (std::size_t i = 0; i < n; ++i) mean += static_cast<double>(x.data[row + i]) / n;
    for (std::size_t i = 0; i < n; ++i) variance += std::pow(x.data[row + i] - mean, 2) / n;
    const double r = 1 / std::sqrt(variance + kEpsilon);
    const auto h = [&](std::size_t i) { return (x.data[row + i] - mean) * r; };
    const auto g = [&](std::size_t i) { return static_cast<double>(dy.data[row + i]) * gamma[i]; };
    for (std::size_t i = 0; i < n; ++i) {
      e.output.data[row + i] = static_cast<float>(h(i) * gamma[i] + beta[i]);
      dgamma[i] += dy.data[row + i] * h(i);
      dbeta[i] += dy.data[row + i];
      g_mean += g(i) / n;
      gh_mean += g(i) * h(i) / n;
    }
    for (std::size_t i = 0; i < n; ++i) {
      e.input_grads[0].data[row + i] = static_cast<float>(r * (g(i) - g_mean - h(i) * gh_mean));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    e.weight_grads[0].data[i] = static_cast<float>(dgamma[i]);
    e.weight_grads[1].data[i] = static_cast<float>(dbeta[i]);
  }
  return e;
}

TEST_CASE("layer_norm: any rows, and added gradients") {
  for (const Shape& shape : {Shape{9, 64}, {3, 50, 5}, {4, 7, 130}, {70, 3, 17}, {2, 2, 3, 300}}) {
    Case c = layer_norm_case(shape);
    Tensor dy = Tensor::random(shape, 5);
    const Results expected = expected_layer_norm(c, dy);
    std::vector<int> parts(shape.size(), 2);
    parts.back() = 1;
    check_results(run_tiles(c, random_tiles(shape, parts, 6), dy), expected);
    check_results(run_adding(c, dy), expected);
  }
}

}  // namespace
}  // namespace flexlegion::testing
