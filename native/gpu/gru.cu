// gru: the steps of a layer of gated recurrent units, on a tile of samples; see ops/gru.cc.
#include "gpu/activation.h"
#include "gpu/recurrent.h"
#include "ops/gru_cell.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

using namespace gru;

enum Slot {
  kX,
  kKernel,
  kRecurrent,
  kBias,
  kRecurrentBias,
  kY,
  kSaved,
  kH0,
  kInputGates,
  kRecurrentGates,
  kDy,
  kDhGiven,
  kDh,
  kStates,
  kSums,
  kResult
};

// The steps, and what is saved of them.
struct Extents : Steps {
  using Steps::Steps;

  FL_DEVICE std::int64_t width() const { return kGates * units; }
  // h0 may be null.
  FL_DEVICE float h_before(const float* y, const float* h0, std::int64_t i, std::int64_t t,
                           std::int64_t u) const {
    if (t > 0) return y[row(i, t - 1) * units + u];
    return h0 == nullptr ? 0.0f : h0[i * units + u];
  }
};

struct Layer : Extents {
  Matrix x, kernel, recurrent;  // (n steps, d), (3 units, d), (3 units, units)
  float* h0;                    // or null

  Layer(const KernelTask& task, bool reverse)
      : Extents(task, reverse),
        x(input_matrix(task.inputs[0], kX)),
        kernel(input_matrix(task.weights[0], kKernel)),
        recurrent(input_matrix(task.weights[1], kRecurrent)),
        h0(optional_rows(task.inputs, 1, kH0)) {}
};

// Gates of a step, `g` the products with h before it; null at first, if that is zero.
void step_forward(const Extents& e, std::int64_t t, const float* x, const float* bias,
                  const float* g, const float* recurrent_bias, const float* h0, float* saved,
                  float* y) {
  for_each(e.n * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t i = k / e.units, u = k % e.units, row = e.row(i, t);
    const float none[kGates] = {};
    unit_forward(x + row * e.width() + kGates * u, bias + kGates * u,
                 g == nullptr ? none : g + i * e.width() + kGates * u, recurrent_bias + kGates * u,
                 e.h_before(y, h0, i, t, u), saved + row * kPlanes * e.units + u, e.units,
                 y[row * e.units + u]);
  });
}

// dh becomes the gradient of h before the step, but for what comes by the recurrent kernel.
void step_backward(const Extents& e, std::int64_t t, const float* saved, const float* y,
                   const float* h0, const float* dy, float* dh, float* dx_gates, float* dh_gates) {
  for_each(e.n * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t i = k / e.units, u = k % e.units, row = e.row(i, t);
    const float gradient = dh[k] + (dy == nullptr ? 0.0f : dy[row * e.units + u]);
    dh[k] = unit_backward(saved + row * kPlanes * e.units + u, e.units, e.h_before(y, h0, i, t, u),
                          gradient, dx_gates + row * e.width() + kGates * u,
                          dh_gates + row * e.width() + kGates * u);
  });
}

// h before each step, (n steps, units).
Matrix states_before(const Layer& layer, const float* y) {
  const Matrix states = scratch_matrix(kStates, layer.n * layer.steps, layer.units);
  float* const to = states.f32();
  const float* const h0 = layer.h0;
  const Extents e = layer;
  for_each(states.rows * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t row = k / e.units, i = row / e.steps, at = row % e.steps;
    to[k] = e.h_before(y, h0, i, e.reverse ? e.steps - 1 - at : at, k % e.units);
  });
  return states;
}

class Gru : public Kernel {
 public:
  explicit Gru(bool reverse) : reverse_(reverse) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const float* const bias = DenseInput(task.weights[2], kBias).data();
    const float* const recurrent_bias = DenseInput(task.weights[3], kRecurrentBias).data();
    const DenseOutput y(task.outputs[0], kY), saved(task.outputs[2], kSaved);
    const Matrix x_gates = scratch_matrix(kInputGates, n * steps, layer.width());
    const Matrix h_gates = scratch_matrix(kRecurrentGates, n, layer.width());
    multiply(layer.x, layer.kernel.transposed(), x_gates);
    for (std::int64_t t = 0; t < steps; ++t) {
      const bool zero = t == 0 && layer.h0 == nullptr;
      if (!zero) {
        multiply(t > 0 ? layer.step(y.data(), units, t - 1)
                       : Matrix::row_major(layer.h0, n, units, units),
                 layer.recurrent.transposed(), h_gates);
      }
      step_forward(layer, t, x_gates.f32(), bias, zero ? nullptr : h_gates.f32(), recurrent_bias,
                   layer.h0, saved.data(), y.data());
    }
    y.commit();
    saved.commit();
    TensorView last = dense_view(y.data() + layer.row(0, steps - 1) * units, task.outputs[1].tile,
                                 task.outputs[1].shape);
    last.stride[0] = steps * units;
    gpu::copy_view(task.outputs[1], last);
  }

  void backward(KernelTask& task) override {
    if (task.outputs[2].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const DenseInput y(task.outputs[0], kY), saved(task.outputs[2], kSaved);
    const float* const dy = optional_rows(task.output_grads, 0, kDy);
    const float* const given = optional_rows(task.output_grads, 1, kDhGiven);
    const Matrix dh = scratch_matrix(kDh, n, units);
    float* const gradients = dh.f32();
    for_each(n * units,
             [=] FL_BODY(std::int64_t k) { gradients[k] = given == nullptr ? 0.0f : given[k]; });
    const Matrix gx = scratch_matrix(kInputGates, n * steps, layer.width());
    const Matrix gh = scratch_matrix(kRecurrentGates, n * steps, layer.width());
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      step_backward(layer, t, saved.data(), y.data(), layer.h0, dy, dh.f32(), gx.f32(), gh.f32());
      multiply(layer.step(gh.f32(), gh.cols, t), layer.recurrent, dh, true);
    }
    if (task.wants_input_grad(1)) {
      const TensorView& dh0 = task.input_grads[1];
      gpu::write_or_add_view(dh0, dense_view(dh.data, dh0.tile, dh0.shape),
                             task.adds_to_input_grad(1));
    }
    if (task.wants_input_grad(0)) {
      const OutputMatrix dx(task.input_grads[0], kResult, task.adds_to_input_grad(0));
      multiply(gx, layer.kernel, dx.matrix(), dx.adds());
      dx.commit();
    }
    if (task.wants_weight_grad(0)) kernel_gradient(task, 0, gx, layer.x, kResult);
    if (task.wants_weight_grad(1)) {
      kernel_gradient(task, 1, gh, states_before(layer, y.data()), kResult);
    }
    for (const std::size_t i : {2, 3}) {
      if (!task.wants_weight_grad(i)) continue;
      bias_gradient(i == 2 ? gx : gh, task.weight_grads[i], kSums, task.adds_to_weight_grad(i));
    }
  }

 private:
  bool reverse_;
};

const RegisterKernel registered(
    "gru",
    [](const Attributes& attributes) {
      return std::make_unique<Gru>(attributes.integer("reverse") != 0);
    },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
