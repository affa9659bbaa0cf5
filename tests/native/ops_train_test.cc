// Losses and optimizers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

struct LossResults {
  Tensor losses, log_sums, gradient;
  Metrics metrics;
};

using LabelsOf = std::function<TensorView(const Rect& tile)>;

// A loss's operands for one label a sample, or one a sample and step.
Shape shape_of_losses(const std::string& type, const Tensor& prediction) {
  if (type != "softmax_cross_entropy" && type != "cross_entropy") return {prediction.shape[0]};
  return Shape(prediction.shape.begin(), prediction.shape.end() - 1);
}

// The tile of a tensor whose first dimensions are those of `tile`, and whose others are whole.
Rect widened(const Rect& tile, const Tensor& tensor) {
  Rect wide = tensor.whole();
  std::copy_n(tile.lo.begin(), tile.rank, wide.lo.begin());
  std::copy_n(tile.hi.begin(), tile.rank, wide.hi.begin());
  return wide;
}

// Runs a loss operator over pieces of the batch.
LossResults run_loss(const std::string& type, const Attributes& attributes, Tensor& prediction,
                     const LabelsOf& labels, std::int64_t valid, std::int64_t valid_labels,
                     unsigned seed, Tensor* weights = nullptr) {
  const auto kernel = make_kernel(type, attributes, kTested);
  const Shape shape = shape_of_losses(type, prediction);
  LossResults results{Tensor(shape, kNan), Tensor(shape, kNan), Tensor(prediction.shape, kNan), {}};
  for (const Rect& losses : random_tiles(shape, {3, 2}, seed)) {
    const Rect tile = widened(losses, prediction);
    KernelTask task;
    task.run.valid_samples = valid;
    task.run.label_share = valid_labels > 0 ? 1.0 / static_cast<double>(valid_labels) : 0.0;
    task.inputs = {prediction.view(tile), labels(losses)};
    if (weights != nullptr) task.inputs.insert(task.inputs.begin() + 1, weights->view(losses));
    task.outputs = {results.losses.view(losses), results.log_sums.view(losses)};
    Array<Metrics> metrics(1);
    task.metrics = metrics.data();
    kernel->forward(task);
    results.metrics.add(metrics[0]);
    task.outputs[0] = TensorView();
    task.input_grads = {results.gradient.view(tile), TensorView()};
    kernel->backward(task);
  }
  return results;
}

// A tensor that is summed up over pieces of the classes, of which each gave a part.
void add_part(Tensor& sum, Tensor& part, const Rect& tile) {
  add_view(sum.view(tile), part.view(tile));
}

// What a cross-entropy multiplies losses with, where that is not 1, and a label that is ignored.
struct LossWeights {
  Tensor* of_classes = nullptr;  // (1, classes)
  Tensor* of_labels = nullptr;   // of the labels' shape
  std::int64_t ignored = -1;
};

