// layer_norm over the last dimension: y = (x - mean) r gamma + beta, r = 1 / sqrt(variance +
// epsilon). Not centered, the mean is taken as 0.
//
// A row stays in the first cache while it is read several times: for its mean, for its variance
// about the mean, and to be normalised. With h = (x - mean) r and g = dy gamma, over n channels:
// dx = r (g - sum(g) / n - h sum(g h) / n), dgamma = sum of dy h, dbeta = sum of dy.
//
// Backwards, dgamma and dbeta are sums over all rows. A row adds to sums in single precision, one a
// channel, that stay in the first cache; every 64 rows these move on to sums in double precision.
// The row's own two sums, of g and of g h, are taken in the same loop. The moments are computed
// again: the row has to be read for dx anyway.
#include <cmath>

#include "ops/channel_rows.h"
#include "ops/kernel.h"
#include "ops/layer_norm.h"

namespace flexlegion {
namespace {

// The sum of term(i, value) over a row, where term sets value to one or kLanes of the terms.
template <typename Term>
FLEXLEGION_INLINE float sum_over(std::int64_t n, const Term& term) {
  constexpr int kSums = 4;  // so that no addition waits for the one before
  Floats sums[kSums]{};
  std::int64_t i = 0;
  for (; i + kSums * kLanes <= n; i += kSums * kLanes) {
    for (int k = 0; k < kSums; ++k) {
      Floats value;
      term(i + k * kLanes, value);
      sums[k] += value;
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    Floats value;
    term(i, value);
    sums[0] += value;
  }
  float rest = 0;
  for (; i < n; ++i) {
    float value;
    term(i, value);
    rest += value;
  }
  // Lanes are added by halves: the sum's error grows with the logarithm of the number of lanes.
  const Floats all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float lanes[kLanes];
  store(lanes, all);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0] + rest;
}

// Terms of a row's sums, as values or as vectors: x, and (x - mean)^2.
struct ValueOf {
  const float* x;
  template <typename V>
  FLEXLEGION_INLINE void operator()(std::int64_t i, V& value) const {
    load(value, x + i);
  }
};

struct SquareOf {
  const float* x;
  float mean;
  template <typename V>
  FLEXLEGION_INLINE void operator()(std::int64_t i, V& value) const {
    load(value, x + i);
    value -= mean;
    value *= value;
  }
};

struct RowMoments {
  float mean, r;
};

// Two passes over the row: squares about the mean do not cancel, however large the mean is.
FLEXLEGION_INLINE RowMoments moments_of(const float* x, std::int64_t n, const Norm& norm) {
  const float share = 1.0f / static_cast<float>(n);
  const float mean = norm.center ? sum_over(n, ValueOf{x}) * share : 0.0f;
  const float variance = sum_over(n, SquareOf{x, mean}) * share;
  return {mean, 1.0f / std::sqrt(variance + norm.epsilon)};
}

FLEXLEGION_SIMD void normalize_row(const float* x, const float* gamma, const float* beta,
                                   const Norm& norm, std::int64_t n, float* y) {
  const RowMoments m = moments_of(x, n, norm);
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - m.mean) * m.r * gamma[i] + beta[i];
}

// A row's terms of the sums, which it adds to dgamma and dbeta on the way.
struct GradientOf {
  const float *x, *dy, *gamma;
  RowMoments m;
  float *dgamma, *dbeta;
  Floats* products;  // sum of g h: of full vectors, and of the rest
  float* product;

  FLEXLEGION_INLINE void add_product(const Floats& value) const { *products += value; }
  FLEXLEGION_INLINE void add_product(const float& value) const { *product += value; }

