// What the loss over classes asks of the logits (flexlegion/ops/logits.py), for a tile of samples,
// steps and classes. own_logit: each label's own logit. logit_statistics: log(sum of exp(x - own)),
// how many classes rank before the own one, and for smoothed labels the mean of x - own.
//
// With p = exp(x - own) / sum of exp(x - own), the softmax, the gradient of what the loss makes of
// them is p dlog_sum + dmean / n, but for the own class less dlog_sum + dmean: that of all logits,
// for the own logit's operator passes none on. Where classes have weights, the mean is of x - own
// times these: a class's share of dmean is then times its weight, and the own class's times all
// weights' mean.
//
// Each is a partial value where the classes are split. own_logit is the logit in the one part that
// has the class, and 0 in the others, so the parts are summed. The logarithms of sums are joined by
// log(e^a + e^b), the ranks and means by sums. All are relative to the own logit, which every task
// is given whole: log(sum of exp(x - own)) is the loss itself, and loses no bits where logits are
// large.
#include <algorithm>
#include <limits>
#include <string>

#include "ops/label_rows.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

constexpr std::int64_t kNone = -1;

class OwnLogit : public Kernel {
 public:
  explicit OwnLogit(const Attributes& attributes) : counted_(attributes) {}

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1], &y = task.outputs[0];
    const int last = x.rank() - 1;
    for_each_label(y, task.run, [&](const Place& at, bool counts) {
      float& own = y.f32()[offset(y, at)];
      own = 0;
      const std::int64_t label = labels.i32()[offset(labels, at)];
      if (!counts || label == counted_.ignored) return;
      if (label >= x.shape[last]) refuse(labels, at, label, x.shape[last]);
      if (label < x.tile.lo[last] || label >= x.tile.hi[last]) return;
      own = x.f32()[offset(x, at) + (label - x.tile.lo[last]) * x.stride[last]];
    });
  }

  // logit_statistics gives the gradient of all logits, the own one included.
  void backward(KernelTask& /*task*/) override {}

 private:
  [[noreturn]] static void refuse(const TensorView& labels, const Place& at, std::int64_t label,
                                  std::int64_t classes) {
    std::string where = "sample " + std::to_string(labels.tile.lo[0] + at.sample);
    if (labels.rank() == 2) where += ", step " + std::to_string(labels.tile.lo[1] + at.step);
    throw std::invalid_argument("the label of " + where + " is " + std::to_string(label) +
                                ", not a class of 0 to " + std::to_string(classes - 1));
  }

  CountedLabels counted_;
};

// dx = exp(x - log_sum) * scale + even
FLEXLEGION_SIMD void smoothed_gradient(const float* x, std::int64_t n, float log_sum, float scale,
                                       float even, float* dx) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = vector_exp(x[i] - log_sum) * scale + even;
}

// The same where classes have weights: dx = exp(x - log_sum) * scale + weight * even
FLEXLEGION_SIMD void weighted_gradient(const float* x, const float* weights, std::int64_t n,
                                       float log_sum, float scale, float even, float* dx) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dx[i] = vector_exp(x[i] - log_sum) * scale + weights[i] * even;
  }
}

float mean_difference(const float* x, std::int64_t n, float own, std::int64_t classes) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  const double differences = sum - static_cast<double>(n) * own;
  return static_cast<float>(differences / static_cast<double>(classes));
}

float weighted_mean_difference(const float* x, const float* weights, std::int64_t n, float own,
                               std::int64_t classes) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += (static_cast<double>(x[i]) - own) * weights[i];
  return static_cast<float>(sum / static_cast<double>(classes));
}

