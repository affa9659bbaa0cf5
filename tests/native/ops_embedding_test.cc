// Embeddings: rows of a table by token, and by position.
#include <doctest/doctest.h>

#include <stdexcept>
#include <utility>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

constexpr std::int64_t kVocabulary = 7, kUnits = 19, kSamples = 5, kSteps = 4, kStart = 2;

// Tokens of more steps than the operator reads.
struct Tokens {
  Tensor shape{{kSamples, kSteps + 3}};
  Array<std::int32_t> numbers;

  Tokens() {
    for (std::size_t i = 0; i < shape.data.size(); ++i) {
      numbers.push_back(static_cast<std::int32_t>(i * i % 5));  // many twice, 5 and 6 never
    }
  }
  TensorView view(const Rect& output_tile) {
    Rect tile = shape.whole();
    tile.lo = {output_tile.lo[0], kStart + output_tile.lo[1]};
    tile.hi = {output_tile.hi[0], kStart + output_tile.hi[1]};
    TensorView v = shape.view(tile);
    v.data = numbers.data() + (v.f32() - shape.data.data());
    return v;
  }
  std::int32_t at(std::int64_t sample, std::int64_t step) const {
    return numbers[static_cast<std::size_t>(sample * (kSteps + 3) + kStart + step)];
  }
};

// Of the table, the rows [lo, hi) of an output tile's columns.
Rect columns(const Rect& output_tile, std::int64_t lo = 0, std::int64_t hi = kVocabulary) {
  Rect tile = Rect::of_shape({hi, kUnits});
  tile.lo[0] = lo;
  tile.lo[1] = output_tile.lo[2];
  tile.hi[1] = output_tile.hi[2];
  return tile;
}

void check_embedding(std::int64_t padding) {
  const Attributes attributes({{"padding", std::to_string(padding)}});
  const auto kernel = make_kernel("embedding", attributes, kTested);
  CHECK(kernel->accumulates());
  Tokens tokens;
  Tensor table = Tensor::random({kVocabulary, kUnits}, 1);
  const Shape shape{kSamples, kSteps, kUnits};
  Tensor dy = Tensor::random(shape, 2), expected(shape), expected_gradient(table.shape);
  for (std::int64_t n = 0; n < kSamples; ++n)
    for (std::int64_t t = 0; t < kSteps; ++t)
      for (std::int64_t c = 0; c < kUnits; ++c) {
        expected.at(n, t, c) = table.at(tokens.at(n, t), c);
        if (tokens.at(n, t) == padding) continue;
        expected_gradient.at(tokens.at(n, t), c) += dy.at(n, t, c);
      }
  for (unsigned seed = 0; seed < 6; ++seed) {
    Tensor y(shape, kNan), sum(table.shape), accumulated(table.shape);
    for (const Rect& tile : random_tiles(shape, {2, 3, 2}, seed)) {
      KernelTask task;
      task.inputs = {tokens.view(tile)};
      task.weights = {table.view(columns(tile))};
      task.outputs = {y.view(tile)};
      kernel->forward(task);
      task.weights = task.outputs = {TensorView()};
      task.output_grads = {dy.view(tile)};
      task.input_grads = {TensorView()};
      Tensor part(table.shape, kNan);
      task.weight_grads = {part.view(columns(tile))};
      kernel->backward(task);
      add_view(sum.view(columns(tile)), part.view(columns(tile)));
      task.weight_grads = {accumulated.view(columns(tile))};
      task.adds_weight_grad = {true};
      kernel->backward(task);
    }
    CHECK(y.data == expected.data);
    CHECK(largest_difference(sum, expected_gradient) < kTolerance);
    CHECK(largest_difference(accumulated, expected_gradient) < kTolerance);
  }
}

TEST_CASE("embedding") { check_embedding(-1); }

TEST_CASE("embedding: the row of a padding token has no gradient") {
  for (const std::int64_t padding : {0, 3, 6}) check_embedding(padding);
}

TEST_CASE("embedding: parts of the rows give parts of a sum") {
  const auto kernel = make_kernel("embedding", Attributes(), kTested);
  Tokens tokens;
  Tensor table = Tensor::random({kVocabulary, kUnits}, 1), sum({kSamples, kSteps, kUnits});
  Tensor dy = Tensor::random(sum.shape, 2), dtable(table.shape, kNan), whole(table.shape);
  const Rect tile = sum.whole();
  for (const auto& [lo, hi] : {std::pair{0, 2}, {2, 3}, {3, 7}}) {
    Tensor part(sum.shape, kNan);
    KernelTask task;
    task.inputs = {tokens.view(tile)};
    task.weights = {table.view(columns(tile, lo, hi))};
    task.outputs = {part.view(tile)};
    kernel->forward(task);
    add_view(sum.view(tile), part.view(tile));
    task.weights = task.outputs = {TensorView()};
    task.output_grads = {dy.view(tile)};
    task.weight_grads = {dtable.view(columns(tile, lo, hi))};
    kernel->backward(task);
  }
  for (std::int64_t n = 0; n < kSamples; ++n)
    for (std::int64_t t = 0; t < kSteps; ++t)
      for (std::int64_t c = 0; c < kUnits; ++c) {
        CHECK(sum.at(n, t, c) == table.at(tokens.at(n, t), c));
        whole.at(tokens.at(n, t), c) += dy.at(n, t, c);
      }
  CHECK(largest_difference(dtable, whole) < kTolerance);
}

