// batch_norm: normalises by the moments that batch_norm_moments gives, adds a residual if there is
// a third input, then applies the epilogue.
//
// A gradient goes back through the sums s of dz and t of dz (x - mean) of a channel, which the pass
// that writes dx and the residual's gradient takes along.
//
// Both passes are loops down the columns of a table (gpu/column_sums.h): a thread keeps the
// parameters of its few channels in registers, and reads rows of pixels. Forwards writes y and sums
// nothing; backwards writes dx and the residual's gradient and sums s and t on the way. So each
// tensor is read once in either pass. What went into the epilogue is computed again from x, which
// is read anyway.
#include "gpu/batch_norm.h"
#include "gpu/column_sums.h"

#include "ops/epilogue.h"

namespace flexlegion::gpu {
namespace {

constexpr std::size_t kResidual = 2;  // among the inputs, after x and the moments
constexpr int kSumsSlot = 0;

// In double precision, for it is computed once a channel.
FL_DEVICE inline double reciprocal_deviation(float variance, double epsilon) {
  return 1.0 / sqrt(static_cast<double>(variance) + epsilon);
}

// What channels are normalised by.
template <int W>
struct Affine {
  Lanes<W> mean, scale, beta;  // scale: gamma / sqrt(variance + epsilon)
};

// The parameters of the channels that a thread has, in registers while it goes down the rows.
struct Channels {
  MeansAndVariances moments;
  const float *gamma, *beta;
  float epsilon;

  Channels(const KernelTask& task, double epsilon)
      : moments(task.inputs[1]),
        gamma(task.weights[0].f32()),
        beta(task.weights[1].f32()),
        epsilon(static_cast<float>(epsilon)) {}

  template <int W>
  FL_DEVICE Affine<W> column(Width<W>, std::int64_t c) const {
    Affine<W> affine;
    for (int k = 0; k < W; ++k) {
      affine.mean[k] = moments.mean(0, c + k);
      affine.scale[k] = gamma[c + k] / sqrtf(moments.variance(0, c + k) + epsilon);
      affine.beta[k] = beta != nullptr ? beta[c + k] : 0.0f;
    }
    return affine;
  }
};

// The body of the forward loop (column_sums.h says what its functions are for).
struct ForwardRows {
  template <int W>
  struct Read {
    Lanes<W> x, residual;
  };

  Rows x, residual, y;
  Channels channels;
  Epilogue epilogue;

  template <int W>
  FL_DEVICE Affine<W> column(Width<W> width, std::int64_t c) const {
    return channels.column(width, c);
  }
  template <int W>
  FL_DEVICE Read<W> read(Width<W> width, std::int64_t row, std::int64_t c) const {
    return {x.load(width, row, c), residual.present() ? residual.load(width, row, c) : Lanes<W>{}};
  }
  template <int W, typename None>
  FL_DEVICE void add(Width<W>, const Affine<W>& of, const Read<W>& read, std::int64_t row,
                     std::int64_t c, None&) const {
    Lanes<W> values;
    for (int k = 0; k < W; ++k) {
      const float value = (read.x[k] - of.mean[k]) * of.scale[k] + of.beta[k] + read.residual[k];
      values[k] = ended(epilogue, value);
    }
    y.put(row, c, values);
  }
};

// Adds the gradients of rows to their channels' s and t, and writes what goes on from there. What
// a ReLU let through tells the output z, if it is there; else, what went into the epilogue is
// computed again.
struct BackwardRows {
  template <int W>
  struct Read {
    Lanes<W> x, dz, z;
  };

  Rows x, dz, z, dx, d_residual;
  Channels channels;
  Epilogue epilogue;
  bool adds_dx, adds_residual;

