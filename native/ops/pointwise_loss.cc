// Losses that are means over functions of one predicted value and its target (pointwise_loss.h), on
// CPUs: forward gives the mean of each sample and adds to the metrics; backward gives the gradient
// of what the samples that count add to the goal.
//
// Where samples have weights, an input between values and targets, each loss and its slopes are
// times its sample's; metrics are not.
//
// A sample's sum is taken in double precision, over pieces of its tile that are contiguous. A task
// has whole samples, since the mean over a sample's features is the loss of that sample.
#include "ops/pointwise_loss.h"

#include "ops/losses.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion::pointwise {
namespace {

// The r-th sample of a tile. The view keeps its rank: a sample of a tensor (n) is one element, and
// a view of rank 0 would be empty.
TensorView sample_of(const TensorView& view, std::int64_t r) {
  return narrowed(view, 0, view.tile.lo[0] + r, view.tile.lo[0] + r + 1);
}

// One function a formula for every generation of processors.
#define FLEXLEGION_LOOPS(Formula)                                                                \
  FLEXLEGION_SIMD void add_run(const Formula& formula, const float* x, const float* target,      \
                               std::int64_t n, LossSums& sums) {                                 \
    LossSums mine;                                                                               \
    for (std::int64_t i = 0; i < n; ++i) formula.add(x[i], target[i], mine);                     \
    sums.loss += mine.loss;                                                                      \
    sums.squared_error += mine.squared_error;                                                    \
    sums.absolute_error += mine.absolute_error;                                                  \
    sums.correct += mine.correct;                                                                \
  }                                                                                              \
  FLEXLEGION_SIMD void write_slopes(const Formula& formula, const float* x, const float* target, \
                                    float scale, float* dx, std::int64_t n) {                    \
    for (std::int64_t i = 0; i < n; ++i) dx[i] = formula.slope(x[i], target[i]) * scale;         \
  }

FLEXLEGION_LOOPS(SquaredError)
FLEXLEGION_LOOPS(AbsoluteError)
FLEXLEGION_LOOPS(Huber)
FLEXLEGION_LOOPS(CrossEntropyOfLogits)
FLEXLEGION_LOOPS(CrossEntropyOfProbabilities)
FLEXLEGION_LOOPS(Value)

#undef FLEXLEGION_LOOPS

template <typename Formula>
class Loss : public Kernel {
 public:
  explicit Loss(const Attributes& attributes) : formula_(attributes) {}

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    Metrics metrics;
    for (std::int64_t r = 0; r < y.extent(0); ++r) {
      float& loss = y.f32()[r * y.stride[0]];
      loss = 0;
      if (r >= valid_samples(y, task.run)) continue;
      // A loss without targets has the values for them.
      const TensorView x = sample_of(task.inputs.front(), r);
      const TensorView target = sample_of(task.inputs.back(), r);
      LossSums sums;
      for_each_run<2>({&x, &target}, [&](const Offsets<2>& at, std::int64_t n) {
        add_run(formula_, x.f32() + at[0], target.f32() + at[1], n, sums);
      });
      const auto features = static_cast<double>(x.volume());
      const double its_loss = sums.loss / features * weight_of(task, r);
      loss = static_cast<float>(its_loss);
      metrics.loss += its_loss;
      metrics.squared_error += sums.squared_error / features;
      metrics.absolute_error += sums.absolute_error / features;
      metrics.correct += sums.correct / features;
      ++metrics.samples;
    }
    metrics.labels = metrics.samples;
    if (task.metrics != nullptr) task.metrics->add(metrics);
  }

  // slope(x, target) / features * label_share
  void backward(KernelTask& task) override {
    const TensorView& gradient = task.input_grads[0];
    if (!gradient.present()) return;
    // A formula whose slope needs no values (the mean itself) saves none; any view of the same
    // extents stands in.
    const bool reads = task.inputs[0].present();
    for (std::int64_t r = 0; r < gradient.extent(0); ++r) {
      const TensorView dx = sample_of(gradient, r);
      if (r >= valid_samples(gradient, task.run)) {
        zero_view(dx);
        continue;
      }
      const TensorView x = reads ? sample_of(task.inputs.front(), r) : dx;
      const TensorView target = reads ? sample_of(task.inputs.back(), r) : dx;
      const auto scale = static_cast<float>(task.run.label_share * weight_of(task, r) /
                                            static_cast<double>(dx.volume()));
      for_each_run<3>({&x, &target, &dx}, [&](const Offsets<3>& at, std::int64_t n) {
        write_slopes(formula_, x.f32() + at[0], target.f32() + at[1], scale, dx.f32() + at[2], n);
      });
    }
  }

 private:
  // Of the tile's r-th sample.
  static float weight_of(const KernelTask& task, std::int64_t r) {
    if (!has_weights(task)) return 1.0f;
    return task.inputs[1].f32()[r * task.inputs[1].stride[0]];
  }

  Formula formula_;
};

const bool registered = (register_all<Loss>(DeviceKind::cpu), true);

}  // namespace
}  // namespace flexlegion::pointwise
