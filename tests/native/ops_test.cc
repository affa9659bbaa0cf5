// The registry, tile views, and the operators other than windows, losses and optimizers.
#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

Rect same_tile(const Rect& out, int) { return out; }

TEST_CASE("registry: names, unknown names, missing attributes") {
  const std::vector<std::string> names = kernel_names(kTested);
  CHECK(std::is_sorted(names.begin(), names.end()));
  CHECK(std::count(names.begin(), names.end(), "conv2d") == 1);
  CHECK(update_kernel_names(kTested) ==
        std::vector<std::string>{"adam", "adamw", "lazy-adam", "sgd"});
  CHECK_THROWS_WITH_AS(make_kernel("telepathy", Attributes(), kTested),
                       doctest::Contains("'telepathy'"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(make_update_kernel("hope", Attributes(), kTested),
                       doctest::Contains("'hope'"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(make_kernel("dropout", Attributes(), kTested), doctest::Contains("'rate'"),
                       std::invalid_argument);
  const Attributes attributes({{"a", "12"}, {"b", "-0.5e1"}, {"c", "12x"}});
  CHECK(attributes.integer("a") == 12);
  CHECK(attributes.number("b") == -5.0);
  CHECK_THROWS_AS(attributes.integer("c"), std::invalid_argument);
}

TEST_CASE("device functions that were compiled by another interface are not taken") {
  const DeviceFunctions* const before = device_functions(DeviceKind::gpu);
  const RegisterDeviceFunctions other({}, DeviceKind::gpu, device_interface() + 1);
  CHECK(device_functions(DeviceKind::gpu) == before);
  CHECK((before == nullptr || before->copy != nullptr));
}

TEST_CASE("tile views: dense, copied, added, zeroed") {
  Tensor t = Tensor::random({4, 5, 6}, 1);
  CHECK(t.view(t.whole()).dense());
  Rect tile = t.whole();
  tile.lo[1] = 2;
  CHECK_FALSE(t.view(tile).dense());
  CHECK(t.view(tile).dense_from(1));
  tile.lo[0] = 3;  // an extent of one has no say
  CHECK(t.view(tile).dense());
  tile = t.whole();
  tile.lo[2] = 1;
  tile.hi[1] = 3;
  Tensor sum({4, 5, 6}, 1.0f);
  add_view(sum.view(tile), t.view(tile));
  Tensor copy({4, 5, 6});
  copy_view(copy.view(tile), sum.view(tile));
  zero_view(sum.view(tile));
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = 0; j < 5; ++j)
      for (std::int64_t k = 0; k < 6; ++k) {
        const bool inside = j < 3 && k >= 1;
        CHECK(sum.at(i, j, k) == (inside ? 0.0f : 1.0f));
        CHECK(copy.at(i, j, k) == (inside ? 1 + t.at(i, j, k) : 0.0f));
      }
  tile.hi[2] = tile.lo[2];
  zero_view(copy.view(tile));  // empty: nothing happens
  CHECK(DenseInput(t.view(t.whole()), 0).data() == t.data.data());
}

double activated(const std::string& f, double x) {
  if (f == "relu") return std::max(x, 0.0);
  if (f == "sigmoid") return 1 / (1 + std::exp(-x));
  if (f == "gelu") return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
  return f == "tanh" ? std::tanh(x) : x;
}

double derivative(const std::string& f, double x) {
  const double y = activated(f, x);
  if (f == "relu") return x > 0 ? 1 : 0;
  if (f == "sigmoid") return y * (1 - y);
  if (f == "tanh") return 1 - y * y;
  if (f == "gelu") {
    const double pi = std::acos(-1.0);
    return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-x * x / 2) / std::sqrt(2 * pi);
  }
  return 1;
}

void check_dense(const Shape& leading, std::int64_t in, std::int64_t out,
                 const std::string& activation, bool use_bias, const std::vector<int>& parts,
                 unsigned seed) {
  Shape x_shape = leading, y_shape = leading;
  x_shape.push_back(in);
  y_shape.push_back(out);
  Case c;
  c.type = "dense";
  c.attributes = {{"activation", activation}, {"use_bias", use_bias ? "1" : "0"}};
  c.inputs = {Tensor::random(x_shape, seed)};
  c.weights = {Tensor::random({out, in}, seed + 1)};
  if (use_bias) c.weights.push_back(Tensor::random({out}, seed + 2));
  c.output_shape = y_shape;
  const std::size_t last = leading.size();
  c.input_tile = [&](Rect tile, int) {
    tile.lo[last] = 0;
    tile.hi[last] = in;
    return tile;
  };
  c.weight_tile = [&](const Rect& tile, int i) {
    Rect r = c.weights[static_cast<std::size_t>(i)].whole();
    r.lo[0] = tile.lo[last];
    r.hi[0] = tile.hi[last];
    return r;
  };
  c.reads_input = true;
  c.reads_output = activation != "none";

  Tensor y(y_shape), dy = Tensor::random(y_shape, seed + 3), dx(x_shape), dw({out, in}), db({out});
  const std::int64_t rows = static_cast<std::int64_t>(y.data.size()) / out;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      float sum = use_bias ? c.weights[1].at(o) : 0;
      const float* x = c.inputs[0].data.data() + r * in;
      for (std::int64_t i = 0; i < in; ++i) sum += x[i] * c.weights[0].at(o, i);
      const auto at = static_cast<std::size_t>(r * out + o);
      y.data[at] = static_cast<float>(activated(activation, sum));
      const float before = dy.data[at] * static_cast<float>(derivative(activation, sum));
      db.at(o) += before;
      for (std::int64_t i = 0; i < in; ++i) {
        dx.data[static_cast<std::size_t>(r * in + i)] += before * c.weights[0].at(o, i);
        dw.at(o, i) += before * x[i];
      }
    }
  const Results tiled = run_tiles(c, random_tiles(y_shape, parts, seed), dy);
  CHECK(largest_difference(tiled.output, y) < kTolerance);
  CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
  CHECK(largest_difference(tiled.weight_grads[0], dw) < kTolerance);
  if (use_bias) CHECK(largest_difference(tiled.weight_grads[1], db) < kTolerance);
}

TEST_CASE("dense: tiles of any cut compute what the whole does") {
  unsigned seed = 1;
  for (const char* activation : {"none", "relu", "sigmoid", "tanh"}) {
    CAPTURE(activation);
    for (const bool use_bias : {true, false}) {
      check_dense({7}, 13, 11, activation, use_bias, {1, 1}, seed++);
      check_dense({7}, 13, 11, activation, use_bias, {3, 3}, seed++);
      check_dense({1}, 5, 40, activation, use_bias, {1, 3}, seed++);
      check_dense({6}, 1, 4, activation, use_bias, {2, 4}, seed++);
      check_dense({5, 6}, 8, 9, activation, use_bias, {2, 3, 2}, seed++);
      check_dense({2, 3, 4}, 8, 9, activation, use_bias, {2, 2, 2, 2}, seed++);
      check_dense({40}, 64, 96, activation, use_bias, {2, 2}, seed++);
      check_dense({130}, 136, 137, activation, use_bias, {1, 1}, seed++);  // rows not aligned
    }
  }
}

TEST_CASE("flatten: tiles that begin and end within rows") {
  for (const Shape& shape : {Shape{3, 4, 5, 2}, Shape{2, 7}, Shape{4, 3, 6}}) {
    Case c;
    c.type = "flatten";
    c.inputs = {Tensor::random(shape, 3)};
    const std::int64_t features = static_cast<std::int64_t>(c.inputs[0].data.size()) / shape[0];
    const std::int64_t row = features / shape[1];
    c.output_shape = {shape[0], features};
    c.input_tile = [&](const Rect& out, int) {
      Rect in = Rect::of_shape(shape);
      in.lo[0] = out.lo[0];
      in.hi[0] = out.hi[0];
      in.lo[1] = out.lo[1] / row;
      in.hi[1] = (out.hi[1] + row - 1) / row;
      return in;
    };
    Tensor dy = Tensor::random(c.output_shape, 4);
    for (unsigned seed = 0; seed < 8; ++seed) {
      const Results tiled = run_tiles(c, random_tiles(c.output_shape, {2, 4}, seed), dy);
      CHECK(tiled.output.data == c.inputs[0].data);
      CHECK(tiled.input_grads[0].data == dy.data);
    }
  }
}

TEST_CASE("element-wise operators") {
  for (const std::string type : {"relu", "sigmoid", "tanh", "gelu"}) {
    CAPTURE(type);
    Case c;
    c.type = type;
    c.inputs = {Tensor::random({5, 6, 19}, 5)};
    for (float& x : c.inputs[0].data) x *= 6;
    c.output_shape = c.inputs[0].shape;
    c.input_tile = same_tile;
    c.reads_input = type == "gelu";
    c.reads_output = !c.reads_input;
    Tensor y(c.output_shape), dy = Tensor::random(c.output_shape, 6), dx(c.output_shape);
    for (std::size_t i = 0; i < y.data.size(); ++i) {
      y.data[i] = static_cast<float>(activated(type, c.inputs[0].data[i]));
      dx.data[i] = dy.data[i] * static_cast<float>(derivative(type, c.inputs[0].data[i]));
    }
    for (unsigned seed = 0; seed < 6; ++seed) {
      const Results tiled = run_tiles(c, random_tiles(c.output_shape, {2, 2, 3}, seed), dy);
      CHECK(largest_difference(tiled.output, y) < kTolerance);
      CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
    }
  }
}

void check_softmax(bool log) {
  for (const Shape& shape : {Shape{6, 10}, Shape{3, 4, 37}, Shape{2, 1}}) {
    Case c;
    c.type = "softmax";
    c.attributes = {{"log", log ? "1" : "0"}};
    c.inputs = {Tensor::random(shape, 7)};
    for (float& x : c.inputs[0].data) x = x * 20 + 300;  // naive exponentials would overflow
    c.output_shape = shape;
    const std::size_t last = shape.size() - 1;
    c.input_tile = [&](Rect tile, int) {
      tile.lo[last] = 0;
      tile.hi[last] = shape[last];
      return tile;
    };
    c.reads_input = true;
    Tensor y(shape), dy = Tensor::random(shape, 8), dx(shape);
    const auto n = static_cast<std::size_t>(shape[last]);
    for (std::size_t row = 0; row < y.data.size(); row += n) {
      double sum = 0, dot = 0, total = 0;
      for (std::size_t i = row; i < row + n; ++i) sum += std::exp(c.inputs[0].data[i] - 300.0);
      const auto softmax = [&](std::size_t i) {
        return std::exp(c.inputs[0].data[i] - 300.0) / sum;
      };
      for (std::size_t i = row; i < row + n; ++i) {
        const double log_softmax = c.inputs[0].data[i] - 300.0 - std::log(sum);
        y.data[i] = static_cast<float>(log ? log_softmax : softmax(i));
        dot += softmax(i) * dy.data[i];
        total += dy.data[i];
      }
      for (std::size_t i = row; i < row + n; ++i) {
        const double own = dy.data[i];
        dx.data[i] = static_cast<float>(log ? own - softmax(i) * total : softmax(i) * (own - dot));
      }
    }
    std::vector<int> parts(shape.size(), 2);
    parts[last] = 4;
    for (unsigned seed = 0; seed < 6; ++seed) {
      const Results tiled = run_tiles(c, random_tiles(shape, parts, seed), dy);
      CHECK(largest_difference(tiled.output, y) < kTolerance * (log ? 50 : 1));
      CHECK(largest_difference(tiled.input_grads[0], dx) < kTolerance);
    }
  }
}

TEST_CASE("softmax: a slice contributes to its whole row") { check_softmax(false); }

TEST_CASE("softmax: its logarithm, also where a softmax is no number any more") {
  check_softmax(true);
  Case c;
  c.type = "softmax";
  c.attributes = {{"log", "1"}};
  c.inputs = {Tensor({1, 3})};
  c.inputs[0].data = {500, 0, -1000};
  c.output_shape = {1, 3};
  c.reads_input = true;
  c.input_tile = [](const Rect& out, int) { return out; };
  const Results results = run_tiles(c, {Rect::of_shape({1, 3})}, Tensor({1, 3}, 1));
  CHECK(results.output.data == Array<float>{0, -500, -1500});
}

Case dropout_case(const char* rate, const char* id) {
  Case c;
  c.type = "dropout";
  c.attributes = {{"rate", rate}, {"id", id}};
  c.inputs = {Tensor({20, 30, 50}, 1.0f)};
  c.output_shape = c.inputs[0].shape;
  c.input_tile = same_tile;
  c.run.training = 1;
  c.run.seed = 42;
  return c;
}

TEST_CASE("dropout: one mask, whatever the tiles") {
  Case c = dropout_case("0.3", "5");
  const Tensor ones(c.output_shape, 1.0f);
  const Results whole = run_tiles(c, {Rect::of_shape(c.output_shape)}, ones);
  CHECK(whole.input_grads[0].data == whole.output.data);
  std::int64_t kept = 0;
  for (const float y : whole.output.data) {
    const bool dropped = y == 0.0f, scaled = std::abs(y - 1 / 0.7f) < 1e-6f;
    CHECK_UNARY(dropped || scaled);
    kept += dropped ? 0 : 1;
  }
  // 30000 draws of probability 0.7: five standard deviations are 397.
  CHECK(std::abs(kept - 21000) < 397);
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Results tiled = run_tiles(c, random_tiles(c.output_shape, {3, 3, 3}, seed), ones);
    CHECK(tiled.output.data == whole.output.data);
    CHECK(tiled.input_grads[0].data == whole.output.data);
  }

  const auto differs = [&](Case other) {
    return run_tiles(other, {Rect::of_shape(c.output_shape)}, ones).output.data !=
           whole.output.data;
  };
  Case later = c, reseeded = c;
  later.run.step = 1;
  reseeded.run.seed = 43;
  CHECK(differs(later));
  CHECK(differs(reseeded));
  CHECK(differs(dropout_case("0.3", "6")));
  c.run.training = 0;
  CHECK(run_tiles(c, random_tiles(c.output_shape, {2, 2, 2}, 1), ones).output.data == ones.data);
}

