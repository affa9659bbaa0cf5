// Losses: forward gives each sample's loss and adds to the metrics; backward gives the gradient of
// the mean over the batch's valid samples. Samples from run.valid_samples on are padding: they
// count for nothing.
#include <cmath>
#include <stdexcept>

#include "ops/kernel.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

bool is_valid(const TensorView& batch, std::int64_t row, const RunState& run) {
  return batch.tile.lo[0] + row < run.valid_samples;
}

std::int64_t argmax(const float* x, std::int64_t n) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

class SoftmaxCrossEntropy : public Kernel {
 public:
  explicit SoftmaxCrossEntropy(const Attributes& attributes) {
    const std::string& labels = attributes.text("labels");
    sparse_ = labels == "sparse";
    if (!sparse_ && labels != "one_hot") {
      throw std::invalid_argument("labels '" + labels + "' is none of: sparse one_hot");
    }
  }

  // log(sum of exp(x)) * sum(y) - sum(x y)
  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1], &y = task.outputs[0];
    const std::int64_t classes = x.extent(1);
    float* const row = scratch(0, classes);
    Metrics sums;
    for (std::int64_t r = 0; r < y.extent(0); ++r) {
      float& loss = y.f32()[r * y.stride[0]];
      loss = 0;
      if (!is_valid(y, r, task.run)) continue;
      const float* const logits = row_of(x, r);
      const RowSoftmax softmax = row_softmax(logits, classes, row);
      const float log_sum = softmax.maximum + std::log(softmax.sum);
      std::int64_t truth = 0;
      if (sparse_) {
        truth = class_of(labels, r, classes);
        loss = log_sum - logits[truth];
      } else {
        const float* const target = row_of(labels, r);
        truth = argmax(target, classes);
        for (std::int64_t i = 0; i < classes; ++i) loss += target[i] * (log_sum - logits[i]);
      }
      sums.loss += loss;
      sums.correct += argmax(logits, classes) == truth ? 1 : 0;
      ++sums.samples;
    }
    if (task.metrics == nullptr) return;
    task.metrics->loss += sums.loss;
    task.metrics->correct += sums.correct;
    task.metrics->samples += sums.samples;
  }

  // (softmax(x) * sum(y) - y) / valid_samples
  void backward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &labels = task.inputs[1], &dx = task.input_grads[0];
    if (!dx.present()) return;
    const std::int64_t classes = x.extent(1);
    float* const row = scratch(0, classes);
    const float per_sample = 1.0f / static_cast<float>(task.run.valid_samples);
    for (std::int64_t r = 0; r < dx.extent(0); ++r) {
      float* const out = row_of(dx, r);
      if (!is_valid(dx, r, task.run)) {
        std::fill_n(out, classes, 0.0f);
        continue;
      }
      float weight = per_sample / row_softmax(row_of(x, r), classes, row).sum;
      const float* const target = sparse_ ? nullptr : row_of(labels, r);
      if (target != nullptr) {
        float total = 0;
        for (std::int64_t i = 0; i < classes; ++i) total += target[i];
        weight *= total;
      }
      for (std::int64_t i = 0; i < classes; ++i) out[i] = row[i] * weight;
      if (target == nullptr) {
        out[class_of(labels, r, classes)] -= per_sample;
      } else {
        for (std::int64_t i = 0; i < classes; ++i) out[i] -= target[i] * per_sample;
      }
    }
  }

 private:
  static float* row_of(const TensorView& view, std::int64_t row) {
    if (view.extent(1) > 1 && view.stride[1] != 1) {
      throw std::invalid_argument("a tile whose rows are not contiguous");
    }
    return view.f32() + row * view.stride[0];
  }
  static std::int64_t class_of(const TensorView& labels, std::int64_t row, std::int64_t classes) {
    const std::int64_t label = labels.i32()[row * labels.stride[0]];
    if (label >= 0 && label < classes) return label;
    throw std::invalid_argument("the label of sample " + std::to_string(labels.tile.lo[0] + row) +
                                " is " + std::to_string(label) + ", not a class of 0 to " +
                                std::to_string(classes - 1));
  }

  bool sparse_ = false;
};