TEST_CASE("embedding: one token a sample") {
  const auto kernel = make_kernel("embedding", Attributes(), kTested);
  Array<std::int32_t> numbers{3, 0, 3, 6};
  Tensor table = Tensor::random({kVocabulary, kUnits}, 1), y({4, kUnits}, kNan);
  Tensor dy = Tensor::random(y.shape, 2), dtable(table.shape, kNan), expected(table.shape);
  KernelTask task;
  task.inputs = {dense_view(numbers.data(), Rect::of_shape({4}), {4})};
  task.weights = {table.view(table.whole())};
  task.outputs = {y.view(y.whole())};
  kernel->forward(task);
  task.output_grads = {dy.view(dy.whole())};
  task.weight_grads = {dtable.view(dtable.whole())};
  kernel->backward(task);
  for (std::int64_t n = 0; n < 4; ++n)
    for (std::int64_t c = 0; c < kUnits; ++c) {
      const std::int64_t row = numbers[static_cast<std::size_t>(n)];
      CHECK(y.at(n, c) == table.at(row, c));
      expected.at(row, c) += dy.at(n, c);
    }
  CHECK(largest_difference(dtable, expected) < kTolerance);
}

TEST_CASE("embedding: tokens without a row") {
  const auto kernel = make_kernel("embedding", Attributes(), kTested);
  for (const std::int32_t wrong : {-1, 7}) {
    Tokens tokens;
    tokens.numbers[kSteps + 3 + kStart + 2] = wrong;
    Tensor table({kVocabulary, kUnits}), y({kSamples, kSteps, kUnits});
    KernelTask task;
    task.inputs = {tokens.view(y.whole())};
    task.weights = {table.view(table.whole())};
    task.outputs = {y.view(y.whole())};
    if (!of_gpus()) {
      const std::string message =
          "embedding: token " + std::to_string(wrong) + " is not a row of 0 to 6";
      CHECK_THROWS_WITH_AS(kernel->forward(task), message.c_str(), std::invalid_argument);
      continue;
    }
    // A device cannot throw: such a token reads zeros, and has no gradient.
    table.data.assign(table.data.size(), 1.0f);
    kernel->forward(task);
    Tensor dy(y.shape, 1.0f), dtable(table.shape, kNan);
    task.output_grads = {dy.view(dy.whole())};
    task.weight_grads = {dtable.view(dtable.whole())};
    kernel->backward(task);
    double read = 0, gradients = 0;
    for (const float x : y.data) read += x;
    for (const float x : dtable.data) gradients += x;
    CHECK(read == (kSamples * kSteps - 1) * kUnits);
    CHECK(y.at(1, 2, 3) == 0);
    CHECK(gradients == read);
  }
}

TEST_CASE("position_embedding") {
  const Shape shape{kSamples, kSteps, kUnits};
  Case c{"position_embedding",
         {},
         {Tensor::random(shape, 1)},
         {Tensor::random({kSteps, kUnits}, 2)},
         shape,
         [](const Rect& tile, int) { return tile; },
         [](const Rect& tile, int) {
           Rect part = Rect::of_shape({kSteps, kUnits});
           part.lo = {tile.lo[1], tile.lo[2]};
           part.hi = {tile.hi[1], tile.hi[2]};
           return part;
         }};
  Tensor dy = Tensor::random(shape, 3), expected(shape), expected_gradient({kSteps, kUnits});
  for (std::int64_t n = 0; n < kSamples; ++n)
    for (std::int64_t t = 0; t < kSteps; ++t)
      for (std::int64_t u = 0; u < kUnits; ++u) {
        expected.at(n, t, u) = c.inputs[0].at(n, t, u) + c.weights[0].at(t, u);
        expected_gradient.at(t, u) += dy.at(n, t, u);
      }
  for (unsigned seed = 0; seed < 6; ++seed) {
    const Results results = run_tiles(c, random_tiles(shape, {2, 2, 2}, seed), dy);
    CHECK(results.output.data == expected.data);
    CHECK(results.input_grads[0].data == dy.data);
    CHECK(largest_difference(results.weight_grads[0], expected_gradient) < kTolerance);
  }
}

TEST_CASE("position_embedding: gradients that are added, and absent ones") {
  const auto kernel = make_kernel("position_embedding", Attributes(), kTested);
  CHECK(kernel->accumulates());
  const Shape shape{3, 2, 4};
  Tensor dy = Tensor::random(shape, 1), dx(shape, 1.0f), dtable({2, 4}, 1.0f);
  KernelTask task;
  task.output_grads = {dy.view(dy.whole())};
  task.input_grads = {dx.view(dx.whole())};
  task.weight_grads = {dtable.view(dtable.whole())};
  task.adds_input_grad = task.adds_weight_grad = {true};
  kernel->backward(task);
  for (std::int64_t t = 0; t < 2; ++t)
    for (std::int64_t u = 0; u < 4; ++u) {
      float sum = 1;
      for (std::int64_t n = 0; n < 3; ++n) {
        sum += dy.at(n, t, u);
        CHECK(dx.at(n, t, u) == 1 + dy.at(n, t, u));
      }
      CHECK(dtable.at(t, u) == doctest::Approx(sum));
    }
  Tensor before = dtable;
  task.input_grads = {TensorView()};
  task.adds_weight_grad = {};
  kernel->backward(task);
  for (std::size_t i = 0; i < dtable.data.size(); ++i) {
    CHECK(dtable.data[i] == doctest::Approx(before.data[i] - 1));
  }
}

}  // namespace
}  // namespace flexlegion::testing
