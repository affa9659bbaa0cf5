// Cross-entropy of classes: forward gives the loss of each label and adds to the metrics; backward
// gives the gradient of what the batch's labels that count add to the goal. Samples from
// run.valid_samples on are padding: they count for nothing.
//
// Two operators. softmax_cross_entropy reads whole rows of logits and of label distributions: one
// pass gives the sum of exponentials and the rank, one the loss. cross_entropy takes numbers of
// classes: what a row of logits contributes was computed by logits.cc, which can split the classes,
// and is left here to be combined by label.
//
// Every value is 0 for padding, in both passes. The gradient is scaled by run.label_share, which
// makes the sum over a batch the mean over its labels that count.
#include <algorithm>

#include "ops/label_rows.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

std::int64_t argmax(const float* x, std::int64_t n) { return std::max_element(x, x + n) - x; }

// sum of y (log_sum - x): the cross-entropy of a distribution y
FLEXLEGION_SIMD float soft_loss(const float* x, const float* y, std::int64_t n, float log_sum) {
  float loss = 0;
#pragma omp simd reduction(+ : loss)
  for (std::int64_t i = 0; i < n; ++i) loss += y[i] * (log_sum - x[i]);
  return loss;
}

// (exp(x - log_sum) * sum(y) - y) * scale
FLEXLEGION_SIMD void soft_gradient(const float* x, const float* y, std::int64_t n, float log_sum,
                                   float scale, float* dx) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += y[i];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dx[i] = (vector_exp(x[i] - log_sum) * total - y[i]) * scale;
  }
}

float mean_of(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  return static_cast<float>(sum / static_cast<double>(n));
}

// dx += (exp(x - log_sum) - 1 / n) * scale: the part of a distribution that is the same everywhere.
FLEXLEGION_SIMD void add_even_gradient(const float* x, std::int64_t n, float log_sum, float scale,
                                       float* dx) {
  const float even = 1.0f / static_cast<float>(n);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] += (vector_exp(x[i] - log_sum) - even) * scale;
}

// Labels are distributions over the classes, of the logits' shape, and come last. Smoothing takes
// that share of each label, and gives it to all classes evenly. Weights of labels, if there are
// any, come between.
class SoftmaxCrossEntropy : public Kernel {
 public:
  explicit SoftmaxCrossEntropy(const Attributes& attributes)
      : smoothing_(smoothing_of(attributes)) {}

  // log(sum of exp(x)) * sum(y) - sum(x y); the logarithm is kept for backward.
  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs.back();
    const TensorView &y = task.outputs[0], &log_sums = task.outputs[1];
    if (y.tile.empty()) return;
    const std::int64_t classes = classes_in(x);
    Metrics sums;
    for_each_label(y, task.run, [&](const Place& at, bool counts) {
      float &loss = y.f32()[offset(y, at)], &log_sum = log_sums.f32()[offset(log_sums, at)];
      loss = log_sum = 0;
      if (!counts) return;
      const float *const logits = x.f32() + offset(x, at), *const target =
                                                               labels.f32() + offset(labels, at);
      // The class that metrics ask about is the label's most probable one.
      const std::int64_t truth = argmax(target, classes);
      const RowLogSum row = row_log_sum(logits, classes, logits[truth], truth);
      log_sum = static_cast<float>(row.log_sum);
      loss = soft_loss(logits, target, classes, log_sum);
      if (smoothing_ > 0) {
        // The smoothed label is (1 - s) y + s / classes. Against its even part, the loss is the
        // mean of all classes' losses: log_sum less mean(x).
        loss += smoothing_ * (log_sum - mean_of(logits, classes) - loss);
      }
      loss *= weight_of(task, at);
      sums.add_class(loss, row.rank);
    });
    if (has_first_step(y)) sums.samples = valid_samples(y, task.run);
    if (task.metrics != nullptr) task.metrics->add(sums);
  }

  // (softmax(x) * sum(y) - y) * label_share
  void backward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs.back(), &dx = task.input_grads[0];
    const TensorView& log_sums = task.outputs[1];
    if (!dx.present()) return;
    const std::int64_t classes = classes_in(x);
    classes_in(dx);
    for_each_label(log_sums, task.run, [&](const Place& at, bool counts) {
      float* const out = dx.f32() + offset(dx, at);
      if (!counts) {
        std::fill_n(out, classes, 0.0f);
        return;
      }
      const float* const logits = x.f32() + offset(x, at);
      const float log_sum = log_sums.f32()[offset(log_sums, at)];
      const float whole = static_cast<float>(task.run.label_share) * weight_of(task, at);
      const float even = whole * smoothing_, share = whole - even;
      soft_gradient(logits, labels.f32() + offset(labels, at), classes, log_sum, share, out);
      if (smoothing_ > 0) add_even_gradient(logits, classes, log_sum, even, out);
    });
  }

 private:
  static float weight_of(const KernelTask& task, const Place& at) {
    if (task.inputs.size() < 3) return 1.0f;
    return task.inputs[1].f32()[offset(task.inputs[1], at)];
  }

  float smoothing_;
};

