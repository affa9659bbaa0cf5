// batch_norm: normalises by the moments that batch_norm_moments gives.
//
// A gradient goes back through the sums s of dz and t of dz (x - mean) of a channel, which the pass
// that writes dx takes along.
#include "ops/batch_norm.h"

#include <cmath>

#include "ops/activation.h"

namespace flexlegion {
namespace {

// y = (x - center) * scale + offset, then ReLU; or added to y.
template <bool kRelu, bool kAdds>
struct AffinePass {
  const float *x, *center, *scale, *offset;
  float* y;
  std::int64_t x_pitch, y_pitch;

  template <typename V, int K>
  FLEXLEGION_INLINE void chunk(std::int64_t row, std::int64_t rows, std::int64_t col) const {
    V a[K], b[K], c[K];
    for (int k = 0; k < K; ++k) {
      const std::int64_t at = col + k * static_cast<std::int64_t>(sizeof(V) / sizeof(float));
      load(a[k], center + at);
      load(b[k], scale + at);
      load(c[k], offset + at);
    }
    for (std::int64_t r = row; r < row + rows; ++r) {
      const float* const from = x + r * x_pitch + col;
      float* const to = y + r * y_pitch + col;
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) {
        const std::int64_t at = k * static_cast<std::int64_t>(sizeof(V) / sizeof(float));
        V value;
        load(value, from + at);
        value = (value - a[k]) * b[k] + c[k];
        if (kRelu) value = value > V{} ? value : V{};
        if (kAdds) {
          V there;
          load(there, to + at);
          value += there;
        }
        store(to + at, value);
      }
    }
  }
};

template <bool kRelu, bool kAdds>
FLEXLEGION_INLINE void affine_as(const Affine& f, const float* x, float* y, const RowGroup<2>& g) {
  const AffinePass<kRelu, kAdds> pass{x + g.at[0], f.center,   f.scale,   f.offset,
                                      y + g.at[1], g.pitch[0], g.pitch[1]};
  for_each_chunk(pass, g.rows, g.cols);
}

}  // namespace

FLEXLEGION_SIMD void affine(const Affine& f, const float* x, float* y, const RowGroup<2>& group) {
  if (f.relu) return affine_as<true, false>(f, x, y, group);
  if (f.adds) return affine_as<false, true>(f, x, y, group);
  affine_as<false, false>(f, x, y, group);
}

namespace {

struct Operands {
  const float *x, *dz, *z;
  float* dx;
};

enum class InputGrad { none, write, add };

// dz is masked by z > 0 (ReLU); dx = dz * scale, or added; s += dz; t += dz (x - mean).
template <bool kRelu, InputGrad kInputGrad>
struct BackwardPass {
  Operands of;
  const float *mean, *scale;
  double *s, *t;
  Offsets<4> pitch;  // x, dz, z, dx

  template <typename V, int K>
  FLEXLEGION_INLINE void chunk(std::int64_t row, std::int64_t rows, std::int64_t col) const {
    constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
    V center[K], factor[K], sums[K]{}, products[K]{};
    for (int k = 0; k < K; ++k) {
      load(center[k], mean + col + k * kWidth);
      load(factor[k], scale + col + k * kWidth);
    }
    for (std::int64_t r = row; r < row + rows; ++r) {
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) {
        const std::int64_t at = col + k * kWidth;
        V x, grad;
        load(x, of.x + r * pitch[0] + at);
        load(grad, of.dz + r * pitch[1] + at);
        if (kRelu) {
          V z;
          load(z, of.z + r * pitch[2] + at);
          grad = z > V{} ? grad : V{};
        }
        sums[k] += grad;
        products[k] += grad * (x - center[k]);
        if (kInputGrad == InputGrad::none) continue;
        float* const dx = of.dx + r * pitch[3] + at;
        grad *= factor[k];
        if (kInputGrad == InputGrad::add) {
          V there;
          load(there, dx);
          grad += there;
        }
        store(dx, grad);
      }
    }
    for (int k = 0; k < K; ++k) {
      add_to(s + col + k * kWidth, sums[k]);
      add_to(t + col + k * kWidth, products[k]);
    }
  }
};

// What a channel's backward pass needs and sums up, for as many rows as are taken at once.
struct Backward {
  const float *mean, *scale;
  double *s, *t;
  bool relu;
  InputGrad input_grad;
};

template <bool kRelu, InputGrad kInputGrad>
FLEXLEGION_INLINE void backward_as(const Backward& b, const Operands& of, const RowGroup<4>& g) {
  const BackwardPass<kRelu, kInputGrad> pass{
      {of.x + g.at[0], of.dz + g.at[1], of.z + g.at[2], of.dx + g.at[3]},
      b.mean,
      b.scale,
      b.s,
      b.t,
      g.pitch};
  for_each_chunk(pass, g.rows, g.cols);
}

