// layer_norm over the last dimension: y = (x - mean) r gamma + beta, r = 1 / sqrt(variance +
// epsilon). Not centered, the mean is taken as 0.
//
// With h = (x - mean) r and g = dy gamma, over n channels: dx = r (g - sum(g) / n - h sum(g h) /
// n), dgamma = sum of dy h, dbeta = sum of dy.
#include "gpu/rows.h"
#include "ops/layer_norm.h"

namespace flexlegion::gpu {
namespace {

struct RowMoments {
  float mean, r;
};

// The variance is about the mean, which takes a second look at the row; caches hold it.
FL_DEVICE inline RowMoments moments_of(const Team& team, const Rows& x, std::int64_t row,
                                       std::int64_t n, const Norm& norm) {
  const float share = 1.0f / static_cast<float>(n);
  float sum = 0, squares = 0;
  for (std::int64_t c = team.rank; c < n; c += team.size) sum += x(row, c);
  const float mean = norm.center ? share * team.sum(sum) : 0.0f;
  for (std::int64_t c = team.rank; c < n; c += team.size) {
    const float difference = x(row, c) - mean;
    squares += difference * difference;
  }
  return {mean, 1.0f / sqrtf(share * team.sum(squares) + norm.epsilon)};
}

FL_DEVICE inline float scaled(float value, const float* gamma, std::int64_t c) {
  return gamma != nullptr ? value * gamma[c] : value;
}

class LayerNorm : public Kernel {
 public:
  explicit LayerNorm(const Attributes& attributes) : norm_(attributes) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const Rows x(task.inputs[0]), y(output);
    const float *const gamma = weight(task, norm_.gamma), *const beta = weight(task, norm_.beta);
    const std::int64_t n = output.extent(output.rank() - 1);
    for_each_team(output.volume() / n, n,
                  [=, norm = norm_] FL_BODY(const Team& team, std::int64_t row) {
                    const RowMoments m = moments_of(team, x, row, n, norm);
                    for (std::int64_t c = team.rank; c < n; c += team.size) {
                      const float h = (x(row, c) - m.mean) * m.r;
                      y(row, c) = scaled(h, gamma, c) + (beta != nullptr ? beta[c] : 0.0f);
                    }
                  });
  }

  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const Rows x(task.inputs[0]), dy(output_grad),
        dx(task.wants_input_grad(0) ? task.input_grads[0] : TensorView());
    const float* const gamma = weight(task, norm_.gamma);
    const std::int64_t n = output_grad.extent(output_grad.rank() - 1);
    const std::int64_t rows = output_grad.volume() / n;
    float* const means = scratch(0, 2 * rows);
    float* const scales = means + rows;
    const bool adds = task.adds_to_input_grad(0);
    for_each_team(rows, n, [=, norm = norm_] FL_BODY(const Team& team, std::int64_t row) {
      const RowMoments m = moments_of(team, x, row, n, norm);
      if (team.rank == 0) {
        means[row] = m.mean;
        scales[row] = m.r;
      }
      if (!dx.present()) return;
      float g_sum = 0, gh_sum = 0;
      for (std::int64_t c = team.rank; c < n; c += team.size) {
        const float g = scaled(dy(row, c), gamma, c);
        g_sum += g;
        gh_sum += g * (x(row, c) - m.mean) * m.r;
      }
      const float share = 1.0f / static_cast<float>(n);
      const float g_mean = norm.center ? share * team.sum(g_sum) : 0.0f;
      const float gh_mean = share * team.sum(gh_sum);
      for (std::int64_t c = team.rank; c < n; c += team.size) {
        const float h = (x(row, c) - m.mean) * m.r;
        put(dx(row, c), m.r * (scaled(dy(row, c), gamma, c) - g_mean - h * gh_mean), adds);
      }
    });
    const WeightGradient gamma_grad(task, norm_.gamma), beta_grad(task, norm_.beta);
    if (gamma_grad.data != nullptr || beta_grad.data != nullptr) {
      weight_gradients(gamma_grad, beta_grad, x, dy, means, scales, rows, n);
    }
  }

  static void weight_gradients(const WeightGradient& gamma, const WeightGradient& beta,
                               const Rows& x_rows, const Rows& dy_rows, const float* means,
                               const float* scales, std::int64_t rows, std::int64_t n) {
    const Rows x = x_rows, dy = dy_rows;
    float *const dgamma = gamma.data, *const dbeta = beta.data;
    const bool adds_gamma = gamma.adds, adds_beta = beta.adds;
    sum_columns<2>(
        rows, n, 1,
        [=] FL_BODY(std::int64_t row, std::int64_t c) {
          const float grad = dy(row, c);
          return Sums<2>{{grad * (x(row, c) - means[row]) * scales[row], grad}};
        },
        [=] FL_BODY(std::int64_t c, const Sums<2>& sums) {
          if (dgamma != nullptr) put(dgamma[c], static_cast<float>(sums.of[0]), adds_gamma);
          if (dbeta != nullptr) put(dbeta[c], static_cast<float>(sums.of[1]), adds_beta);
        });
  }

 private:
  static const float* weight(const KernelTask& task, int weight) {
    return weight < 0 ? nullptr : task.weights[static_cast<std::size_t>(weight)].f32();
  }

  Norm norm_;
};

const RegisterKernel registered(
    "layer_norm", [](const Attributes& a) { return std::make_unique<LayerNorm>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