// Runs a cross-entropy by numbers of classes, as its three operators do: over pieces of the batch,
// and these over pieces of the classes.
LossResults run_by_classes(Tensor& logits, const LabelsOf& labels, double smoothing,
                           std::int64_t valid, std::int64_t valid_labels, unsigned seed,
                           const LossWeights& weights = {}) {
  const std::int64_t classes = logits.shape.back();
  Entries counted;
  if (weights.ignored >= 0) counted = {{"ignored", std::to_string(weights.ignored)}};
  double mean_weight = 1;
  if (weights.of_classes != nullptr) {
    const auto& each = weights.of_classes->data;
    mean_weight = std::accumulate(each.begin(), each.end(), 0.0) / static_cast<double>(classes);
  }
  const std::pair<std::string, std::string> mean{"mean_weight", std::to_string(mean_weight)};
  Entries of_statistics = counted, of_loss = counted;
  of_statistics.push_back(mean);
  of_loss.emplace_back("smoothing", std::to_string(smoothing));
  of_loss.emplace_back("classes", std::to_string(classes));
  if (weights.of_classes != nullptr) {
    of_loss.emplace_back("class_weights", "1");
    of_loss.push_back(mean);
  }
  if (weights.of_labels != nullptr) of_loss.emplace_back("label_weights", "1");
  const auto own_logit = make_kernel("own_logit", Attributes(counted), kTested);
  const auto statistics =
      make_kernel(smoothing > 0 ? "smoothed_logit_statistics" : "logit_statistics",
                  Attributes(of_statistics), kTested);
  const auto loss = make_kernel("cross_entropy", Attributes(of_loss), kTested);
  const auto with_weights_of = [&](const Rect& piece, KernelTask& task) {
    if (weights.of_classes == nullptr || smoothing == 0) return;
    Rect its = weights.of_classes->whole();
    its.lo[1] = piece.lo[piece.rank - 1];
    its.hi[1] = piece.hi[piece.rank - 1];
    task.inputs.push_back(weights.of_classes->view(its));
  };
  const Shape shape = shape_of_losses("cross_entropy", logits);
  const std::size_t outputs = smoothing > 0 ? 3 : 2;
  LossResults results{Tensor(shape, kNan), Tensor(shape), Tensor(logits.shape, kNan), {}};
  std::mt19937 rng(seed);
  for (const Rect& tile : random_tiles(shape, {3, 2}, seed)) {
    KernelTask task;
    task.run.valid_samples = valid;
    task.run.label_share = valid_labels > 0 ? 1.0 / static_cast<double>(valid_labels) : 0.0;
    std::vector<Rect> pieces;
    for (const auto& [lo, hi] : random_pieces(classes, 3, rng)) {
      pieces.push_back(widened(tile, logits));
      pieces.back().lo[tile.rank] = lo;
      pieces.back().hi[tile.rank] = hi;
    }
    Tensor own(shape);
    for (const Rect& piece : pieces) {
      Tensor part(shape, kNan);
      task.inputs = {logits.view(piece), labels(tile)};
      task.outputs = {part.view(tile)};
      own_logit->forward(task);
      add_part(own, part, tile);
    }
    std::vector<Tensor> found(outputs, Tensor(shape));
    for (const Rect& piece : pieces) {
      std::vector<Tensor> parts(outputs, Tensor(shape, kNan));
      task.inputs = {logits.view(piece), labels(tile), own.view(tile)};
      with_weights_of(piece, task);
      task.outputs.clear();
      for (Tensor& part : parts) task.outputs.push_back(part.view(tile));
      statistics->forward(task);
      for (float& x : parts[0].data) x = std::exp(x);
      for (std::size_t i = 0; i < outputs; ++i) add_part(found[i], parts[i], tile);
    }
    for (float& x : found[0].data) x = std::log(x);

    std::vector<Tensor> gradients(outputs, Tensor(shape, kNan));
    KernelTask last = task;
    last.inputs.clear();
    last.outputs = {results.losses.view(tile)};
    for (Tensor& tensor : found) last.inputs.push_back(tensor.view(tile));
    if (weights.of_classes != nullptr) {
      last.inputs.push_back(weights.of_classes->view(weights.of_classes->whole()));
    }
    if (weights.of_labels != nullptr) last.inputs.push_back(weights.of_labels->view(tile));
    last.inputs.push_back(labels(tile));
    Array<Metrics> metrics(1);
    last.metrics = metrics.data();
    loss->forward(last);
    results.metrics.add(metrics[0]);
    for (std::size_t i = 0; i < outputs; ++i) {  // no gradient passes through the rank
      last.inputs[i] = TensorView();
      last.input_grads.push_back(i == 1 ? TensorView() : gradients[i].view(tile));
    }
    last.input_grads.emplace_back();
    loss->backward(last);

    for (const Rect& piece : pieces) {
      task.inputs = {logits.view(piece), labels(tile), own.view(tile)};
      with_weights_of(piece, task);
      task.outputs.assign(outputs, TensorView());
      task.outputs[0] = found[0].view(tile);
      task.output_grads.clear();
      for (std::size_t i = 0; i < outputs; ++i) task.output_grads.push_back(last.input_grads[i]);
      task.input_grads = {results.gradient.view(piece), TensorView(), TensorView()};
      statistics->backward(task);
    }
    add_part(results.log_sums, own, tile);
    add_part(results.log_sums, found[0], tile);
  }
  return results;
}