template <bool kRelu>
FLEXLEGION_INLINE void backward_to(const Backward& b, const Operands& of, const RowGroup<4>& g) {
  if (b.input_grad == InputGrad::none) return backward_as<kRelu, InputGrad::none>(b, of, g);
  if (b.input_grad == InputGrad::add) return backward_as<kRelu, InputGrad::add>(b, of, g);
  backward_as<kRelu, InputGrad::write>(b, of, g);
}

FLEXLEGION_SIMD void backward_rows(const Backward& b, const Operands& of, const RowGroup<4>& g) {
  b.relu ? backward_to<true>(b, of, g) : backward_to<false>(b, of, g);
}

class BatchNorm : public Kernel {
 public:
  explicit BatchNorm(const Attributes& attributes)
      : epsilon_(attributes.number("epsilon")),
        relu_(activation_of(attributes) == Activation::relu) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    if (y.tile.empty()) return;
    const Parameters p(task, epsilon_, task.weights[1].f32());
    const Affine f{p.mean, p.scale, p.beta, relu_};
    for_each_row_group<2>({&x, &y}, p.at_once,
                          [&](const RowGroup<2>& group) { affine(f, x.f32(), y.f32(), group); });
  }

  void backward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &dz = task.output_grads[0];
    if (dz.tile.empty()) return;
    const Parameters p(task, epsilon_, nullptr);
    double *const s = doubles(1, 2 * p.width), *const t = s + p.width;
    std::fill_n(s, 2 * p.width, 0.0);
    const bool wanted = task.input_grads[0].present();
    // What is not there is not touched; anything of x's extents stands in.
    const TensorView &z = relu_ ? task.outputs[0] : x, &dx = wanted ? task.input_grads[0] : x;
    const Backward b{p.mean,
                     p.scale,
                     s,
                     t,
                     relu_,
                     !wanted                         ? InputGrad::none
                     : adds(task.adds_input_grad, 0) ? InputGrad::add
                                                     : InputGrad::write};
    const Operands of{x.f32(), dz.f32(), z.f32(), dx.f32()};
    for_each_row_group<4>({&x, &dz, &z, &dx}, p.at_once,
                          [&](const RowGroup<4>& group) { backward_rows(b, of, group); });
    fold(s, p.channels, p.at_once);
    fold(t, p.channels, p.at_once);
    write_gradients(task, p, s, t);
  }

 private:
  // Each channel's, for as many rows as are taken at once (scratch slot 0).
  struct Parameters {
    std::int64_t channels, at_once, width;
    float *mean, *scale, *beta;

    Parameters(const KernelTask& task, double epsilon, const float* betas)
        : channels(task.inputs[0].extent(task.inputs[0].rank() - 1)),
          at_once(rows_at_once(channels)),
          width(channels * at_once),
          mean(scratch(0, 3 * width)),
          scale(mean + width),
          beta(scale + width) {
      const MeanAndVariance moments(task.inputs[1], 0);
      std::copy_n(moments.mean, channels, mean);
      for (std::int64_t c = 0; c < channels; ++c) {
        scale[c] =
            static_cast<float>(task.weights[0].f32()[c] / std::sqrt(moments.variance[c] + epsilon));
      }
      std::fill_n(beta, channels, 0.0f);
      if (betas != nullptr) std::copy_n(betas, channels, beta);
      for (float* values : {mean, scale, beta}) repeat(values, channels, at_once);
    }
  };

  // With r = 1 / sqrt(variance + epsilon): dgamma = r t, dbeta = s, dmean = -gamma r s, and
  // dvariance = -gamma r^3 t / 2.
  void write_gradients(const KernelTask& task, const Parameters& p, double* s, double* t) const {
    const std::int64_t n = p.channels;
    const MeanAndVariance moments(task.inputs[1], 0);
    if (task.weight_grads[1].present()) {
      write_totals(task.weight_grads[1].f32(), s, n, adds(task.adds_weight_grad, 1));
    }
    for (std::int64_t c = 0; c < n; ++c) t[c] /= std::sqrt(moments.variance[c] + epsilon_);
    if (task.weight_grads[0].present()) {
      write_totals(task.weight_grads[0].f32(), t, n, adds(task.adds_weight_grad, 0));
    }
    if (!task.input_grads[1].present()) return;
    const MeanAndVariance gradient(task.input_grads[1], 0);
    for (std::int64_t c = 0; c < n; ++c) {
      s[c] *= -p.scale[c];
      t[c] *= -0.5 * p.scale[c] / std::sqrt(moments.variance[c] + epsilon_);
    }
    const bool adds_grad = adds(task.adds_input_grad, 1);
    write_totals(gradient.mean, s, n, adds_grad);
    write_totals(gradient.variance, t, n, adds_grad);
  }

  double epsilon_;
  bool relu_;
};

const RegisterKernel registered("batch_norm",
                                [](const Attributes& a) { return std::make_unique<BatchNorm>(a); });

}  // namespace
}  // namespace flexlegion
