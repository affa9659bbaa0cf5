// batch_norm_statistics: each sample's mean and variance, from sums of x - s and (x - s)^2, where
// the shift s is a mean of a few positions: so near the mean that nothing cancels.
// batch_norm_moments: the batch's, from its samples', and the running averages.
//
// Why three operators instead of one: the statistics of a sample need that sample alone, so any
// split of the batch or of the channels computes them without communication. Only the join over
// samples, of 2 c numbers each, needs all of them, and the plan makes it an operator of its own
// whose inputs move between devices. The normalisation (batch_norm.cc) then works on any tile
// again.
//
// A variance is the mean of squares less the square of the mean, of shifted values. One pass over
// the memory gives both; the two-pass formula would read x twice. Unshifted, the one-pass formula
// cancels where the mean is large beside the deviation.
#include <algorithm>

#include "ops/batch_moments.h"
#include "ops/batch_norm.h"

namespace flexlegion {
namespace {

// sum += x - shift, square += (x - shift)^2
template <typename Element>
struct SumsPass {
  const Element* x;
  const float* shift;
  double *sum, *square;
  std::int64_t pitch;

  template <typename V, int K>
  FLEXLEGION_INLINE void chunk(std::int64_t row, std::int64_t rows, std::int64_t col) const {
    constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
    V center[K], s[K]{}, q[K]{};
    for (int k = 0; k < K; ++k) load(center[k], shift + col + k * kWidth);
    for (std::int64_t r = row; r < row + rows; ++r) {
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) {
        V value;
        load(value, x + r * pitch + col + k * kWidth);
        value -= center[k];
        s[k] += value;
        q[k] += value * value;
      }
    }
    for (int k = 0; k < K; ++k) {
      add_to(sum + col + k * kWidth, s[k]);
      add_to(square + col + k * kWidth, q[k]);
    }
  }
};

// One version for floats and one for bfloat16, each compiled for every generation of processors.
FLEXLEGION_SIMD void shifted_sums(const SumsPass<float>& pass, std::int64_t rows,
                                  std::int64_t cols) {
  for_each_chunk(pass, rows, cols);
}

FLEXLEGION_SIMD void shifted_sums(const SumsPass<Bfloat16>& pass, std::int64_t rows,
                                  std::int64_t cols) {
  for_each_chunk(pass, rows, cols);
}

// The mean of rows `step` apart.
template <typename Element>
void mean_of_rows(const Element* x, std::int64_t rows, std::int64_t step, std::int64_t cols,
                  float* mean) {
  // Plain loops: at most 8 rows are read.
  const float share = 1.0f / static_cast<float>(rows);
  for (std::int64_t c = 0; c < cols; ++c) mean[c] = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      float value;
      load(value, x + r * step + c);
      mean[c] += share * value;
    }
  }
}

// One sample of a tile.
TensorView sample(const TensorView& view, std::int64_t i) {
  TensorView one = view;
  one.data = view.at(i * view.stride[0]);
  one.tile.lo[0] += i;
  one.tile.hi[0] = one.tile.lo[0] + 1;
  return one;
}

// Elements of a sample and channel.
std::int64_t positions_of(const TensorView& x) {
  return x.volume() / x.extent(0) / x.extent(x.rank() - 1);
}