TEST_CASE("dropout: a GPU drops what a CPU drops") {
  Case c = dropout_case("0.3", "5");
  const auto dropped = [&](DeviceKind kind) {
    Tensor y(c.output_shape);
    KernelTask task;
    task.run = c.run;
    task.inputs = {c.inputs[0].view(c.inputs[0].whole())};
    task.outputs = {y.view(y.whole())};
    on_device([&] { make_kernel(c.type, Attributes(c.attributes), kind)->forward(task); });
    return y.data;
  };
  CHECK(dropped(DeviceKind::gpu) == dropped(DeviceKind::cpu));
}

TEST_CASE("what a GPU may do again as it was recorded") {
  const auto repeats = [](const Case& c) {
    return make_kernel(c.type, Attributes(c.attributes), DeviceKind::gpu)->repeats();
  };
  CHECK_FALSE(repeats(dropout_case("0.3", "5")));  // which drops other elements at each step
  CHECK(repeats(dropout_case("0", "5")));
  const auto update = [](const char* optimizer) {
    const Entries entries = {{"momentum", "0"}, {"nesterov", "0"}, {"weight_decay", "0"},
                             {"beta1", "0.9"},  {"beta2", "0.99"}, {"epsilon", "1e-8"}};
    return make_update_kernel(optimizer, Attributes(entries), DeviceKind::gpu)->repeats();
  };
  CHECK(update("sgd"));
  CHECK_FALSE(update("adam"));  // whose steps are corrected by their number
  CHECK_FALSE(update("lazy-adam"));
}

