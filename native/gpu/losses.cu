// Cross-entropy of classes, as ops/losses.cc has it. A label that is no class does not count.
//
// A team for each row of logits; each thread keeps its part of every sum in registers. Metrics are
// added by a second launch of one team: they may lie in the host's memory, so one atomic addition
// of each number is what a task costs there.
#include <limits>

#include "gpu/row_log_sum.h"

namespace flexlegion::gpu {
namespace {

constexpr std::int32_t kNoLabel = -1;  // instead of a true class's rank

// The first of the largest.
FL_DEVICE std::int64_t argmax(const Team& team, const Row& x, std::int64_t n) {
  float mine = -std::numeric_limits<float>::infinity();
  std::int64_t at = 0;
  for (std::int64_t i = team.rank; i < n; i += team.size) {
    // A NaN is never larger, so it is passed over here. The loss shows it.
    if (!(x[i] > mine)) continue;
    mine = x[i];
    at = i;
  }
  // The largest negated index is the smallest index: of threads that found the maximum, the first
  // element wins.
  const std::int64_t candidate = mine == team.maximum(mine) ? at : n;
  return static_cast<std::int64_t>(-team.maximum(-static_cast<double>(candidate)));
}

// sum of y (log_sum - x): the cross-entropy of a distribution y
FL_DEVICE float soft_loss(const Team& team, const Row& x, const Row& y, std::int64_t n,
                          float log_sum) {
  float loss = 0;
  for (std::int64_t i = team.rank; i < n; i += team.size) loss += y[i] * (log_sum - x[i]);
  return team.sum(loss);
}

// Of distributions over the classes; smoothing gives that share of each to all classes evenly.
// Labels have weights if these have a rank.
void softmax_cross_entropy(const LabelRows& rows, std::int64_t classes, const Strided& x,
                           const Strided& targets, const Strided& weights, float smoothing,
                           const Strided& y, const Strided& log_sums, std::int32_t* ranks) {
  for_each_team(rows.count, classes, [=] FL_BODY(const Team& team, std::int64_t row) {
    RowLogSum found;
    float loss = 0;
    const bool counts = row < rows.valid;
    if (counts) {
      const Row logits = row_of(x, row), target = row_of(targets, row);
      const std::int64_t truth = argmax(team, target, classes);
      found = log_sum_of(team, logits, classes, logits[truth], truth);
      loss = soft_loss(team, logits, target, classes, static_cast<float>(found.log_sum));
      if (smoothing > 0) {
        double sum = 0;
        for (std::int64_t i = team.rank; i < classes; i += team.size) sum += logits[i];
        // The loss against a distribution that is even over all classes.
        const double even = found.log_sum - team.sum(sum) / static_cast<double>(classes);
        loss += smoothing * (static_cast<float>(even) - loss);
      }
      if (weights.rank > 0) loss *= static_cast<float>(weights[row]);
    }
    if (team.rank != 0) return;
    y[row] = loss;
    log_sums[row] = static_cast<float>(found.log_sum);
    ranks[row] = counts ? static_cast<std::int32_t>(found.rank) : kNoLabel;
  });
}

// Adds a loss task's metrics; by one team, so that they, which may be far away, are written once.
void add_cross_entropy(const KernelTask& task, const LabelRows& rows, const std::int32_t* ranks) {
  Metrics* const metrics = task.metrics;
  if (metrics == nullptr) return;
  const TensorView& losses = task.outputs[0];
  const std::int64_t samples = has_first_step(losses) ? valid_samples(losses, task.run) : 0;
  const Strided y(losses);
  for_each_team(1, rows.valid, [=] FL_BODY(const Team& team, std::int64_t) {
    double loss = 0, correct = 0, correct_top5 = 0, labels = 0;
    for (std::int64_t row = team.rank; row < rows.valid; row += team.size) {
      const std::int32_t rank = ranks[row];
      if (rank == kNoLabel) continue;
      loss += y[row];
      correct += rank == 0 ? 1 : 0;
      correct_top5 += rank < 5 ? 1 : 0;
      labels += 1;
    }
    loss = team.sum(loss);
    correct = team.sum(correct);
    correct_top5 = team.sum(correct_top5);
    labels = team.sum(labels);
    if (team.rank != 0) return;
    add_atomically(&metrics->loss, loss);
    add_atomically(&metrics->correct, correct);
    add_atomically(&metrics->correct_top5, correct_top5);
    add_atomically(&metrics->labels, static_cast<std::int64_t>(labels));
    add_atomically(&metrics->samples, samples);
  });
}

// (softmax(x) * sum(y) - y) * share
void softmax_cross_entropy_gradient(const LabelRows& rows, std::int64_t classes, const Strided& x,
                                    const Strided& targets, const Strided& weights, float smoothing,
                                    const Strided& log_sums, float share, const Strided& dx) {
  for_each_team(rows.count, classes, [=] FL_BODY(const Team& team, std::int64_t row) {
    const Row out = row_of(dx, row), logits = row_of(x, row), y = row_of(targets, row);
    if (row >= rows.valid) {
      for (std::int64_t i = team.rank; i < classes; i += team.size) out[i] = 0.0f;
      return;
    }
    float total = 0;
    for (std::int64_t i = team.rank; i < classes; i += team.size) total += y[i];
    total = team.sum(total);
    const float log_sum = log_sums[row], kept = 1.0f - smoothing;
    // (1 - s) (p total - y) + s (p - 1 / n), with p the softmax, total the sum of y and s the
    // smoothing.
    const float even = smoothing / static_cast<float>(classes), all = total * kept + smoothing;
    const float scale = weights.rank > 0 ? share * static_cast<float>(weights[row]) : share;
    for (std::int64_t i = team.rank; i < classes; i += team.size) {
      out[i] = (expf(logits[i] - log_sum) * all - (y[i] * kept + even)) * scale;
    }
  });
}

// Of label distributions: each row needs the whole of its logits, so tasks have all classes.
class SoftmaxCrossEntropy : public Kernel {
 public:
  explicit SoftmaxCrossEntropy(const Attributes& attributes)
      : smoothing_(smoothing_of(attributes)) {}
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &losses = task.outputs[0], &x = task.inputs[0];
    const LabelRows rows(losses, task.run);
    if (rows.count == 0) return;
    const Strided y(losses);
    auto* const ranks = reinterpret_cast<std::int32_t*>(scratch(0, rows.count));
    softmax_cross_entropy(rows, x.extent(x.rank() - 1), Strided(x), Strided(task.inputs.back()),
                          weights_in(task), smoothing_, y, Strided(task.outputs[1]), ranks);
    add_cross_entropy(task, rows, ranks);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView& x = task.inputs[0];
    const LabelRows rows(task.outputs[1], task.run);
    softmax_cross_entropy_gradient(
        rows, x.extent(x.rank() - 1), Strided(x), Strided(task.inputs.back()), weights_in(task),
        smoothing_, Strided(task.outputs[1]), static_cast<float>(task.run.label_share),
        Strided(task.input_grads[0]));
  }