  template <typename V>
  FLEXLEGION_INLINE void operator()(std::int64_t i, V& value) const {
    V h, grad, weight, sum;
    load(h, x + i);
    load(grad, dy + i);
    load(weight, gamma + i);
    h = (h - m.mean) * m.r;
    load(sum, dgamma + i);
    sum += grad * h;
    store(dgamma + i, sum);
    load(sum, dbeta + i);
    sum += grad;
    store(dbeta + i, sum);
    value = grad * weight;
    add_product(value * h);
  }
};

// What the backward pass of one row reads and writes. Gradients of the weights are sums over the
// block's rows.
struct Row {
  const float *x, *dy, *gamma;
  std::int64_t n;
  float *dx, *dgamma, *dbeta;  // dx: null if nobody needs it
  bool adds;                   // to dx
};

FLEXLEGION_SIMD void backward_row(const Row& row, const Norm& norm) {
  const RowMoments m = moments_of(row.x, row.n, norm);
  Floats products{};
  float product = 0;
  const float share = 1.0f / static_cast<float>(row.n);
  // One loop for four sums: the row's g and g h, and its terms of dgamma and dbeta.
  const float g_sum = sum_over(
      row.n, GradientOf{row.x, row.dy, row.gamma, m, row.dgamma, row.dbeta, &products, &product});
  const float g_mean = norm.center ? share * g_sum : 0.0f;
  if (row.dx == nullptr) return;
  for (int k = 0; k < kLanes; ++k) product += products[k];
  const float gh_mean = share * product;
  const float *const x = row.x, *const dy = row.dy, *const gamma = row.gamma;
  float* const dx = row.dx;
  const auto at = [&](std::int64_t i) __attribute__((always_inline)) {
    return m.r * (dy[i] * gamma[i] - g_mean - (x[i] - m.mean) * m.r * gh_mean);
  };
  if (row.adds) {
    for (std::int64_t i = 0; i < row.n; ++i) dx[i] += at(i);
  } else {
    for (std::int64_t i = 0; i < row.n; ++i) dx[i] = at(i);
  }
}

// total += block; block = 0
FLEXLEGION_SIMD void move_to(double* total, float* block, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    total[i] += block[i];
    block[i] = 0;
  }
}

class LayerNorm : public Kernel {
 public:
  explicit LayerNorm(const Attributes& attributes) : norm_(attributes) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    const std::int64_t n = x.extent(x.rank() - 1);
    const float* const gamma = parameter(task, norm_.gamma, 1.0f, 2, n);
    const float* const beta = parameter(task, norm_.beta, 0.0f, 3, n);
    for_each_row<2>({&x, &y}, [&](const Offsets<2>& at) {
      normalize_row(x.f32() + at[0], gamma, beta, norm_, n, y.f32() + at[1]);
    });
  }

  // Row by row: dx and the row's part of dgamma and dbeta.
  void backward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &dy = task.output_grads[0];
    if (dy.tile.empty()) return;
    const bool wanted = !task.input_grads.empty() && task.input_grads[0].present();
    const TensorView& dx = wanted ? task.input_grads[0] : x;
    const std::int64_t n = x.extent(x.rank() - 1);
    // The sums of a block of rows in single precision, and of all: dgamma, then dbeta.
    // So few that sums in single precision lose little, and so many that moving them costs little.
    constexpr std::int64_t kBlockRows = 64;
    float* const block = scratch(0, 2 * n);
    double* const total = doubles(1, 2 * n);
    std::fill_n(block, 2 * n, 0.0f);
    std::fill_n(total, 2 * n, 0.0);
    const float* const gamma = parameter(task, norm_.gamma, 1.0f, 2, n);
    Row row{nullptr, nullptr, gamma, n, nullptr, block, block + n, task.adds_to_input_grad(0)};
    std::int64_t rows = 0;
    for_each_row<3>({&x, &dy, &dx}, [&](const Offsets<3>& at) {
      row.x = x.f32() + at[0];
      row.dy = dy.f32() + at[1];
      if (wanted) row.dx = dx.f32() + at[2];
      backward_row(row, norm_);
      if (++rows % kBlockRows == 0) move_to(total, block, 2 * n);
    });
    move_to(total, block, 2 * n);
    for (const auto& [weight, sums] : {std::pair{norm_.gamma, total}, {norm_.beta, total + n}}) {
      if (weight < 0) continue;
      const auto w = static_cast<std::size_t>(weight);
      if (!task.wants_weight_grad(w)) continue;
      write_totals(task.weight_grads[w].f32(), sums, n, task.adds_to_weight_grad(w));
    }
  }

 private:
  // A weight of the channels, or what stands for one that there is not. Ones or zeros cost a row of
  // memory once, and spare each loop a version without the parameter.
  static const float* parameter(const KernelTask& task, int weight, float otherwise, int slot,
                                std::int64_t n) {
    if (weight >= 0) return task.weights[static_cast<std::size_t>(weight)].f32();
    float* const same = scratch(slot, n);
    std::fill_n(same, n, otherwise);
    return same;
  }

  Norm norm_;
};

const RegisterKernel registered("layer_norm",
                                [](const Attributes& a) { return std::make_unique<LayerNorm>(a); });

}  // namespace
}  // namespace flexlegion