// What a cross-entropy should give, for labels as a distribution a sample or step; one of
// zeros does not count.
LossResults expected_cross_entropy(const Tensor& logits, const Tensor& targets,
                                   std::int64_t valid) {
  const auto classes = static_cast<std::size_t>(logits.shape.back());
  const Shape shape = shape_of_losses("cross_entropy", logits);
  LossResults expected{Tensor(shape), Tensor(shape), Tensor(logits.shape), {}};
  expected.metrics.samples = valid;
  const std::size_t rows = expected.losses.data.size(),
                    steps = rows / static_cast<std::size_t>(shape[0]);
  for (std::size_t r = 0; r < static_cast<std::size_t>(valid) * steps; ++r) {
    const float *const x = &logits.data[r * classes], *const y = &targets.data[r * classes];
    double sum = 0, total = 0, loss = 0;
    for (std::size_t k = 0; k < classes; ++k) {
      sum += std::exp(static_cast<double>(x[k]));
      total += y[k];
    }
    if (total == 0) continue;
    const auto truth = static_cast<std::size_t>(std::max_element(y, y + classes) - y);
    std::size_t rank = 0;
    for (std::size_t k = 0; k < classes; ++k) {
      const double p = std::exp(static_cast<double>(x[k])) / sum;
      loss -= y[k] * std::log(p);
      expected.gradient.data[r * classes + k] = static_cast<float>(p * total - y[k]);
      rank += x[k] > x[truth] || (x[k] == x[truth] && k < truth);
    }
    expected.log_sums.data[r] = static_cast<float>(std::log(sum));
    expected.losses.data[r] = static_cast<float>(loss);
    expected.metrics.loss += loss;
    expected.metrics.correct += rank == 0 ? 1 : 0;
    expected.metrics.correct_top5 += rank < 5 ? 1 : 0;
    ++expected.metrics.labels;
  }
  for (float& g : expected.gradient.data) g /= static_cast<float>(expected.metrics.labels);
  return expected;
}

void check_losses(const LossResults& results, const LossResults& expected) {
  CHECK(largest_difference(results.losses, expected.losses) < kTolerance);
  CHECK(largest_difference(results.gradient, expected.gradient) < kTolerance);
  CHECK(results.metrics.loss == doctest::Approx(expected.metrics.loss).epsilon(1e-5));
  CHECK(results.metrics.correct == doctest::Approx(expected.metrics.correct));
  CHECK(results.metrics.correct_top5 == expected.metrics.correct_top5);
  CHECK(results.metrics.squared_error == doctest::Approx(expected.metrics.squared_error));
  CHECK(results.metrics.absolute_error == doctest::Approx(expected.metrics.absolute_error));
  CHECK(results.metrics.labels == expected.metrics.labels);
  CHECK(results.metrics.samples == expected.metrics.samples);
}

// Class numbers, and the distributions that they mean.
struct SparseLabels {
  Array<std::int32_t> classes;
  Tensor shape, targets;

  SparseLabels(const Tensor& logits, Array<std::int32_t> numbers)
      : classes(std::move(numbers)),
        shape(shape_of_losses("cross_entropy", logits)),
        targets(logits.shape) {
    for (std::size_t i = 0; i < classes.size(); ++i) {
      if (classes[i] < 0 || classes[i] >= logits.shape.back()) continue;
      targets.data[i * static_cast<std::size_t>(logits.shape.back()) +
                   static_cast<std::size_t>(classes[i])] = 1;
    }
  }
  LabelsOf view() {
    return [this](const Rect& tile) {
      TensorView v = shape.view(tile);
      v.data = classes.data() + (v.f32() - shape.data.data());
      return v;
    };
  }
};

LabelsOf view_of(Tensor& targets) {
  return [&targets](const Rect& tile) { return targets.view(widened(tile, targets)); };
}

const Attributes kOneHot(Entries{{"smoothing", "0"}});

TEST_CASE("cross_entropy: sparse labels, with padding") {
  Tensor logits = Tensor::random({11, 23}, 1);
  Array<std::int32_t> classes(11);
  for (float& x : logits.data) x *= 5;
  for (int i = 0; i < 11; ++i) {
    classes[static_cast<std::size_t>(i)] = i * 7 % 23;
    if (i % 2 == 0) logits.at(i, i * 7 % 23) += 10;  // half are right
  }
  classes[4] = -1;
  SparseLabels labels(logits, classes);
  labels.classes[10] = 1000;  // padding may hold anything
  for (unsigned seed = 0; seed < 4; ++seed) {
    check_losses(run_by_classes(logits, labels.view(), 0, 9, 8, seed),
                 expected_cross_entropy(logits, labels.targets, 9));
  }
}