 private:
  static Strided weights_in(const KernelTask& task) {
    return task.inputs.size() > 2 ? Strided(task.inputs[1]) : Strided();
  }

  float smoothing_;
};

// What a loss by class numbers reads beside the statistics: labels come last, weights before.
struct Labels {
  CrossEntropyFormula formula;
  Strided labels, class_weights, label_weights;

  Labels(const CrossEntropyFormula& its_formula, const KernelTask& task)
      : formula(its_formula), labels(task.inputs.back()) {
    const std::size_t count = task.inputs.size();
    if (formula.class_weights) class_weights = Strided(task.inputs[formula.statistics()]);
    if (formula.label_weights) label_weights = Strided(task.inputs[count - 2]);
  }

  // -1 if it does not count.
  FL_DEVICE std::int64_t class_of(std::int64_t row, const LabelRows& rows) const {
    return row < rows.valid ? formula.counted.class_of(labels.integer(row), formula.classes) : -1;
  }
  // What log_sum is multiplied with, but for the label's own weight.
  FL_DEVICE float of_log_sum(std::int64_t label) const {
    const float its = formula.class_weights ? static_cast<float>(class_weights[label]) : 1.0f;
    return formula.of_log_sum(its);
  }
  FL_DEVICE float weight(std::int64_t row) const {
    return formula.label_weights ? static_cast<float>(label_weights[row]) : 1.0f;
  }
};

// The gradient of one of the statistics is `share` times its slope, where a label counts. The mean,
// the third statistic, has the slope - smoothing.
void write_gradient(const KernelTask& task, std::size_t input, const CrossEntropyFormula& formula) {
  if (!task.wants_input_grad(input)) return;
  const auto share = static_cast<float>(task.run.label_share);
  const LabelRows rows(task.input_grads[input], task.run);
  const Labels its(formula, task);
  const Strided gradient(task.input_grads[input]);
  const bool of_mean = input == 2;
  for_each(rows.count, [=] FL_BODY(std::int64_t row) {
    const std::int64_t label = its.class_of(row, rows);
    gradient[row] = 0.0f;
    if (label < 0) return;
    const float slope = of_mean ? -its.formula.smoothing : its.of_log_sum(label);
    gradient[row] = slope * share * its.weight(row);
  });
}

// By the statistics of its logits, and by class numbers.
class CrossEntropy : public Kernel {
 public:
  explicit CrossEntropy(const Attributes& attributes) : formula_(attributes) {}

  void forward(KernelTask& task) override {
    const LabelRows rows(task.outputs[0], task.run);
    if (rows.count == 0) return;
    const float smoothing = formula_.smoothing;
    const Labels its(formula_, task);
    const Strided log_sums(task.inputs[0]), found(task.inputs[1]);
    const Strided means = smoothing > 0 ? Strided(task.inputs[2]) : Strided();
    const Strided y(task.outputs[0]);
    auto* const ranks = reinterpret_cast<std::int32_t*>(scratch(0, rows.count));
    for_each(rows.count, [=] FL_BODY(std::int64_t row) {
      const std::int64_t label = its.class_of(row, rows);
      y[row] = 0.0f;
      ranks[row] = kNoLabel;
      if (label < 0) return;
      const float even = smoothing > 0 ? smoothing * means[row] : 0.0f;
      y[row] = (log_sums[row] * its.of_log_sum(label) - even) * its.weight(row);
      ranks[row] = static_cast<std::int32_t>(found[row]);
    });
    add_cross_entropy(task, rows, ranks);
  }

  void backward(KernelTask& task) override {
    write_gradient(task, 0, formula_);
    if (formula_.smoothing > 0) write_gradient(task, 2, formula_);
  }

 private:
  CrossEntropyFormula formula_;
};

const RegisterKernel softmax_cross_entropy_kernel(
    "softmax_cross_entropy",
    [](const Attributes& a) { return std::make_unique<SoftmaxCrossEntropy>(a); }, DeviceKind::gpu);
const RegisterKernel cross_entropy_kernel(
    "cross_entropy", [](const Attributes& a) { return std::make_unique<CrossEntropy>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