// One sample of a batch: a view with the first dimension gone.
TensorView sample_of(const TensorView& batch, std::int64_t row) {
  TensorView sample;
  sample.data = batch.f32() + row * batch.stride[0];
  sample.tile.rank = batch.rank() - 1;
  for (int d = 0; d < sample.rank(); ++d) {
    sample.tile.lo[d] = batch.tile.lo[d + 1];
    sample.tile.hi[d] = batch.tile.hi[d + 1];
    sample.stride[d] = batch.stride[d + 1];
    sample.shape[d] = batch.shape[d + 1];
  }
  return sample;
}

struct Errors {
  double squared = 0, absolute = 0;
};

FLEXLEGION_SIMD Errors errors_of(const float* x, const float* target, std::int64_t n) {
  double squared = 0, absolute = 0;
#pragma omp simd reduction(+ : squared, absolute)
  for (std::int64_t i = 0; i < n; ++i) {
    const double error = static_cast<double>(x[i]) - target[i];
    squared += error * error;
    absolute += error < 0 ? -error : error;
  }
  return {squared, absolute};
}

FLEXLEGION_SIMD void scaled_difference(const float* x, const float* target, float scale, float* dx,
                                       std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = (x[i] - target[i]) * scale;
}

class MeanSquaredError : public Kernel {
 public:
  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    Metrics sums;
    for (std::int64_t r = 0; r < y.extent(0); ++r) {
      float& loss = y.f32()[r * y.stride[0]];
      loss = 0;
      if (!is_valid(y, r, task.run)) continue;
      const TensorView x = sample_of(task.inputs[0], r), target = sample_of(task.inputs[1], r);
      Errors errors;
      for_each_run<2>({&x, &target}, [&](const Offsets<2>& at, std::int64_t n) {
        const Errors run = errors_of(x.f32() + at[0], target.f32() + at[1], n);
        errors.squared += run.squared;
        errors.absolute += run.absolute;
      });
      const auto features = static_cast<double>(x.volume());
      loss = static_cast<float>(errors.squared / features);
      sums.squared_error += errors.squared / features;
      sums.absolute_error += errors.absolute / features;
      ++sums.samples;
    }
    if (task.metrics == nullptr) return;
    task.metrics->loss += sums.squared_error;
    task.metrics->squared_error += sums.squared_error;
    task.metrics->absolute_error += sums.absolute_error;
    task.metrics->samples += sums.samples;
  }

  // 2 (x - target) / (features * valid_samples)
  void backward(KernelTask& task) override {
    const TensorView& gradient = task.input_grads[0];
    if (!gradient.present()) return;
    for (std::int64_t r = 0; r < gradient.extent(0); ++r) {
      const TensorView dx = sample_of(gradient, r);
      if (!is_valid(gradient, r, task.run)) {
        zero_view(dx);
        continue;
      }
      const TensorView x = sample_of(task.inputs[0], r), target = sample_of(task.inputs[1], r);
      const auto scale =
          static_cast<float>(2.0 / static_cast<double>(x.volume() * task.run.valid_samples));
      for_each_run<3>({&x, &target, &dx}, [&](const Offsets<3>& at, std::int64_t n) {
        scaled_difference(x.f32() + at[0], target.f32() + at[1], scale, dx.f32() + at[2], n);
      });
    }
  }
};

const RegisterKernel registered_cross_entropy("softmax_cross_entropy", [](const Attributes& a) {
  return std::make_unique<SoftmaxCrossEntropy>(a);
});
const RegisterKernel registered_squared_error("mean_squared_error", [](const Attributes&) {
  return std::make_unique<MeanSquaredError>();
});

}  // namespace
}  // namespace flexlegion