TEST_CASE("cross_entropy: labels that are no class") {
  Tensor logits = Tensor::random({2, 3, 7}, 1);
  SparseLabels labels(logits, {0, 1, 2, 3, 7, 5});
  if (of_gpus()) {  // A device cannot throw: such a label gives no loss.
    SparseLabels others(logits, {0, 1, 2, 3, -1, 5});
    check_losses(run_by_classes(logits, labels.view(), 0, 2, 5, 1),
                 expected_cross_entropy(logits, others.targets, 2));
    return;
  }
  CHECK_THROWS_WITH_AS(run_by_classes(logits, labels.view(), 0, 2, 6, 1),
                       doctest::Contains("the label of sample 1, step 1 is 7, not a class of 0"),
                       std::invalid_argument);
  Tensor rows = Tensor::random({2, 7}, 1);
  SparseLabels one_each(rows, {0, 7});
  CHECK_THROWS_WITH_AS(run_by_classes(rows, one_each.view(), 0, 2, 2, 1),
                       doctest::Contains("the label of sample 1 is 7"), std::invalid_argument);
}

TEST_CASE("cross_entropy: sequences, some of whose steps do not count") {
  // Rows around the blocks in which they are read.
  for (const std::int64_t classes : {3, 16, 4095, 4097, 10007}) {
    Tensor logits = Tensor::random({5, 4, classes}, 1);
    Array<std::int32_t> numbers(20);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = i % 3 == 1 ? -1 : static_cast<std::int32_t>(i * 577 % classes);
      // Above all the others, or among the highest; the maximum near the end comes late.
      float* const row = &logits.data[i * classes];
      if (numbers[i] >= 0) row[numbers[i]] += i % 2 == 0 ? 3.0f : 1.0f - 1e-3f;
      row[classes - 1] += static_cast<float>(i);
    }
    SparseLabels labels(logits, numbers);
    const LossResults expected = expected_cross_entropy(logits, labels.targets, 4);
    for (unsigned seed = 0; seed < 4; ++seed) {
      const LossResults results =
          run_by_classes(logits, labels.view(), 0, 4, expected.metrics.labels, seed);
      check_losses(results, expected);
      CHECK(largest_difference(results.log_sums, expected.log_sums) < kTolerance);
    }
  }
}

TEST_CASE("cross_entropy: without a label that counts, nothing has a gradient") {
  Tensor logits = Tensor::random({2, 3, 7}, 1);
  SparseLabels labels(logits, Array<std::int32_t>(6, -1));
  LossResults expected{Tensor({2, 3}), Tensor({2, 3}), Tensor(logits.shape), {}};
  expected.metrics.samples = 2;
  check_losses(run_by_classes(logits, labels.view(), 0, 2, 0, 1), expected);
}

TEST_CASE("cross_entropy: of equal logits the first counts as the likelier") {
  Tensor logits({9, 9}, 0.5f);
  logits.at(7, 8) = kNan;  // and those that are no numbers as never right
  logits.at(8, 8) = kNan;
  SparseLabels labels(logits, {0, 1, 2, 3, 4, 5, 6, 0, 8});
  const Metrics metrics = run_by_classes(logits, labels.view(), 0, 9, 9, 1).metrics;
  CHECK(metrics.correct == 2);       // of samples 0 and 7
  CHECK(metrics.correct_top5 == 6);  // 0 to 4, and 7
  CHECK(std::isnan(metrics.loss));
}

TEST_CASE("softmax_cross_entropy: labels as distributions") {
  for (const Shape& shape : {Shape{8, 5}, Shape{8, 3, 11}}) {
    Tensor logits = Tensor::random(shape, 2), targets = Tensor::random(shape, 3);
    for (float& y : targets.data) y = std::abs(y);
    for (const std::int64_t valid : {8, 3}) {
      const LossResults expected = expected_cross_entropy(logits, targets, valid);
      check_losses(run_loss("softmax_cross_entropy", kOneHot, logits, view_of(targets), valid,
                            expected.metrics.labels, 1),
                   expected);
    }
  }
}

