// batch_norm: normalises by the moments that batch_norm_moments gives, adds a residual if there is
// a third input, then applies a ReLU if asked for.
//
// A gradient goes back through the sums s of dz and t of dz (x - mean) of a channel, which the pass
// that writes dx and the residual's gradient takes along.
#include "gpu/batch_norm.h"
#include "gpu/column_sums.h"

#include "ops/activation.h"

namespace flexlegion::gpu {
namespace {

constexpr std::size_t kResidual = 2;  // among the inputs, after x and the moments
constexpr int kScaleSlot = 0, kSumsSlot = 1;

FL_DEVICE inline double reciprocal_deviation(float variance, double epsilon) {
  return 1.0 / sqrt(static_cast<double>(variance) + epsilon);
}

// What a channel is normalised by: an array each.
struct Channels {
  Reals mean, scale, beta;  // scale: gamma / sqrt(variance + epsilon)
};

// In scratch memory.
Channels channels_of(const KernelTask& task, std::int64_t count, double epsilon) {
  const MeansAndVariances moments(task.inputs[1]);
  const float *const gamma = task.weights[0].f32(), *const beta = task.weights[1].f32();
  const std::int64_t room = (count + kWide - 1) / kWide * kWide;  // so that each is aligned
  float* const means = scratch(kScaleSlot, 3 * room);
  for_each(count, [=] FL_BODY(std::int64_t c) {
    const double r = reciprocal_deviation(moments.variance(0, c), epsilon);
    means[c] = moments.mean(0, c);
    means[room + c] = static_cast<float>(gamma[c] * r);
    means[2 * room + c] = beta != nullptr ? beta[c] : 0.0f;
  });
  const Reals first(means, DataType::float32);
  return {first, first + room, first + 2 * room};
}

// Adds the gradients of rows to their channels' s and t, and writes what goes on from there.
struct BackwardRows {
  Rows x, dz, z, dx, d_residual;
  Channels channels;
  bool relu, adds_dx, adds_residual;

  template <int W, typename Some>
  FL_DEVICE void operator()(Width<W> width, std::int64_t row, std::int64_t c,
                            Some (&sums)[2][W]) const {
    auto from_mean = x.load(width, row, c);
    auto grad = dz.load(width, row, c);
    const auto mean = load(width, channels.mean, c), scale = load(width, channels.scale, c);
    for (int k = 0; k < W; ++k) from_mean[k] -= mean[k];
    if (relu && z.present()) {
      const auto output = z.load(width, row, c);
      for (int k = 0; k < W; ++k) grad[k] = output[k] > 0.0f ? grad[k] : 0.0f;
    } else if (relu) {
      const auto beta = load(width, channels.beta, c);
      for (int k = 0; k < W; ++k) {
        grad[k] = from_mean[k] * scale[k] + beta[k] > 0.0f ? grad[k] : 0.0f;
      }
    }
    if (d_residual.present()) d_residual.put(row, c, grad, adds_residual);
    for (int k = 0; k < W; ++k) {
      sums[0][k] += grad[k];
      sums[1][k] += grad[k] * from_mean[k];
      grad[k] *= scale[k];
    }
    if (dx.present()) dx.put(row, c, grad, adds_dx);
  }
};

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
    const std::int64_t count = output.extent(output.rank() - 1);
    const Channels channels = channels_of(task, count, epsilon_);
    for_each_in_rows(output.volume() / count, count, all_aligned({x, y, residual}),
                     [=, relu = relu_] FL_BODY(auto width, std::int64_t row, std::int64_t c) {
                       auto values = x.load(width, row, c);
                       const auto mean = load(width, channels.mean, c),
                                  scale = load(width, channels.scale, c),
                                  beta = load(width, channels.beta, c);
                       for (int k = 0; k < width.value; ++k) {
                         values[k] = (values[k] - mean[k]) * scale[k] + beta[k];
                       }
                       if (residual.present()) {
                         const auto its = residual.load(width, row, c);
                         for (int k = 0; k < width.value; ++k) values[k] += its[k];
                       }
                       if (relu) {
                         for (int k = 0; k < width.value; ++k)
                           values[k] = values[k] > 0.0f ? values[k] : 0.0f;
                       }
                       y.put(row, c, values);
                     });
  }

  // With r = 1 / sqrt(variance + epsilon): dgamma = r t, dbeta = s, dmean = -gamma r s, and
  // dvariance = -gamma r^3 t / 2.
  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const std::int64_t count = output_grad.extent(output_grad.rank() - 1);
    // What the ReLU let through tells the output, if it is there, or else x.
    const BackwardRows body{Rows(task.inputs[0]),
                            Rows(output_grad),
                            Rows(relu_ ? task.outputs[0] : TensorView()),
                            Rows(input_grad(task, 0)),
                            Rows(input_grad(task, kResidual)),
                            channels_of(task, count, epsilon_),
                            relu_,
                            task.adds_to_input_grad(0),
                            task.adds_to_input_grad(kResidual)};
    const MeansAndVariances moments(task.inputs[1]), d_moments(input_grad(task, 1));
    const bool adds_moments = task.adds_to_input_grad(1);
    float *const dgamma = weight_grad(task, 0), *const dbeta = weight_grad(task, 1);
    const bool adds_gamma = task.adds_to_weight_grad(0), adds_beta = task.adds_to_weight_grad(1);
    const float* const scale = static_cast<const float*>(body.channels.scale.data());
    sum_wide_columns<2>(
        output_grad.volume() / count, count,
        all_aligned({body.x, body.dz, body.z, body.dx, body.d_residual}), kSumsSlot, body,
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
