// layer_norm over the last dimension: y = (x - mean) r gamma + beta, r = 1 / sqrt(variance +
// epsilon). Not centered, the mean is taken as 0.
//
// With h = (x - mean) r and g = dy gamma, over n channels: dx = r (g - sum(g) / n - h sum(g h) /
// n), dgamma = sum of dy h, dbeta = sum of dy.
//
// A team of threads for each row, which loads 16 bytes a thread where rows are aligned. The row is
// read again from the caches for the variance, and to be written. Backwards a second launch sums
// dgamma and dbeta down the columns (column_sums.h), with the moments that the first one kept: two
// numbers a row.
#include "gpu/column_sums.h"
#include "gpu/rows.h"
#include "ops/layer_norm.h"

namespace flexlegion::gpu {
namespace {

struct RowMoments {
  float mean, r;
};

// The variance is about the mean, which takes a second look at the row; caches hold it.
template <int W>
FL_DEVICE inline RowMoments moments_of(Width<W> width, const Team& team, const Rows& x,
                                       std::int64_t row, std::int64_t n, const Norm& norm) {
  const float share = 1.0f / static_cast<float>(n);
  float sum = 0, squares = 0;
  for (std::int64_t c = team.rank * W; norm.center && c < n; c += team.size * W) {
    const auto values = x.load(width, row, c);
    for (int k = 0; k < W; ++k) sum += values[k];
  }
  const float mean = norm.center ? share * team.sum(sum) : 0.0f;
  for (std::int64_t c = team.rank * W; c < n; c += team.size * W) {
    const auto values = x.load(width, row, c);
    for (int k = 0; k < W; ++k) squares += (values[k] - mean) * (values[k] - mean);
  }
  return {mean, 1.0f / sqrtf(share * team.sum(squares) + norm.epsilon)};
}

// lanes *= the weights of channels [c, c + W), if there are any.
template <int W>
FL_DEVICE inline void scale(Width<W> width, Lanes<W>& lanes, const Reals& weights, std::int64_t c) {
  if (!weights.present()) return;
  const auto its = load(width, weights, c);
  for (int k = 0; k < W; ++k) lanes[k] *= its[k];
}

class LayerNorm : public Kernel {
 public:
  explicit LayerNorm(const Attributes& attributes) : norm_(attributes) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  // The row's moments, then the row again, which the caches still hold.
  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const Rows x(task.inputs[0]), y(output);
    const Reals gamma = weight(task, norm_.gamma), beta = weight(task, norm_.beta);
    const std::int64_t n = output.extent(output.rank() - 1);
    const bool aligned = all_aligned({x, y}) && begins_wide(gamma) && begins_wide(beta);
    for_each_row_team(output.volume() / n, n, aligned,
                      [=, norm = norm_] FL_BODY(auto width, const Team& team, std::int64_t row) {
                        constexpr int kWidth = width.value;
                        const RowMoments m = moments_of(width, team, x, row, n, norm);
                        for (std::int64_t c = team.rank * kWidth; c < n; c += team.size * kWidth) {
                          auto values = x.load(width, row, c);
                          for (int k = 0; k < kWidth; ++k) values[k] = (values[k] - m.mean) * m.r;
                          scale(width, values, gamma, c);
                          if (beta.present()) {
                            const auto its = load(width, beta, c);
                            for (int k = 0; k < kWidth; ++k) values[k] += its[k];
                          }
                          y.put(row, c, values);
                        }
                      });
  }

  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const Rows x(task.inputs[0]), dy(output_grad),
        dx(task.wants_input_grad(0) ? task.input_grads[0] : TensorView());
    const Reals gamma = weight(task, norm_.gamma);
    const std::int64_t n = output_grad.extent(output_grad.rank() - 1);
    const std::int64_t rows = output_grad.volume() / n;
    float* const means = scratch(0, 2 * rows);
    float* const scales = means + rows;
    const bool adds = task.adds_to_input_grad(0);
    for_each_row_team(rows, n, all_aligned({x, dy, dx}) && begins_wide(gamma),
                      [=, norm = norm_] FL_BODY(auto width, const Team& team, std::int64_t row) {
                        constexpr int kWidth = width.value;
                        const RowMoments m = moments_of(width, team, x, row, n, norm);
                        if (team.rank == 0) {
                          means[row] = m.mean;
                          scales[row] = m.r;
                        }
                        if (!dx.present()) return;
                        // First both sums of the row, then dx, which needs them. The row's second
                        // read comes from the caches.
                        float g_sum = 0, gh_sum = 0;
                        for (std::int64_t c = team.rank * kWidth; c < n; c += team.size * kWidth) {
                          const auto values = x.load(width, row, c);
                          auto g = dy.load(width, row, c);
                          scale(width, g, gamma, c);
                          for (int k = 0; k < kWidth; ++k) {
                            g_sum += g[k];
                            gh_sum += g[k] * (values[k] - m.mean) * m.r;
                          }
                        }
                        const float share = 1.0f / static_cast<float>(n);
                        const float g_mean = norm.center ? share * team.sum(g_sum) : 0.0f;
                        const float gh_mean = share * team.sum(gh_sum);
                        for (std::int64_t c = team.rank * kWidth; c < n; c += team.size * kWidth) {
                          const auto values = x.load(width, row, c);
                          auto g = dy.load(width, row, c);
                          scale(width, g, gamma, c);
                          for (int k = 0; k < kWidth; ++k) {
                            const float h = (values[k] - m.mean) * m.r;
                            g[k] = m.r * (g[k] - g_mean - h * gh_mean);
                          }
                          dx.put(row, c, g, adds);
                        }
                      });
    const WeightGradient gamma_grad(task, norm_.gamma), beta_grad(task, norm_.beta);
    if (gamma_grad.data != nullptr || beta_grad.data != nullptr) {
      weight_gradients(gamma_grad, beta_grad, x, dy, means, scales, rows, n);
    }
  }

  // Sums down the columns: each block of threads takes some rows of some columns, with the moments
  // of each row from scratch memory.
  static void weight_gradients(const WeightGradient& gamma, const WeightGradient& beta,
                               const Rows& x_rows, const Rows& dy_rows, const float* means,
                               const float* scales, std::int64_t rows, std::int64_t n) {
    const Rows x = x_rows, dy = dy_rows;
    float *const dgamma = gamma.data, *const dbeta = beta.data;
    const bool adds_gamma = gamma.adds, adds_beta = beta.adds;
    sum_wide_columns<2>(
        rows, n, all_aligned({x, dy}), 1,
        [=] FL_BODY(auto width, std::int64_t row, std::int64_t c, auto& sums) {
          const auto values = x.load(width, row, c), grads = dy.load(width, row, c);
          const float mean = means[row], r = scales[row];
          for (int k = 0; k < width.value; ++k) {
            sums[0][k] += grads[k] * (values[k] - mean) * r;
            sums[1][k] += grads[k];
          }
        },
        [=] FL_BODY(std::int64_t c, const Sums<2>& sums) {
          if (dgamma != nullptr) put(dgamma[c], static_cast<float>(sums.of[0]), adds_gamma);
          if (dbeta != nullptr) put(dbeta[c], static_cast<float>(sums.of[1]), adds_beta);
        });
  }

 private:
  static Reals weight(const KernelTask& task, int weight) {
    if (weight < 0) return {};
    return {task.weights[static_cast<std::size_t>(weight)].f32(), DataType::float32};
  }

  Norm norm_;
};

const RegisterKernel registered(
    "layer_norm", [](const Attributes& a) { return std::make_unique<LayerNorm>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