TEST_CASE("softmax_cross_entropy: weights of labels are part of their distributions") {
  Tensor logits = Tensor::random({6, 3, 7}, 2), targets = Tensor::random({6, 3, 7}, 3),
         weights = Tensor::random({6, 3}, 4), weighted(targets.shape);
  for (std::size_t i = 0; i < targets.data.size(); ++i) {
    targets.data[i] = std::abs(targets.data[i]);
    weights.data[i / 7] = std::abs(weights.data[i / 7]);
    weighted.data[i] = targets.data[i] * weights.data[i / 7];
  }
  check_losses(
      run_loss("softmax_cross_entropy", kOneHot, logits, view_of(targets), 5, 15, 1, &weights),
      expected_cross_entropy(logits, weighted, 5));
}

TEST_CASE("softmax_cross_entropy: huge logits neither overflow nor vanish") {
  // Differences of 1000: the loss of the wrong class is 1000, that of the right one 0.
  Tensor logits({2, 2}), targets({2, 2});
  logits.data = {1000, 0, 1000, 0};
  targets.data = {1, 0, 0, 1};
  LossResults results =
      run_loss("softmax_cross_entropy", kOneHot, logits, view_of(targets), 2, 2, 1);
  CHECK(results.losses.data == Array<float>{0, 1000});
  CHECK(results.gradient.at(1, 0) == doctest::Approx(0.5));
}

TEST_CASE("softmax_cross_entropy: smoothed labels are distributions") {
  const double smoothing = 0.3;
  Tensor logits = Tensor::random({5, 3, 11}, 1), targets(logits.shape);
  Array<std::int32_t> numbers(15);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = i % 5 == 1 ? -1 : static_cast<std::int32_t>(i * 7 % 11);
    for (std::size_t c = 0; c < 11 && numbers[i] >= 0; ++c) {
      const double kept = static_cast<std::int32_t>(c) == numbers[i] ? 1 - smoothing : 0;
      targets.data[i * 11 + c] = static_cast<float>(kept + smoothing / 11);
    }
  }
  const LossResults expected = expected_cross_entropy(logits, targets, 4);
  SparseLabels sparse(logits, numbers);
  check_losses(run_by_classes(logits, sparse.view(), smoothing, 4, expected.metrics.labels, 1),
               expected);
  // A distribution's share is smoothed whatever its sum.
  Tensor soft = Tensor::random(logits.shape, 3), smoothed(logits.shape);
  for (std::size_t i = 0; i < soft.data.size(); ++i) {
    soft.data[i] = std::abs(soft.data[i]);
    smoothed.data[i] = static_cast<float>(soft.data[i] * (1 - smoothing) + smoothing / 11);
  }
  const Attributes of_shares(Entries{{"smoothing", "0.3"}});
  check_losses(run_loss("softmax_cross_entropy", of_shares, logits, view_of(soft), 5, 15, 1),
               expected_cross_entropy(logits, smoothed, 5));
}

// Weights make of a label a distribution that does not sum up to 1: of a class, those of its labels
// and its share of what is smoothed; of a label, all of it.
TEST_CASE("cross_entropy: weights of classes and of labels, and a class that is ignored") {
  Tensor logits = Tensor::random({5, 3, 11}, 1), of_classes = Tensor::random({1, 11}, 2),
         of_labels = Tensor::random({5, 3}, 3);
  for (float& w : of_classes.data) w = std::abs(w);
  of_classes.data[3] = 0;
  Array<std::int32_t> numbers(15);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = i % 5 == 1 ? 4 : static_cast<std::int32_t>(i * 7 % 11);
  }
  for (const double smoothing : {0.0, 0.3}) {
    for (const std::int64_t ignored : {4, 99}) {
      Array<std::int32_t> given = numbers;
      Tensor targets(logits.shape);
      for (std::size_t i = 0; i < given.size(); ++i) {
        if (given[i] == 4) given[i] = static_cast<std::int32_t>(ignored);
        for (std::size_t c = 0; c < 11 && numbers[i] != 4; ++c) {
          const double kept = static_cast<std::int32_t>(c) == numbers[i] ? 1 - smoothing : 0;
          targets.data[i * 11 + c] =
              static_cast<float>((kept + smoothing / 11) * of_classes.data[c] * of_labels.data[i]);
        }
      }
      LossResults expected = expected_cross_entropy(logits, targets, 4);
      SparseLabels sparse(logits, given);
      const LossWeights weights{&of_classes, &of_labels, ignored};
      // What metrics ask about is the label's class, whatever it weighs.
      const std::int64_t labels = 4 * 3 - std::count(numbers.begin(), numbers.begin() + 12, 4);
      Tensor one_hot(logits.shape);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (numbers[i] != 4) one_hot.data[i * 11 + static_cast<std::size_t>(numbers[i])] = 1;
      }
      const double loss = expected.metrics.loss;
      const auto counted = static_cast<float>(expected.metrics.labels);  // whose weights are not 0
      expected.metrics = expected_cross_entropy(logits, one_hot, 4).metrics;
      expected.metrics.loss = loss;
      CHECK(expected.metrics.labels == labels);
      for (float& slope : expected.gradient.data) {
        slope *= counted / static_cast<float>(labels);
      }
      for (unsigned seed = 0; seed < 3; ++seed) {
        check_losses(run_by_classes(logits, sparse.view(), smoothing, 4, labels, seed, weights),
                     expected);
      }
    }
  }
}