// By the statistics of its logits (logits.cc), and by class numbers, which come last. Weights stand
// between: those of classes, and of labels, where there are such. With w the weight of a label's
// class and m the mean over all classes, smoothing s makes of the label
//   (1 - s) w log_sum + s (m log_sum - mean),
// which is multiplied with the label's own weight; without weights, it is log_sum - s mean.
class CrossEntropy : public Kernel {
 public:
  explicit CrossEntropy(const Attributes& attributes) : formula_(attributes) {}

  void forward(KernelTask& task) override {
    const TensorView &log_sums = task.inputs[0], &ranks = task.inputs[1], &y = task.outputs[0];
    const float smoothing = formula_.smoothing;
    Metrics sums;
    for_each_label(y, task.run, [&](const Place& at, bool counts) {
      float& loss = y.f32()[offset(y, at)];
      loss = 0;
      const std::int64_t label = counts ? class_of(task, at) : -1;
      if (label < 0) return;
      loss = log_sums.f32()[offset(log_sums, at)] * formula_.of_log_sum(class_weight(task, label));
      if (smoothing > 0) {
        const TensorView& means = task.inputs[2];
        loss -= smoothing * means.f32()[offset(means, at)];
      }
      loss *= label_weight(task, at);
      sums.add_class(loss, static_cast<std::int64_t>(ranks.f32()[offset(ranks, at)]));
    });
    if (!y.tile.empty() && has_first_step(y)) sums.samples = valid_samples(y, task.run);
    if (task.metrics != nullptr) task.metrics->add(sums);
  }

  void backward(KernelTask& task) override {
    const auto share = static_cast<float>(task.run.label_share);
    write_gradient(task, 0, [&](std::int64_t label) {
      return formula_.of_log_sum(class_weight(task, label)) * share;
    });
    if (formula_.smoothing > 0) {
      write_gradient(task, 2, [&](std::int64_t) { return -formula_.smoothing * share; });
    }
  }

 private:
  std::int64_t class_of(const KernelTask& task, const Place& at) const {
    const TensorView& labels = task.inputs.back();
    return formula_.counted.class_of(labels.i32()[offset(labels, at)], formula_.classes);
  }
  float class_weight(const KernelTask& task, std::int64_t label) const {
    if (!formula_.class_weights) return 1.0f;
    const TensorView& weights = task.inputs[formula_.statistics()];
    return weights.f32()[label * weights.stride[1]];
  }
  float label_weight(const KernelTask& task, const Place& at) const {
    if (!formula_.label_weights) return 1.0f;
    const TensorView& weights = task.inputs[task.inputs.size() - 2];
    return weights.f32()[offset(weights, at)];
  }
  template <typename Value>
  void write_gradient(KernelTask& task, std::size_t input, Value&& value) const {
    if (!task.wants_input_grad(input)) return;
    const TensorView& gradient = task.input_grads[input];
    for_each_label(gradient, task.run, [&](const Place& at, bool counts) {
      const std::int64_t label = counts ? class_of(task, at) : -1;
      gradient.f32()[offset(gradient, at)] =
          label < 0 ? 0.0f : value(label) * label_weight(task, at);
    });
  }

  CrossEntropyFormula formula_;
};

const RegisterKernel registered_softmax("softmax_cross_entropy", [](const Attributes& a) {
  return std::make_unique<SoftmaxCrossEntropy>(a);
});
const RegisterKernel registered("cross_entropy", [](const Attributes& a) {
  return std::make_unique<CrossEntropy>(a);
});

}  // namespace
}  // namespace flexlegion
