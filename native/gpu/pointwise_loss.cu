// Losses of one predicted value and its target each, as ops/pointwise_loss.cc has them.
//
// Forwards a team for each sample, whose means go to scratch memory, and a launch of one team that
// adds them to the metrics. Backwards a thread for each value.
#include "ops/pointwise_loss.h"

#include "gpu/view.h"
#include "ops/losses.h"

namespace flexlegion::gpu {

using pointwise::LossSums;

// The loss and metrics of each sample, as means over its features. Each thread sums some features
// in double precision, and the team adds these sums.
//
// Samples beyond `valid` pad the last batch: they count no features, so all their sums are zero.
// Weights are of samples, if there are any.
template <typename Formula>
void add_samples(const Formula& formula, std::int64_t samples, std::int64_t valid,
                 std::int64_t features, const Tiles<2>& tiles, const Strided& weights,
                 const Strided& y, LossSums* means) {
  for_each_team(samples, features, [=] FL_BODY(const Team& team, std::int64_t sample) {
    LossSums sums;
    const std::int64_t counted = sample < valid ? features : 0;
    for (std::int64_t i = team.rank; i < counted; i += team.size) {
      const auto e = tiles(sample * features + i);
      formula.add(e[0], e[1], sums);
    }
    sums.loss = team.sum(sums.loss) / features;
    if (weights.rank > 0 && counted > 0) sums.loss *= static_cast<float>(weights[sample]);
    sums.squared_error = team.sum(sums.squared_error) / features;
    sums.absolute_error = team.sum(sums.absolute_error) / features;
    sums.correct = team.sum(sums.correct) / features;
    if (team.rank != 0) return;
    y[sample] = static_cast<float>(sums.loss);
    means[sample] = sums;
  });
}

// By one team, so that the metrics, which may be far away, are written once.
inline void add_metrics(Metrics* metrics, std::int64_t valid, const LossSums* means) {
  for_each_team(1, valid, [=] FL_BODY(const Team& team, std::int64_t) {
    LossSums sums;
    for (std::int64_t sample = team.rank; sample < valid; sample += team.size) {
      sums.loss += means[sample].loss;
      sums.squared_error += means[sample].squared_error;
      sums.absolute_error += means[sample].absolute_error;
      sums.correct += means[sample].correct;
    }
    sums.loss = team.sum(sums.loss);
    sums.squared_error = team.sum(sums.squared_error);
    sums.absolute_error = team.sum(sums.absolute_error);
    sums.correct = team.sum(sums.correct);
    if (team.rank != 0) return;
    add_atomically(&metrics->loss, sums.loss);
    add_atomically(&metrics->squared_error, sums.squared_error);
    add_atomically(&metrics->absolute_error, sums.absolute_error);
    add_atomically(&metrics->correct, sums.correct);
    add_atomically(&metrics->labels, valid);
    add_atomically(&metrics->samples, valid);
  });
}

// A thread a value. `scale` holds the share of a label and of a feature. Weights are of samples, if
// there are any.
template <typename Formula>
void write_slopes(const Formula& formula, const Tiles<3>& tiles, std::int64_t n,
                  std::int64_t counted, float scale, const Strided& weights,
                  std::int64_t features) {
  for_each(n, [=] FL_BODY(std::int64_t i) {
    const auto e = tiles(i);
    float slope = i < counted ? formula.slope(e[0], e[1]) * scale : 0.0f;
    if (weights.rank > 0 && i < counted) slope *= static_cast<float>(weights[i / features]);
    e[2] = slope;
  });
}

inline Strided weights_in(const KernelTask& task) {
  return pointwise::has_weights(task) ? Strided(task.inputs[1]) : Strided();
}

// One class for all formulas: a formula adds an element's terms and knows its slope.
template <typename Formula>
class PointwiseLoss : public Kernel {
 public:
  explicit PointwiseLoss(const Attributes& attributes) : formula_(attributes) {}
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    // A loss without targets has the values for them.
    const TensorView &x = task.inputs.front(), &target = task.inputs.back();
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    const std::int64_t samples = y.extent(0), valid = valid_samples(y, task.run);
    constexpr std::int64_t kNumbers = sizeof(LossSums) / sizeof(double);
    auto* const means = reinterpret_cast<LossSums*>(scratch_doubles(0, kNumbers * samples));
    add_samples(formula_, samples, valid, x.volume() / samples, Tiles<2>({&x, &target}),
                weights_in(task), Strided(y), means);
    if (task.metrics != nullptr) add_metrics(task.metrics, valid, means);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    const TensorView& dx = task.input_grads[0];
    // A slope may need no values (that of the mean itself): then none are saved, and dx stands in
    // for them.
    const bool reads = task.inputs[0].present();
    const TensorView& x = reads ? task.inputs.front() : dx;
    const TensorView& target = reads ? task.inputs.back() : dx;
    const std::int64_t features = dx.volume() / dx.extent(0);
    const auto scale = static_cast<float>(task.run.label_share / static_cast<double>(features));
    write_slopes(formula_, Tiles<3>({&x, &target, &dx}), dx.volume(),
                 valid_samples(dx, task.run) * features, scale, weights_in(task), features);
  }

 private:
  Formula formula_;
};

namespace {
const bool registered = (pointwise::register_all<PointwiseLoss>(DeviceKind::gpu), true);
}

}  // namespace flexlegion::gpu