// A loss's value and slope at (x, target), and whether x is right.
struct Point {
  double loss, slope;
  bool correct;
};
using Formula = std::function<Point(double x, double target)>;

void check_pointwise(const std::string& type, const Attributes& attributes, Tensor& x,
                     Tensor& target, bool errors, const Formula& formula,
                     Tensor* weights = nullptr) {
  const std::int64_t valid = 7;
  LossResults expected{Tensor({9}), Tensor({9}), Tensor(x.shape), {}};
  expected.metrics.samples = expected.metrics.labels = valid;
  std::vector<double> losses(9);
  for (std::size_t i = 0; i < static_cast<std::size_t>(valid) * 12; ++i) {
    const double error = static_cast<double>(x.data[i]) - target.data[i];
    Point point = formula(x.data[i], target.data[i]);
    point.loss *= weights == nullptr ? 1 : weights->data[i / 12];
    point.slope *= weights == nullptr ? 1 : weights->data[i / 12];
    losses[i / 12] += point.loss / 12;
    expected.metrics.loss += point.loss / 12;
    expected.metrics.correct += point.correct ? 1.0 / 12 : 0;
    if (errors) expected.metrics.squared_error += error * error / 12;
    if (errors) expected.metrics.absolute_error += std::abs(error) / 12;
    expected.gradient.data[i] = static_cast<float>(point.slope / (12 * valid));
  }
  for (std::size_t i = 0; i < 9; ++i) expected.losses.data[i] = static_cast<float>(losses[i]);
  for (unsigned seed = 0; seed < 4; ++seed) {
    check_losses(run_loss(type, attributes, x, view_of(target), valid, valid, seed, weights),
                 expected);
  }
  if (weights != nullptr || type == "mean_loss") return;  // which has no labels
  Tensor each = Tensor::random({9}, 6);
  check_pointwise(type, attributes, x, target, errors, formula, &each);
}

TEST_CASE("losses of errors") {
  Tensor x = Tensor::random({9, 3, 4}, 4), target = Tensor::random({9, 3, 4}, 5);
  target.data[5] = x.data[5];
  check_pointwise("mean_squared_error", Attributes(), x, target, true, [](double a, double b) {
    return Point{(a - b) * (a - b), 2 * (a - b), false};
  });
  check_pointwise("mean_absolute_error", Attributes(), x, target, true, [](double a, double b) {
    return Point{std::abs(a - b), a == b ? 0.0 : a > b ? 1.0 : -1.0, false};
  });
  const Attributes delta(Entries{{"delta", "0.4"}});
  check_pointwise("huber", delta, x, target, true, [](double a, double b) {
    const double size = std::abs(a - b);
    if (size <= 0.4) return Point{size * size / 2, a - b, false};
    return Point{0.4 * (size - 0.2), a > b ? 0.4 : -0.4, false};
  });
  check_pointwise("mean_loss", Attributes(), x, target, false, [](double a, double) {
    return Point{a, 1.0, false};
  });
}