class LogitStatistics : public Kernel {
 public:
  LogitStatistics(const Attributes& attributes, bool smoothed)
      : counted_(attributes),
        smoothed_(smoothed),
        mean_weight_(smoothed ? static_cast<float>(attributes.number("mean_weight")) : 1.0f) {}

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1], &owns = task.inputs[2];
    const TensorView &log_sums = task.outputs[0], &ranks = task.outputs[1];
    if (log_sums.tile.empty()) return;
    const std::int64_t n = classes_in(x), classes = x.shape[x.rank() - 1],
                       first = x.tile.lo[x.rank() - 1];
    for_each_label(log_sums, task.run, [&](const Place& at, bool counts) {
      const std::int64_t label = counts ? class_of(labels, at, classes) : kNone;
      // Where no label counts, zero: the first part's, to which the others add nothing.
      RowLogSum row{first == 0 ? 0.0 : -std::numeric_limits<double>::infinity(), 0};
      float own = 0;
      const float* const logits = x.f32() + offset(x, at);
      if (label != kNone) {
        own = owns.f32()[offset(owns, at)];
        row = row_log_sum(logits, n, own, label - first);
      }
      // In double precision up to here: both are large where logits are, and their difference may
      // be small.
      log_sums.f32()[offset(log_sums, at)] = static_cast<float>(row.log_sum - own);
      ranks.f32()[offset(ranks, at)] = static_cast<float>(row.rank);
      if (!smoothed_) return;
      const TensorView& means = task.outputs[2];
      float& mean = means.f32()[offset(means, at)];
      mean = 0;
      if (label == kNone) return;
      const float* const weights = weights_in(task);
      mean = weights == nullptr ? mean_difference(logits, n, own, classes)
                                : weighted_mean_difference(logits, weights, n, own, classes);
    });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &x = task.inputs[0], &labels = task.inputs[1], &owns = task.inputs[2];
    const TensorView &log_sums = task.outputs[0], &dx = task.input_grads[0];
    const TensorView& dlog_sums = task.output_grads[0];
    const std::int64_t n = classes_in(x), classes = x.shape[x.rank() - 1],
                       first = x.tile.lo[x.rank() - 1];
    classes_in(dx);
    for_each_label(log_sums, task.run, [&](const Place& at, bool counts) {
      float* const out = dx.f32() + offset(dx, at);
      const std::int64_t label = counts ? class_of(labels, at, classes) : kNone;
      if (label == kNone) {
        std::fill_n(out, n, 0.0f);
        return;
      }
      const float* const logits = x.f32() + offset(x, at);
      const float log_sum = owns.f32()[offset(owns, at)] + log_sums.f32()[offset(log_sums, at)];
      // What the own class loses: dlog_sum, and with smoothing dmean as well.
      float whole = dlog_sums.f32()[offset(dlog_sums, at)];
      if (smoothed_) {
        const TensorView& dmeans = task.output_grads[2];
        const float dmean = dmeans.f32()[offset(dmeans, at)];
        const float* const weights = weights_in(task);
        const float even = dmean / static_cast<float>(classes);
        if (weights == nullptr) {
          smoothed_gradient(logits, n, log_sum, whole, even, out);
        } else {
          weighted_gradient(logits, weights, n, log_sum, whole, even, out);
        }
        whole += dmean * mean_weight_;
      } else {
        scaled_softmax(logits, n, log_sum, whole, out);
      }
      if (label >= first && label < first + n) out[label - first] -= whole;
    });
  }

 private:
  std::int64_t class_of(const TensorView& labels, const Place& at, std::int64_t classes) const {
    return counted_.class_of(labels.i32()[offset(labels, at)], classes);
  }
  // The weights of the tile's classes, which stand in a row; null where classes have none.
  static const float* weights_in(const KernelTask& task) {
    if (task.inputs.size() < 4) return nullptr;
    classes_in(task.inputs[3]);
    return task.inputs[3].f32();
  }

  CountedLabels counted_;
  bool smoothed_;
  float mean_weight_;
};

const RegisterKernel registered_own("own_logit", [](const Attributes& a) {
  return std::make_unique<OwnLogit>(a);
});
const RegisterKernel registered("logit_statistics", [](const Attributes& a) {
  return std::make_unique<LogitStatistics>(a, false);
});
const RegisterKernel registered_smoothed("smoothed_logit_statistics", [](const Attributes& a) {
  return std::make_unique<LogitStatistics>(a, true);
});

}  // namespace
}  // namespace flexlegion
