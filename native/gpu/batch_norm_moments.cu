// batch_norm_statistics: each sample's mean and variance, from sums of x - s and (x - s)^2, where
// the shift s is the first of the values: so near the mean that nothing cancels.
// batch_norm_moments: the batch's, from its samples', and the running averages.
#include "gpu/batch_norm.h"
#include "gpu/column_sums.h"
#include "ops/batch_moments.h"

namespace flexlegion::gpu {
namespace {

class BatchNormStatistics : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if (task.run.training == 0 || task.outputs[0].tile.empty()) return;
    const Rows x(task.inputs[0]);
    const MeansAndVariances y(task.outputs[0]);
    const std::int64_t samples = task.inputs[0].extent(0), channels = task.outputs[0].extent(2);
    const std::int64_t positions = task.inputs[0].volume() / samples / channels;
    const double share = 1.0 / static_cast<double>(positions);
    // A column is a sample's channel.
    sum_wide_columns<2>(
        positions, samples * channels, x.aligned() && channels % kWide == 0, 0,
        [=] FL_BODY(auto width, std::int64_t r, std::int64_t k, auto& sums) {
          const std::int64_t i = k / channels, first = i * positions, c = k - i * channels;
          const auto values = x.load(width, first + r, c), shift = x.load(width, first, c);
          for (int w = 0; w < width.value; ++w) {
            const float value = values[w] - shift[w];
            sums[0][w] += value;
            sums[1][w] += value * value;
          }
        },
        [=] FL_BODY(std::int64_t k, const Sums<2>& sums) {
          const std::int64_t i = k / channels, c = k % channels;
          const double mean = sums.of[0] * share, variance = sums.of[1] * share - mean * mean;
          y.mean(i, c) = static_cast<float>(x(i * positions, c) + mean);
          y.variance(i, c) = variance > 0 ? static_cast<float>(variance) : 0.0f;
        });
  }

  // dx = dmean / p + dvariance (x - mean) 2 / p, for p positions.
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    const Rows x(task.inputs[0]), dx(task.input_grads[0]);
    const MeansAndVariances y(task.outputs[0]), dy(task.output_grads[0]);
    const std::int64_t channels = task.outputs[0].extent(2), volume = task.input_grads[0].volume();
    const std::int64_t positions = volume / task.outputs[0].extent(0) / channels;
    const float share = 1.0f / static_cast<float>(positions);
    const bool adds = task.adds_to_input_grad(0);
    for_each_in_rows(volume / channels, channels,
                     all_aligned({x, dx}) && y.aligned() && dy.aligned(),
                     [=] FL_BODY(auto width, std::int64_t row, std::int64_t c) {
                       const std::int64_t i = row / positions;
                       const auto values = x.load(width, row, c);
                       const auto mean = y.means(width, i, c), dmean = dy.means(width, i, c),
                                  dvariance = dy.variances(width, i, c);
                       auto grad = values;
                       for (int w = 0; w < width.value; ++w) {
                         grad[w] = share * (dmean[w] + 2 * dvariance[w] * (values[w] - mean[w]));
                       }
                       dx.put(row, c, grad, adds);
                     });
  }
};

class BatchNormMoments : public Kernel {
 public:
  explicit BatchNormMoments(const Attributes& attributes)
      : positions_(attributes.integer("positions")),
        momentum_(static_cast<float>(attributes.number("momentum"))) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const MeansAndVariances x(task.inputs[0]), y(task.outputs[0]);
    float *const running_mean = task.weights[0].f32(), *const running_variance =
                                                           task.weights[1].f32();
    const std::int64_t channels = task.outputs[0].extent(2);
    if (task.run.training == 0) {
      for_each(channels, [=] FL_BODY(std::int64_t c) {
        y.mean(0, c) = running_mean[c];
        y.variance(0, c) = running_variance[c];
      });
      return;
    }
    const std::int64_t samples = samples_that_count(task);
    const float share = share_of(samples), unbiased = unbiased_factor(samples * positions_);
    for_each_team(
        channels, samples, [=, momentum = momentum_] FL_BODY(const Team& team, std::int64_t c) {
          float sum = 0, spread = 0;
          for (std::int64_t i = team.rank; i < samples; i += team.size) {
            sum += x.mean(i, c);
          }
          const float mean = share * team.sum(sum);
          for (std::int64_t i = team.rank; i < samples; i += team.size) {
            const float difference = x.mean(i, c) - mean;
            spread += x.variance(i, c) + difference * difference;
          }
          const float variance = share * team.sum(spread);
          if (team.rank != 0) return;
          y.mean(0, c) = mean;
          y.variance(0, c) = variance;
          running_mean[c] = averaged(running_mean[c], mean, momentum);
          running_variance[c] = averaged(running_variance[c], unbiased * variance, momentum);
        });
  }

  // Of n samples' means m and variances v: dm = dmean / n + dvariance (m - mean) 2 / n, and
  // dv = dvariance / n.
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    const MeansAndVariances x(task.inputs[0]), dx(task.input_grads[0]), y(task.outputs[0]),
        dy(task.output_grads[0]);
    const std::int64_t channels = task.input_grads[0].extent(2), samples = samples_that_count(task);
    const float share = share_of(samples);
    const bool adds = task.adds_to_input_grad(0);
    for_each(task.input_grads[0].extent(0) * channels, [=] FL_BODY(std::int64_t k) {
      const std::int64_t i = k / channels, c = k % channels;
      const float each = i < samples ? share : 0.0f;
      const float difference = x.mean(i, c) - y.mean(0, c);
      put(dx.mean(i, c), each * (dy.mean(0, c) + 2 * dy.variance(0, c) * difference), adds);
      put(dx.variance(i, c), each * dy.variance(0, c), adds);
    });
  }

 private:
  static float share_of(std::int64_t samples) {
    return 1.0f / static_cast<float>(std::max<std::int64_t>(samples, 1));
  }

  std::int64_t positions_;
  float momentum_;
};

const RegisterKernel registered_statistics(
    "batch_norm_statistics",
    [](const Attributes&) { return std::make_unique<BatchNormStatistics>(); }, DeviceKind::gpu);
const RegisterKernel registered_moments(
    "batch_norm_moments", [](const Attributes& a) { return std::make_unique<BatchNormMoments>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