TEST_CASE("binary_cross_entropy") {
  Tensor x = Tensor::random({9, 3, 4}, 4), p(x.shape), target = Tensor::random({9, 3, 4}, 5);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    x.data[i] *= i % 7 == 0 ? 30.0f : 4.0f;
    p.data[i] = 1.0f / (1.0f + std::exp(-x.data[i] / 10));
    target.data[i] = i % 3 == 0 ? std::abs(target.data[i]) : target.data[i] > 0 ? 1.0f : 0.0f;
  }
  const Attributes of_logits(Entries{{"of", "logits"}, {"positive_weight", "1"}});
  check_pointwise("binary_cross_entropy", of_logits, x, target, false, [](double a, double t) {
    const double s = 1 / (1 + std::exp(-a));
    const double loss = std::max(a, 0.0) - a * t + std::log1p(std::exp(-std::abs(a)));
    return Point{loss, s - t, (a > 0) == (t > 0.5)};
  });
  const Attributes of_shares(Entries{{"of", "probabilities"}, {"positive_weight", "1"}});
  check_pointwise("binary_cross_entropy", of_shares, p, target, false, [](double s, double t) {
    const double loss = -t * std::log(s) - (1 - t) * std::log1p(-s);
    return Point{loss, (s - t) / (s * (1 - s)), (s > 0.5) == (t > 0.5)};
  });
  const Attributes rare(Entries{{"of", "logits"}, {"positive_weight", "2.5"}});
  check_pointwise("binary_cross_entropy", rare, x, target, false, [](double a, double t) {
    const double s = 1 / (1 + std::exp(-a)), above = std::log1p(std::exp(-std::abs(a)));
    const double loss = (1 - t) * (std::max(a, 0.0) + above) +  //
                        2.5 * t * (std::max(-a, 0.0) + above);
    return Point{loss, (1 - t) * s - 2.5 * t * (1 - s), (a > 0) == (t > 0.5)};
  });
  const Attributes common(Entries{{"of", "probabilities"}, {"positive_weight", "0.5"}});
  check_pointwise("binary_cross_entropy", common, p, target, false, [](double s, double t) {
    const double loss = -0.5 * t * std::log(s) - (1 - t) * std::log1p(-s);
    return Point{loss, (1 - t) / (1 - s) - 0.5 * t / s, (s > 0.5) == (t > 0.5)};
  });
  // Certain and wrong: bounded.
  Tensor sure({2, 1}), wrong({2, 1});
  sure.data = {1, 0};
  wrong.data = {0, 1};
  const LossResults bounded =
      run_loss("binary_cross_entropy", of_shares, sure, view_of(wrong), 2, 2, 1);
  CHECK(bounded.losses.data == Array<float>{100, 100});
  CHECK(bounded.gradient.data == Array<float>{5e11f, -5e11f});
  CHECK_THROWS_WITH_AS(
      make_kernel("binary_cross_entropy", Attributes(Entries{{"of", "odds"}}), kTested),
      doctest::Contains("'odds' is none of: logits probabilities"), std::invalid_argument);
}

// The value of one weight and its states after three steps, as PyTorch's documentation has them.
using Step = std::function<void(double& w, double g, double& s0, double& s1, int t)>;

void check_optimizer(const std::string& name, const Attributes& attributes, int states,
                     const Step& step) {
  const auto kernel = make_update_kernel(name, attributes, kTested);
  const Shape shape{6, 20};
  Tensor w = Tensor::random(shape, 1), s0(shape), s1(shape);
  std::vector<double> ew(w.data.begin(), w.data.end()), e0(w.data.size()), e1(w.data.size());
  RunState run;
  run.learning_rate = 0.05;
  for (int t = 1; t <= 3; ++t) {
    Tensor g = Tensor::random(shape, 10 + static_cast<unsigned>(t));
    run.step = t - 1;
    for (const Rect& tile : random_tiles(shape, {2, 3}, static_cast<unsigned>(t))) {
      Array<float> dense(static_cast<std::size_t>(tile.volume()));
      const TensorView gradient = dense_view(dense.data(), tile, g.view(tile).shape);
      copy_view(gradient, g.view(tile));
      std::vector<TensorView> views{s0.view(tile), s1.view(tile)};
      views.resize(static_cast<std::size_t>(states));
      kernel->update(w.view(tile), gradient, views, run, nullptr);
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

TEST_CASE("adam and adamw, and lazy adam of weights that are no tables") {
  for (const std::string name : {"adam", "adamw", "lazy-adam"}) {
    const bool decoupled = name == "adamw";
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
    check_optimizer(name, attributes, 2, step);
  }
}

}  // namespace
}  // namespace flexlegion::testing
