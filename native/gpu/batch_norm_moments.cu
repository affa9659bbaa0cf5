// batch_norm_statistics: each sample's mean and variance, from sums of x - s and (x - s)^2, where
// the shift s is the first of the values: so near the mean that nothing cancels.
// batch_norm_moments: the batch's, from its samples', and the running averages.
//
// Statistics: the table has a row a position, and a column a channel of each sample, so all samples
// are summed by one launch. Moments: a team of threads for each channel goes over the samples
// twice, for the mean and for the variance about it; these are few numbers. Why the operators are
// three is told in ops/batch_norm_moments.cc.
#include "gpu/batch_norm.h"
#include "gpu/column_sums.h"
#include "ops/batch_moments.h"

namespace flexlegion::gpu {
namespace {

// A tile's elements as a table of positions and, as columns, the channels of all samples.
struct Planes {
  Rows rows;
  std::int64_t positions, channels;

  template <int W>
  FL_DEVICE Lanes<W> load(Width<W> width, std::int64_t position, std::int64_t k) const {
    const std::int64_t i = k / channels;
    return rows.load(width, i * positions + position, k - i * channels);
  }
  template <int W>
  FL_DEVICE void put(std::int64_t position, std::int64_t k, const Lanes<W>& lanes,
                     bool adds) const {
    const std::int64_t i = k / channels;
    rows.put(i * positions + position, k - i * channels, lanes, adds);
  }
  // Whether kWide columns can be moved together: then these are of one sample.
  bool aligned() const { return rows.aligned() && channels % kWide == 0; }
};

// What a column keeps is the shift: its first value.
struct StatisticsRows {
  Planes x;

  template <int W>
  FL_DEVICE Lanes<W> column(Width<W> width, std::int64_t k) const {
    return x.load(width, 0, k);
  }
  template <int W>
  FL_DEVICE Lanes<W> read(Width<W> width, std::int64_t position, std::int64_t k) const {
    return x.load(width, position, k);
  }
  template <int W, typename Some>
  FL_DEVICE void add(Width<W>, const Lanes<W>& shift, const Lanes<W>& values, std::int64_t,
                     std::int64_t, Some (&sums)[2][W]) const {
    for (int w = 0; w < W; ++w) {
      const float value = values[w] - shift[w];
      sums[0][w] += value;
      sums[1][w] += value * value;
    }
  }
};

// dx = dmean / p + dvariance (x - mean) 2 / p, for p positions.
struct StatisticsGradient {
  template <int W>
  struct Column {
    Lanes<W> mean, constant, slope;
  };

  Planes x, dx;
  MeansAndVariances y, dy;
  bool adds;

  template <int W>
  FL_DEVICE Column<W> column(Width<W>, std::int64_t k) const {
    const float share = 1.0f / static_cast<float>(x.positions);
    Column<W> of;
    for (int w = 0; w < W; ++w) {
      const std::int64_t i = (k + w) / x.channels, c = k + w - i * x.channels;
      of.mean[w] = y.mean(i, c);
      of.constant[w] = share * dy.mean(i, c);
      of.slope[w] = 2 * share * dy.variance(i, c);
    }
    return of;
  }
  template <int W>
  FL_DEVICE Lanes<W> read(Width<W> width, std::int64_t position, std::int64_t k) const {
    return x.load(width, position, k);
  }
  template <int W, typename None>
  FL_DEVICE void add(Width<W>, const Column<W>& of, const Lanes<W>& values, std::int64_t position,
                     std::int64_t k, None&) const {
    Lanes<W> grads;
    for (int w = 0; w < W; ++w) {
      grads[w] = of.constant[w] + of.slope[w] * (values[w] - of.mean[w]);
    }
    dx.put(position, k, grads, adds);
  }
};

// Per sample: any split of samples or channels computes its own without communication.
class BatchNormStatistics : public Kernel {
 public:
  explicit BatchNormStatistics(const Attributes& attributes)
      : evaluated_(attributes.integer("evaluated") != 0) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if ((task.run.training == 0 && !evaluated_) || task.outputs[0].tile.empty()) return;
    const MeansAndVariances y(task.outputs[0]);
    const std::int64_t samples = task.inputs[0].extent(0), channels = task.outputs[0].extent(2);
    const std::int64_t positions = task.inputs[0].volume() / samples / channels;
    const Planes x{Rows(task.inputs[0]), positions, channels};
    const double share = 1.0 / static_cast<double>(positions);
    run_and_sum_columns<2>(positions, samples * channels, x.aligned(), 0, StatisticsRows{x},
                           [=] FL_BODY(std::int64_t k, const Sums<2>& sums) {
                             const std::int64_t i = k / channels, c = k % channels;
                             const double mean = sums.of[0] * share;
                             // The variance of shifted values, from the same pass as their mean.
                             const double variance = sums.of[1] * share - mean * mean;
                             const float first = x.load(Width<1>(), 0, k)[0];
                             y.mean(i, c) = static_cast<float>(first + mean);
                             // Rounding may leave a tiny negative number where all values are
                             // equal.
                             y.variance(i, c) = variance < 0 ? 0.0f : static_cast<float>(variance);
                           });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    const std::int64_t samples = task.outputs[0].extent(0), channels = task.outputs[0].extent(2);
    const std::int64_t positions = task.input_grads[0].volume() / samples / channels;
    const StatisticsGradient body{{Rows(task.inputs[0]), positions, channels},
                                  {Rows(task.input_grads[0]), positions, channels},
                                  MeansAndVariances(task.outputs[0]),
                                  MeansAndVariances(task.output_grads[0]),
                                  task.adds_to_input_grad(0)};
    run_columns(positions, samples * channels, body.x.aligned() && body.dx.aligned(), body);
  }

 private:
  bool evaluated_;  // in evaluation and prediction, too
};

// Joins the samples' statistics to those of the batch: 2 c numbers a sample.
class BatchNormMoments : public Kernel {
 public:
  explicit BatchNormMoments(const Attributes& attributes)
      : positions_(attributes.integer("positions")),
        momentum_(static_cast<float>(attributes.number("momentum"))),
        running_(attributes.integer("running") != 0) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const MeansAndVariances x(task.inputs[0]), y(task.outputs[0]);
    float* const running_mean = running_ ? task.weights[0].f32() : nullptr;
    float* const running_variance = running_ ? task.weights[1].f32() : nullptr;
    const std::int64_t channels = task.outputs[0].extent(2);
    // In evaluation the running averages stand for the batch's moments.
    if (running_ && task.run.training == 0) {
      for_each(channels, [=] FL_BODY(std::int64_t c) {
        y.mean(0, c) = running_mean[c];
        y.variance(0, c) = running_variance[c];
      });
      return;
    }
    const std::int64_t samples = samples_that_count(task);
    // The running variance is the unbiased estimate, as in PyTorch.
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
          if (running_mean == nullptr) return;
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
      // Samples that pad the last batch have no part in the moments, and no gradient.
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
  bool running_;  // whether there are running averages; else, evaluation takes the batch's, too
};

const RegisterKernel registered_statistics(
    "batch_norm_statistics",
    [](const Attributes& a) { return std::make_unique<BatchNormStatistics>(a); }, DeviceKind::gpu);
const RegisterKernel registered_moments(
    "batch_norm_moments", [](const Attributes& a) { return std::make_unique<BatchNormMoments>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
