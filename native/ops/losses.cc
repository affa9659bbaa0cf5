// Cross-entropy of classes: forward gives the loss of each label and adds to the metrics; backward
// gives the gradient of what the batch's labels that count add to the goal. Samples from
// run.valid_samples on are padding: they count for nothing.
#include "ops/losses.h"

#include <algorithm>
#include <stdexcept>

#include "ops/row_softmax.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

bool is_valid(const TensorView& batch, std::int64_t row, const RunState& run) {
  return row < valid_samples(batch, run);
}

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

// Where a label is in its tile; without sequences the step is 0.
struct Place {
  std::int64_t sample, step;
};

std::int64_t offset(const TensorView& view, const Place& at) {
  return at.sample * view.stride[0] + at.step * view.stride[1];
}

// Labels by row of the logits, of shape (n, classes) or (n, steps, classes). Sparse labels are
// numbers of classes, those below 0 do not count; the others are distributions over the classes.
// Smoothing takes that share of each label, and gives it to all classes evenly.
class SoftmaxCrossEntropy : public Kernel {
 public:
  explicit SoftmaxCrossEntropy(const Attributes& attributes)
      : sparse_(sparse_labels(attributes)), smoothing_(smoothing_of(attributes)) {}

  // log(sum of exp(x)) * sum(y) - sum(x y); the logarithm is kept for backward.
  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1];
    const TensorView &y = task.outputs[0], &log_sums = task.outputs[1];
    if (y.tile.empty()) return;
    const std::int64_t classes = classes_of(x);
    Metrics sums;
    for_each_label(x, [&](const Place& at) {
      float &loss = y.f32()[offset(y, at)], &log_sum = log_sums.f32()[offset(log_sums, at)];
      loss = log_sum = 0;
      if (!is_valid(y, at.sample, task.run)) return;
      if (y.rank() == 1 || y.tile.lo[1] + at.step == 0) ++sums.samples;
      const std::int64_t truth = class_of(labels, at, classes);
      if (truth < 0) return;
      const float* const logits = x.f32() + offset(x, at);
      const RowLogSum row = row_log_sum(logits, classes, truth);
      log_sum = static_cast<float>(row.log_sum);
      loss = sparse_ ? static_cast<float>(row.log_sum - logits[truth])
                     : soft_loss(logits, labels.f32() + offset(labels, at), classes, log_sum);
      if (smoothing_ > 0) {
        loss += smoothing_ * (log_sum - mean_of(logits, classes) - loss);
      }
      sums.loss += loss;
      sums.correct += row.rank == 0 ? 1 : 0;
      sums.correct_top5 += row.rank < 5 ? 1 : 0;
      ++sums.labels;
    });
    if (task.metrics != nullptr) task.metrics->add(sums);
  }

  // (softmax(x) * sum(y) - y) * label_share
  void backward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1], &dx = task.input_grads[0];
    const TensorView& log_sums = task.outputs[1];
    if (!dx.present()) return;
    const std::int64_t classes = classes_of(x);
    const auto whole = static_cast<float>(task.run.label_share);
    const float even = whole * smoothing_, share = whole - even;
    classes_of(dx);
    for_each_label(x, [&](const Place& at) {
      float* const out = dx.f32() + offset(dx, at);
      const bool valid = is_valid(x, at.sample, task.run);
      const std::int64_t truth = valid ? class_of(labels, at, classes) : -1;
      if (truth < 0) {
        std::fill_n(out, classes, 0.0f);
        return;
      }
      const float* const logits = x.f32() + offset(x, at);
      const float log_sum = log_sums.f32()[offset(log_sums, at)];
      if (sparse_) {
        scaled_softmax(logits, classes, log_sum, share, out);
        out[truth] -= share;
      } else {
        soft_gradient(logits, labels.f32() + offset(labels, at), classes, log_sum, share, out);
      }
      if (smoothing_ > 0) add_even_gradient(logits, classes, log_sum, even, out);
    });
  }

 private:
  template <typename Body>
  static void for_each_label(const TensorView& logits, Body&& body) {
    const std::int64_t steps = logits.rank() == 3 ? logits.extent(1) : 1;
    for (std::int64_t sample = 0; sample < logits.extent(0); ++sample) {
      for (std::int64_t step = 0; step < steps; ++step) body(Place{sample, step});
    }
  }
  static std::int64_t classes_of(const TensorView& logits) {
    const int last = logits.rank() - 1;
    if (logits.dense_from(last)) return logits.extent(last);
    throw std::invalid_argument("a tile whose rows are not contiguous");
  }
  // The true class, or the likeliest of a distribution; below 0 if the label does not count.
  std::int64_t class_of(const TensorView& labels, const Place& at, std::int64_t classes) const {
    if (!sparse_) return argmax(labels.f32() + offset(labels, at), classes);
    const std::int64_t label = labels.i32()[offset(labels, at)];
    if (label < classes) return label;
    std::string where = "sample " + std::to_string(labels.tile.lo[0] + at.sample);
    if (labels.rank() == 2) where += ", step " + std::to_string(labels.tile.lo[1] + at.step);
    throw std::invalid_argument("the label of " + where + " is " + std::to_string(label) +
                                ", not a class of 0 to " + std::to_string(classes - 1));
  }

  bool sparse_;
  float smoothing_;
};

const RegisterKernel registered_cross_entropy("softmax_cross_entropy", [](const Attributes& a) {
  return std::make_unique<SoftmaxCrossEntropy>(a);
});

}  // namespace
}  // namespace flexlegion