class BatchNormStatistics : public Kernel {
 public:
  explicit BatchNormStatistics(const Attributes& attributes)
      : evaluated_(attributes.integer("evaluated") != 0) {}
  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if ((task.run.training == 0 && !evaluated_) || y.tile.empty()) return;
    for (std::int64_t i = 0; i < x.extent(0); ++i) {
      with_element(x.type, [&](auto element) {
        reduce<decltype(element)>(sample(x, i), MeanAndVariance(y, i));
      });
    }
  }

  // dx = dmean / p + dvariance (x - mean) 2 / p, for p positions.
  void backward(KernelTask& task) override {
    if (task.input_grads.empty() || !task.input_grads[0].present()) return;
    const TensorView &x = task.inputs[0], &dx = task.input_grads[0];
    if (dx.tile.empty()) return;
    check_alike(x, dx);
    const std::int64_t channels = x.extent(x.rank() - 1), at_once = rows_at_once(channels);
    const std::int64_t width = channels * at_once;
    const float share = 1.0f / static_cast<float>(positions_of(x));
    float *const center = scratch(0, 3 * width), *const scale = center + width,
                 *const offset = scale + width;
    const Affine f{center, scale, offset, Epilogue::none, adds(task.adds_input_grad, 0)};
    for (std::int64_t i = 0; i < x.extent(0); ++i) {
      const MeanAndVariance of(task.outputs[0], i), gradient(task.output_grads[0], i);
      for (std::int64_t c = 0; c < channels; ++c) {
        center[c] = of.mean[c];
        scale[c] = gradient.variance[c] * 2 * share;
        offset[c] = gradient.mean[c] * share;
      }
      for (float* values : {center, scale, offset}) repeat(values, channels, at_once);
      const TensorView from = sample(x, i), to = sample(dx, i);
      with_element(from.type, [&](auto element) {
        using Element = decltype(element);
        for_each_row_group<3>({&from, &to, &to}, at_once, [&](const RowGroup<3>& group) {
          affine(f, from.as<Element>(), to.as<Element>(), to.as<Element>(), group);
        });
      });
    }
  }

 private:
  // One sample's moments: the shift from up to 8 rows spread over the first group, then one pass of
  // shifted sums, then mean = shift + sum / n and variance = square / n - (sum / n)^2.
  template <typename Element>
  static void reduce(const TensorView& x, const MeanAndVariance& result) {
    constexpr std::int64_t kShiftRows = 8;
    const std::int64_t channels = x.extent(x.rank() - 1), at_once = rows_at_once(channels);
    const std::int64_t width = channels * at_once;
    float* const shift = scratch(0, width);
    double *const sum = doubles(1, 2 * width), *const square = sum + width;
    std::fill_n(sum, 2 * width, 0.0);
    bool first = true;
    for_each_row_group<1>({&x}, at_once, [&](const RowGroup<1>& group) {
      const Element* const rows = x.as<Element>() + group.at[0];
      if (first) {
        // Also of joined rows the first channels: any value near the mean will do.
        const std::int64_t taken = std::min(kShiftRows, group.rows);
        mean_of_rows(rows, taken, group.rows / taken * group.pitch[0], channels, shift);
        repeat(shift, channels, at_once);
        first = false;
      }
      shifted_sums(SumsPass<Element>{rows, shift, sum, square, group.pitch[0]}, group.rows,
                   group.cols);
    });
    fold(sum, channels, at_once);
    fold(square, channels, at_once);
    const double share = 1.0 / static_cast<double>(positions_of(x));
    for (std::int64_t c = 0; c < channels; ++c) {
      const double mean = sum[c] * share;
      result.mean[c] = static_cast<float>(shift[c] + mean);
      const double variance = square[c] * share - mean * mean;
      result.variance[c] = static_cast<float>(variance < 0 ? 0.0 : variance);  // NaN stays
    }
  }

  bool evaluated_;  // in evaluation and prediction, too
};