TEST_CASE("one kernel serves several threads at once") {
  Case c;
  c.type = "dense";
  c.attributes = {{"activation", "tanh"}, {"use_bias", "1"}};
  c.inputs = {Tensor::random({32, 20}, 1)};
  c.weights = {Tensor::random({24, 20}, 2), Tensor::random({24}, 3)};
  const auto kernel = make_kernel(c.type, Attributes(c.attributes), kTested);
  const auto forward = [&](Tensor& y, const Rect& tile) {
    Rect in = tile;
    in.lo[1] = 0;
    in.hi[1] = 20;
    KernelTask task;
    task.inputs = {c.inputs[0].view(in)};
    task.weights = {c.weights[0].view(c.weights[0].whole()),
                    c.weights[1].view(c.weights[1].whole())};
    task.outputs = {y.view(tile)};
    on_device([&] { kernel->forward(task); });
  };
  Tensor alone({32, 24}), together({32, 24});
  const std::vector<Rect> tiles = random_tiles({32, 24}, {8, 1}, 4);
  for (const Rect& tile : tiles) forward(alone, tile);
  std::vector<std::thread> threads;
  for (const Rect& tile : tiles) {
    threads.emplace_back([&, tile] {
      for (int i = 0; i < 50; ++i) forward(together, tile);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together.data == alone.data);
}

}  // namespace
}  // namespace flexlegion::testing