  template <int W>
  FL_DEVICE Affine<W> column(Width<W> width, std::int64_t c) const {
    return channels.column(width, c);
  }
  template <int W>
  FL_DEVICE Read<W> read(Width<W> width, std::int64_t row, std::int64_t c) const {
    return {x.load(width, row, c), dz.load(width, row, c),
            z.present() ? z.load(width, row, c) : Lanes<W>{}};
  }
  template <int W, typename Some>
  FL_DEVICE void add(Width<W>, const Affine<W>& of, const Read<W>& read, std::int64_t row,
                     std::int64_t c, Some (&sums)[2][W]) const {
    Lanes<W> grads, scaled;
    for (int k = 0; k < W; ++k) {
      const float from_mean = read.x[k] - of.mean[k];
      const float output = z.present() ? read.z[k] : from_mean * of.scale[k] + of.beta[k];
      grads[k] = through(epilogue, output, read.dz[k]);
      scaled[k] = grads[k] * of.scale[k];
      sums[0][k] += grads[k];
      sums[1][k] += grads[k] * from_mean;
    }
    // The residual is added as it is, so its gradient is that of the sum.
    if (d_residual.present()) d_residual.put(row, c, grads, adds_residual);
    if (dx.present()) dx.put(row, c, scaled, adds_dx);
  }
};

class BatchNorm : public Kernel {
 public:
  explicit BatchNorm(const Attributes& attributes)
      : epsilon_(attributes.number("epsilon")), epilogue_(epilogue_of(attributes)) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const bool adds = task.inputs.size() > kResidual;
    const ForwardRows body{Rows(task.inputs[0]), Rows(adds ? task.inputs[kResidual] : TensorView()),
                           Rows(output), Channels(task, epsilon_), epilogue_};
    const std::int64_t count = output.extent(output.rank() - 1);
    run_columns(output.volume() / count, count, all_aligned({body.x, body.residual, body.y}), body);
  }

  // With r = 1 / sqrt(variance + epsilon): dgamma = r t, dbeta = s, dmean = -gamma r s, and
  // dvariance = -gamma r^3 t / 2.
  // One pass for dx, the residual's gradient and both sums. Each channel's parameters and moments
  // follow from its sums.
  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const std::int64_t count = output_grad.extent(output_grad.rank() - 1);
    const bool output_tells = epilogue_ != Epilogue::none && task.inputs.size() > kResidual;
    const BackwardRows body{Rows(task.inputs[0]),
                            Rows(output_grad),
                            Rows(output_tells ? task.outputs[0] : TensorView()),
                            Rows(input_grad(task, 0)),
                            Rows(input_grad(task, kResidual)),
                            Channels(task, epsilon_),
                            epilogue_,
                            task.adds_to_input_grad(0),
                            task.adds_to_input_grad(kResidual)};
    // When a channel's sums are complete, one thread makes its four gradients of them.
    const MeansAndVariances moments(task.inputs[1]), d_moments(input_grad(task, 1));
    const bool adds_moments = task.adds_to_input_grad(1);
    const float* const gamma = task.weights[0].f32();
    float *const dgamma = weight_grad(task, 0), *const dbeta = weight_grad(task, 1);
    const bool adds_gamma = task.adds_to_weight_grad(0), adds_beta = task.adds_to_weight_grad(1);
    run_and_sum_columns<2>(
        output_grad.volume() / count, count,
        all_aligned({body.x, body.dz, body.z, body.dx, body.d_residual}), kSumsSlot, body,
        [=, epsilon = epsilon_] FL_BODY(std::int64_t c, const Sums<2>& sums) {
          const double r = reciprocal_deviation(moments.variance(0, c), epsilon);
          const double s = sums.of[0], rt = r * sums.of[1];
          if (dgamma != nullptr) put(dgamma[c], static_cast<float>(rt), adds_gamma);
          if (dbeta != nullptr) put(dbeta[c], static_cast<float>(s), adds_beta);
          if (!d_moments.present()) return;
          const double scale = gamma[c] * r;
          put(d_moments.mean(0, c), static_cast<float>(-scale * s), adds_moments);
          put(d_moments.variance(0, c), static_cast<float>(-0.5 * scale * r * rt), adds_moments);
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
  Epilogue epilogue_;
};

const RegisterKernel registered(
    "batch_norm", [](const Attributes& a) { return std::make_unique<BatchNorm>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
