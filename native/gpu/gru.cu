// gru: the steps of a layer of gated recurrent units, on a tile of samples; see ops/gru.cc.
//
// The factors of products (x, states, kernels, the gradients of the gates' arguments) are of x's
// type; gates are floats, and so is h, from step to step.
//
// A step is two launches: the product with the recurrent kernel, and one thread for each unit of
// each sample. The state goes to memory twice: as an output, of y's strides and in floats, and
// dense in the factors' type, for the next product.
#include "gpu/activation.h"
#include "gpu/recurrent.h"
#include "ops/gru_cell.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

using namespace gru;

// Scratch memory by purpose: what is alive at the same time has different slots.
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
  kState,
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
  FL_DEVICE float h_before(const Reals& y, const Reals& h0, std::int64_t i, std::int64_t t,
                           std::int64_t u) const {
    return t > 0 ? y[row(i, t - 1) * units + u] : at(h0, i * units + u);
  }
};

// The operands of a task as matrices, dense and in the factors' type.
struct Layer : Extents {
  DataType type;                // of factors
  Matrix x, kernel, recurrent;  // (n steps, d), (3 units, d), (3 units, units)
  Matrix h0;                    // (n, units); without data, it is zero

  Layer(const KernelTask& task, bool reverse)
      : Extents(task, reverse),
        type(task.inputs[0].type),
        x(input_matrix(task.inputs[0], kX, type)),
        kernel(input_matrix(task.weights[0], kKernel, type)),
        recurrent(input_matrix(task.weights[1], kRecurrent, type)) {
    if (task.inputs.size() > 1 && task.inputs[1].present()) {
      h0 = Matrix::row_major(DenseInput(task.inputs[1], kH0, type).memory(), n, units, units, type);
    }
  }
};

// Gates of a step, `g` the products with h before it; null at first, if that is zero. h is written
// twice, the second time as the factor of the next step's product.
void step_forward(const Extents& e, std::int64_t t, const float* x, const float* bias,
                  const float* g, const float* recurrent_bias, const Reals& h0, float* saved,
                  const Reals& y, const Reals& state) {
  for_each(e.n * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t i = k / e.units, u = k % e.units, row = e.row(i, t);
    const float none[kGates] = {};
    float h;
    unit_forward(x + row * e.width() + kGates * u, bias + kGates * u,
                 g == nullptr ? none : g + i * e.width() + kGates * u, recurrent_bias + kGates * u,
                 e.h_before(y, h0, i, t, u), saved + row * kPlanes * e.units + u, e.units, h);
    y[row * e.units + u] = h;
    state[k] = h;
  });
}

// dh becomes the gradient of h before the step, but for what comes by the recurrent kernel.
void step_backward(const Extents& e, std::int64_t t, const float* saved, const Reals& y,
                   const Reals& h0, const Reals& dy, float* dh, const Reals& dx_gates,
                   const Reals& dh_gates) {
  for_each(e.n * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t i = k / e.units, u = k % e.units, row = e.row(i, t);
    float dx[kGates], dg[kGates];
    dh[k] = unit_backward(saved + row * kPlanes * e.units + u, e.units, e.h_before(y, h0, i, t, u),
                          dh[k] + at(dy, row * e.units + u), dx, dg);
    store(dx, dx_gates + row * e.width() + kGates * u);
    store(dg, dh_gates + row * e.width() + kGates * u);
  });
}

// h before each step, (n steps, units).
Matrix states_before(const Layer& layer, const Reals& y) {
  const Matrix states = scratch_matrix(kStates, layer.n * layer.steps, layer.units, layer.type);
  const Reals to = reals(states), h0 = reals(layer.h0);
  const Extents e = layer;
  for_each(states.rows * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t row = k / e.units, i = row / e.steps, at = row % e.steps;
    to[k] = e.h_before(y, h0, i, e.reverse ? e.steps - 1 - at : at, k % e.units);
  });
  return states;
}

// Outputs: 0 all states, 1 the last state, 2 what is saved.
class Gru : public Kernel {
 public:
  explicit Gru(bool reverse) : reverse_(reverse) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  // The inputs' products of all steps, then step by step the states' product and the cells.
  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const float* const bias = DenseInput(task.weights[2], kBias).data();
    const float* const recurrent_bias = DenseInput(task.weights[3], kRecurrentBias).data();
    const DenseOutput y(task.outputs[0], kY), saved(task.outputs[2], kSaved);
    const Matrix state = scratch_matrix(kState, n, units, layer.type);
    const Matrix x_gates = scratch_matrix(kInputGates, n * steps, layer.width());
    const Matrix h_gates = scratch_matrix(kRecurrentGates, n, layer.width());
    multiply(layer.x, layer.kernel.transposed(), x_gates);
    // The products of all inputs are one large product before the loop. Only what depends on the
    // step before is left in it.
    for (std::int64_t t = 0; t < steps; ++t) {
      const bool zero = t == 0 && layer.h0.data == nullptr;
      if (!zero) {
        multiply(t > 0 ? state : layer.h0, layer.recurrent.transposed(), h_gates);
      }
      step_forward(layer, t, x_gates.f32(), bias, zero ? nullptr : h_gates.f32(), recurrent_bias,
                   reals(layer.h0), saved.data(), {y.data(), DataType::float32}, reals(state));
    }
    y.commit();
    saved.commit();
    TensorView last = dense_view(y.data() + layer.row(0, steps - 1) * units, task.outputs[1].tile,
                                 task.outputs[1].shape);
    last.stride[0] = steps * units;
    gpu::copy_view(task.outputs[1], last);
  }

  // From the last step to the first. The gradients of both products' results are kept for all
  // steps, and the weights' gradients are products over all of them at the end.
  void backward(KernelTask& task) override {
    if (task.outputs[2].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const Reals y(DenseInput(task.outputs[0], kY, layer.type).memory(), layer.type);
    const DenseInput saved(task.outputs[2], kSaved);
    const Reals dy = optional_rows(task.output_grads, 0, kDy);
    const Reals given = optional_rows(task.output_grads, 1, kDhGiven);
    const Matrix dh = scratch_matrix(kDh, n, units);
    float* const gradients = dh.f32();
    for_each(n * units, [=] FL_BODY(std::int64_t k) { gradients[k] = at(given, k); });
    const Matrix gx = scratch_matrix(kInputGates, n * steps, layer.width(), layer.type);
    const Matrix gh = scratch_matrix(kRecurrentGates, n * steps, layer.width(), layer.type);
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      step_backward(layer, t, saved.data(), y, reals(layer.h0), dy, dh.f32(), reals(gx), reals(gh));
      // dh of the step before: what went around the gates, and what came by the recurrent kernel.
      multiply(layer.step(gh, t), layer.recurrent, dh, true);
    }
    // After the first step, what is left in dh is the gradient of the initial state.
    if (task.wants_input_grad(1)) {
      const TensorView& dh0 = task.input_grads[1];
      gpu::write_or_add_view(dh0, dense_view(dh.data, dh0.tile, dh0.shape),
                             task.adds_to_input_grad(1));
    }
    if (task.wants_input_grad(0)) {
      multiply_into(task.input_grads[0], kResult, task.adds_to_input_grad(0), gx, layer.kernel);
    }
    if (task.wants_weight_grad(0)) kernel_gradient(task, 0, gx, layer.x, kResult);
    if (task.wants_weight_grad(1)) {
      kernel_gradient(task, 1, gh, states_before(layer, y), kResult);
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