// In training: the batch's moments from its samples', and the running averages. In evaluation: the
// running averages, if there are any.
class BatchNormMoments : public Kernel {
 public:
  explicit BatchNormMoments(const Attributes& attributes)
      : positions_(attributes.integer("positions")),
        momentum_(static_cast<float>(attributes.number("momentum"))),
        running_(attributes.integer("running") != 0) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    const MeanAndVariance result(y, 0);
    const std::int64_t channels = y.extent(2);
    if (!running_) {
      join(task, result, channels);
      return;
    }
    float *const running_mean = task.weights[0].f32(), *const running_variance =
                                                           task.weights[1].f32();
    if (task.run.training == 0) {
      std::copy_n(running_mean, channels, result.mean);
      std::copy_n(running_variance, channels, result.variance);
      return;
    }
    // The running variance is the unbiased estimate, as in PyTorch; the batch's own stays the
    // biased one.
    const std::int64_t samples = join(task, result, channels);
    const float unbiased = unbiased_factor(samples * positions_);
    average(running_mean, result.mean, 1.0f, channels);
    average(running_variance, result.variance, unbiased, channels);
  }

  // Of n samples' means m and variances v: dm = dmean / n + dvariance (m - mean) 2 / n, and
  // dv = dvariance / n.
  void backward(KernelTask& task) override {
    if (task.input_grads.empty() || !task.input_grads[0].present()) return;
    const TensorView &x = task.inputs[0], &dx = task.input_grads[0];
    if (dx.tile.empty()) return;
    const bool adds_grad = adds(task.adds_input_grad, 0);
    const MeanAndVariance joint(task.outputs[0], 0), of(task.output_grads[0], 0);
    const std::int64_t channels = dx.extent(2), samples = samples_that_count(task);
    const float share = 1.0f / static_cast<float>(std::max<std::int64_t>(samples, 1));
    for (std::int64_t i = 0; i < dx.extent(0); ++i) {
      const MeanAndVariance one(x, i), to(dx, i);
      if (!adds_grad) {
        std::fill_n(to.mean, channels, 0.0f);
        std::fill_n(to.variance, channels, 0.0f);
      }
      if (i < samples) add_gradient(one.mean, joint.mean, of, share, to, channels);
    }
  }

 private:
  // The mean is the mean of means, for all samples have as many positions. The variance is that of
  // the means about it plus the mean of the variances. Two passes over the samples' statistics,
  // which are small.
  static std::int64_t join(const KernelTask& task, const MeanAndVariance& result,
                           std::int64_t channels) {
    const std::int64_t samples = samples_that_count(task);
    double *const mean = doubles(0, 2 * channels), *const variance = mean + channels;
    std::fill_n(mean, 2 * channels, 0.0);
    const double share = 1.0 / static_cast<double>(std::max<std::int64_t>(samples, 1));
    for (std::int64_t i = 0; i < samples; ++i) {
      add_scaled(MeanAndVariance(task.inputs[0], i).mean, share, mean, channels);
    }
    for (std::int64_t i = 0; i < samples; ++i) {
      add_variance(MeanAndVariance(task.inputs[0], i), mean, share, variance, channels);
    }
    write_totals(result.mean, mean, channels, false);
    write_totals(result.variance, variance, channels, false);
    return samples;
  }

  FLEXLEGION_SIMD static void add_scaled(const float* x, double share, double* sum,
                                         std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) sum[c] += share * x[c];
  }

  FLEXLEGION_SIMD static void add_variance(const MeanAndVariance& one, const double* mean,
                                           double share, double* sum, std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) {
      const double difference = one.mean[c] - mean[c];
      sum[c] += share * (one.variance[c] + difference * difference);
    }
  }

  FLEXLEGION_SIMD static void add_gradient(const float* mean, const float* joint,
                                           const MeanAndVariance& of, float share,
                                           const MeanAndVariance& to, std::int64_t n) {
    for (std::int64_t c = 0; c < n; ++c) {
      to.mean[c] += share * (of.mean[c] + 2 * of.variance[c] * (mean[c] - joint[c]));
      to.variance[c] += share * of.variance[c];
    }
  }

  void average(float* running, const float* batch, float factor, std::int64_t n) const {
    for (std::int64_t c = 0; c < n; ++c) {
      running[c] = averaged(running[c], factor * batch[c], momentum_);
    }
  }

  std::int64_t positions_;
  float momentum_;
  bool running_;  // whether there are running averages; else, evaluation takes the batch's, too
};

const RegisterKernel registered_statistics("batch_norm_statistics", [](const Attributes& a) {
  return std::make_unique<BatchNormStatistics>(a);
});
const RegisterKernel registered_moments("batch_norm_moments", [](const Attributes& a) {
  return std::make_unique<BatchNormMoments>(a);
});

}  // namespace
}  // namespace flexlegion
