// batch_norm: normalises by the moments that batch_norm_moments gives, adds a residual if there is
// a third input, then applies a ReLU if asked for.
//
// A gradient goes back through the sums s of dz and t of dz (x - mean) of a channel, which the pass
// that writes dx and the residual's gradient takes along.
#include "gpu/batch_norm.h"

#include "ops/activation.h"

namespace flexlegion::gpu {
namespace {

constexpr std::size_t kResidual = 2;  // among the inputs, after x and the moments
constexpr int kScaleSlot = 0, kSumsSlot = 1;

FL_DEVICE inline double reciprocal_deviation(float variance, double epsilon) {
  return 1.0 / sqrt(static_cast<double>(variance) + epsilon);
}

// A channel's gamma / sqrt(variance + epsilon), in scratch memory.
float* scales_of(const KernelTask& task, std::int64_t channels, double epsilon) {
  const MeansAndVariances moments(task.inputs[1]);
  const float* const gamma = task.weights[0].f32();
  float* const scale = scratch(kScaleSlot, channels);
  for_each(channels, [=] FL_BODY(std::int64_t c) {
    scale[c] = static_cast<float>(gamma[c] * reciprocal_deviation(moments.variance(0, c), epsilon));
  });
  return scale;
}

class BatchNorm : public Kernel {
 public:
  explicit BatchNorm(const Attributes& attributes)
      : epsilon_(attributes.number("epsilon")),
        relu_(activation_of(attributes) == Activation::relu) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const Rows x(task.inputs[0]), y(output),
        residual(task.inputs.size() > kResidual ? task.inputs[kResidual] : TensorView());
    const MeansAndVariances moments(task.inputs[1]);
    const std::int64_t channels = output.extent(output.rank() - 1);
    const float* const scale = scales_of(task, channels, epsilon_);
    const float* const beta = task.weights[1].f32();
    for_each(output.volume(), [=, relu = relu_] FL_BODY(std::int64_t i) {
      const std::int64_t row = i / channels, c = i % channels;
      float value = (x(row, c) - moments.mean(0, c)) * scale[c] + beta[c];
      if (residual.present()) value += residual(row, c);
      y(row, c) = relu && !(value > 0.0f) ? 0.0f : value;
    });
  }

  // With r = 1 / sqrt(variance + epsilon): dgamma = r t, dbeta = s, dmean = -gamma r s, and
  // dvariance = -gamma r^3 t / 2.
  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    // What the ReLU let through tells the output, if it is there, or else x.
    const Rows x(task.inputs[0]), dz(output_grad), z(relu_ ? task.outputs[0] : TensorView()),
        dx(input_grad(task, 0)), d_residual(input_grad(task, kResidual));
    const float* const beta = relu_ && !z.present() ? task.weights[1].f32() : nullptr;
    const bool adds_dx = task.adds_to_input_grad(0),
               adds_residual = task.adds_to_input_grad(kResidual);
    const MeansAndVariances moments(task.inputs[1]), d_moments(input_grad(task, 1));
    const bool adds_moments = task.adds_to_input_grad(1);
    float *const dgamma = weight_grad(task, 0), *const dbeta = weight_grad(task, 1);
    const bool adds_gamma = task.adds_to_weight_grad(0), adds_beta = task.adds_to_weight_grad(1);
    const std::int64_t channels = output_grad.extent(output_grad.rank() - 1);
    const float* const scale = scales_of(task, channels, epsilon_);
    sum_columns<2>(
        output_grad.volume() / channels, channels, kSumsSlot,
        [=] FL_BODY(std::int64_t row, std::int64_t c) {
          const float from_mean = x(row, c) - moments.mean(0, c);
          float passed = 1;
          if (z.present()) passed = z(row, c);
          if (beta != nullptr) passed = from_mean * scale[c] + beta[c];
          const float grad = passed > 0.0f ? dz(row, c) : 0.0f;
          if (dx.present()) put(dx(row, c), grad * scale[c], adds_dx);
          if (d_residual.present()) put(d_residual(row, c), grad, adds_residual);
          return Sums<2>{{grad, grad * from_mean}};
        },
        [=, epsilon = epsilon_] FL_BODY(std::int64_t c, const Sums<2>& sums) {
          const double r = reciprocal_deviation(moments.variance(0, c), epsilon);
          const double s = sums.of[0], rt = r * sums.of[1];
          if (dgamma != nullptr) put(dgamma[c], static_cast<float>(rt), adds_gamma);
          if (dbeta != nullptr) put(dbeta[c], static_cast<float>(s), adds_beta);
          if (!d_moments.present()) return;
          put(d_moments.mean(0, c), static_cast<float>(-scale[c] * s), adds_moments);
          put(d_moments.variance(0, c), static_cast<float>(-0.5 * scale[c] * r * rt), adds_moments);
        });
  }

 private:
  static TensorView input_grad(const KernelTask& task, std::size_t i) {
    return task.wants_input_grad(i) ? task.input_grads[i] : TensorView();
  }
  static float* weight_grad(const KernelTask& task, std::size_t i) {
    return task.wants_weight_grad(i) ? task.weight_grads[i].f32() : nullptr;
  }

  double epsilon_;
  bool relu_;
};

const RegisterKernel registered(
    "batch_norm", [](const Attributes& a) { return std::make_unique<BatchNorm>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
