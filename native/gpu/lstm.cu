// lstm: one or several steps of a long short-term memory, on a tile of samples (and units).
//
// The products with the inputs are one for all steps; what is left of a step is one product with
// the recurrent kernel, and one pass over the units. The forward pass saves the gates and cells.
//
// The factors of products (x, y, kernels, the gradients of the gates' arguments) are of x's type;
// gates, cells and their gradients are floats.
//
// A step is two launches: the product, added to the gates' rows of that step, and one thread for
// each unit of each sample. Steps depend on each other, so a short sequence of small layers is
// bound by launches; recording them (device_functions.cu) spares the host most of that.
#include "gpu/activation.h"
#include "gpu/recurrent.h"
#include "ops/kernel.h"
#include "ops/lstm_cell.h"

namespace flexlegion::gpu {
namespace {

using namespace lstm;

// Scratch memory by purpose: what is alive at the same time has different slots.
enum Slot {
  kX,
  kKernel,
  kRecurrent,
  kBias,
  kRecurrentBias,
  kSummedBias,
  kY,
  kSaved,
  kH0,
  kC0,
  kGateRows,
  kDy,
  kDhGiven,
  kDcGiven,
  kDh,
  kDc,
  kStates,
  kSums,
  kResult
};

// The steps, and what is saved of them.
struct Extents : Steps {
  using Steps::Steps;

  FL_DEVICE std::int64_t width() const { return kGates * units; }
  // Of sample i's step t, unit u: where the saved planes begin.
  FL_DEVICE std::int64_t planes(std::int64_t i, std::int64_t t, std::int64_t u) const {
    return row(i, t) * kPlanes * units + u;
  }
  // The cell before it.
  FL_DEVICE float c_before(const float* saved, const Reals& c0, std::int64_t i, std::int64_t t,
                           std::int64_t u) const {
    if (t > 0) return saved[planes(i, t - 1, u) + kCell * units];
    return at(c0, i * units + u);
  }
};

struct Layer : Extents {
  DataType type;                // of factors
  Matrix x, kernel, recurrent;  // (n steps, d), (4 units, d), (4 units, hidden)
  Matrix h0;                    // (n, hidden); without data, it is zero
  Reals c0;

  Layer(const KernelTask& task, bool reverse)
      : Extents(task, reverse),
        type(task.inputs[0].type),
        x(input_matrix(task.inputs[0], kX, type)),
        kernel(input_matrix(task.weights[0], kKernel, type)),
        recurrent(input_matrix(task.weights[1], kRecurrent, type)),
        c0(optional_rows(task.inputs, 2, kC0)) {
    if (task.inputs.size() > 1 && task.inputs[1].present()) {
      const std::int64_t hidden = recurrent.cols;
      h0 = Matrix::row_major(DenseInput(task.inputs[1], kH0, type).memory(), n, hidden, hidden,
                             type);
    }
  }
};

// Copies a matrix to a state's tile (n, units).
void give(const TensorView& state, const Matrix& m) {
  TensorView view = dense_view(m.data, state.tile, state.shape, m.type);
  view.stride[0] = m.row;
  gpu::copy_view(state, view);
}

// From the gates' arguments of step t (without the bias) to the saved planes and the outputs.
void step_forward(const Extents& e, std::int64_t t, const float* gates, const float* bias,
                  const Reals& c0, float* saved, const Reals& y) {
  for_each(e.n * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t i = k / e.units, u = k % e.units, row = e.row(i, t);
    float h;
    unit_forward(gates + row * e.width() + kGates * u, bias + kGates * u,
                 e.c_before(saved, c0, i, t, u), saved + e.planes(i, t, u), e.units, h);
    y[row * e.units + u] = h;
  });
}

// The gradients of states that step_backward() reads, each absent where it is zero.
struct StateGradients {
  Reals y, h, c;  // (n, steps, units), (n, units), (n, units)
};

// From the gradients of step t's h (two parts) and c to those of the gates' arguments, and of
// c_before, which may take the place of c's.
void step_backward(const Extents& e, std::int64_t t, const float* saved, const Reals& c0,
                   const StateGradients& grads, const Reals& gates, float* dc) {
  for_each(e.n * e.units, [=] FL_BODY(std::int64_t k) {
    const std::int64_t i = k / e.units, u = k % e.units, row = e.row(i, t);
    const float dh = at(grads.y, row * e.units + u) + at(grads.h, k);
    float dx[kGates];
    dc[k] = unit_backward(saved + e.planes(i, t, u), e.units, e.c_before(saved, c0, i, t, u), dh,
                          at(grads.c, k), dx);
    store(dx, gates + row * e.width() + kGates * u);
  });
}

// h before each step, (n steps, hidden), from h0 and the outputs.
Matrix states_before(const Layer& layer, const Reals& y) {
  const std::int64_t steps = layer.steps, hidden = layer.recurrent.cols;
  const Matrix states = scratch_matrix(kStates, layer.n * steps, hidden, layer.type);
  const Reals to = reals(states), h0 = reals(layer.h0);
  const std::int64_t first = layer.row(0, 0), before = layer.reverse ? hidden : -hidden;
  for_each(states.rows * hidden, [=] FL_BODY(std::int64_t k) {
    const std::int64_t row = k / hidden;
    if (row % steps != first) {
      to[k] = y[k + before];
    } else {
      to[k] = at(h0, row / steps * hidden + k % hidden);
    }
  });
  return states;
}

// The bias, or the sum of both.
const float* bias_of(const KernelTask& task) {
  const float* const bias = DenseInput(task.weights[2], kBias).data();
  if (task.weights.size() < 4) return bias;
  const float* const other = DenseInput(task.weights[3], kRecurrentBias).data();
  const std::int64_t elements = task.weights[2].volume();
  float* const sum = scratch(kSummedBias, elements);
  for_each(elements, [=] FL_BODY(std::int64_t k) { sum[k] = bias[k] + other[k]; });
  return sum;
}

class Lstm : public Kernel {
 public:
  explicit Lstm(bool reverse) : reverse_(reverse) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const float* const bias = bias_of(task);
    const DenseOutput out(task.outputs[0], kY, false, layer.type), saved(task.outputs[3], kSaved);
    const Matrix y = Matrix::row_major(out.memory(), n * steps, units, units, layer.type);
    const Matrix gates = scratch_matrix(kGateRows, n * steps, layer.width());
    multiply(layer.x, layer.kernel.transposed(), gates);
    for (std::int64_t t = 0; t < steps; ++t) {
      // Without an initial state, the first step's product would be zero.
      if (t > 0 || layer.h0.data != nullptr) {
        multiply(t > 0 ? layer.step(y, t - 1) : layer.h0, layer.recurrent.transposed(),
                 layer.step(gates, t), true);
      }
      step_forward(layer, t, gates.f32(), bias, layer.c0, saved.data(), reals(y));
    }
    out.commit();
    saved.commit();
    give(task.outputs[1], layer.step(y, steps - 1));
    // The last cell is the last step's plane of what is saved.
    float* const cells = saved.data() + layer.planes(0, steps - 1, 0) + kCell * units;
    give(task.outputs[2], Matrix::row_major(cells, n, units, steps * kPlanes * units));
  }

  // The gates' gradients step by step, then products over all steps at once.
  void backward(KernelTask& task) override {
    if (task.outputs[3].tile.empty()) return;
    const Layer layer(task, reverse_);
    const Matrix gates = gate_gradients(task, layer);
    if (task.wants_input_grad(0)) {
      multiply_into(task.input_grads[0], kResult, task.adds_to_input_grad(0), gates, layer.kernel);
    }
    if (task.wants_weight_grad(0)) kernel_gradient(task, 0, gates, layer.x, kResult);
    if (task.wants_weight_grad(1)) recurrent_gradient(task, layer, gates);
    // Of two biases, each has the gradient of their sum.
    for (std::size_t i = 2; i < task.weights.size(); ++i) {
      if (task.wants_weight_grad(i)) {
        bias_gradient(gates, task.weight_grads[i], kSums, task.adds_to_weight_grad(i));
      }
    }
  }

 private:
  // The gradients of the gates' arguments, (n steps, 4 units), and with them those of the state.
  static Matrix gate_gradients(KernelTask& task, const Layer& layer) {
    const std::int64_t n = layer.n, units = layer.units;
    const DenseInput saved(task.outputs[3], kSaved);
    StateGradients grads{optional_rows(task.output_grads, 0, kDy),
                         optional_rows(task.output_grads, 1, kDhGiven),
                         optional_rows(task.output_grads, 2, kDcGiven)};
    float* const dc = scratch(kDc, n * units);
    const Matrix gates = scratch_matrix(kGateRows, n * layer.steps, layer.width(), layer.type);
    for (std::int64_t t = layer.steps - 1; t >= 0; --t) {
      step_backward(layer, t, saved.data(), layer.c0, grads, reals(gates), dc);
      // From the second turn on, the gradients of the state come from the step after.
      grads.c = {dc, DataType::float32};
      const Matrix now = layer.step(gates, t);
      if (t > 0) {
        const Matrix dh = scratch_matrix(kDh, n, units);
        multiply(now, layer.recurrent, dh);
        grads.h = reals(dh);
      } else if (task.wants_input_grad(1)) {
        multiply_into(task.input_grads[1], kResult, task.adds_to_input_grad(1), now,
                      layer.recurrent);
      }
    }
    if (task.wants_input_grad(2)) {
      const TensorView& dc0 = task.input_grads[2];
      gpu::write_or_add_view(dc0, dense_view(dc, dc0.tile, dc0.shape), task.adds_to_input_grad(2));
    }
    return gates;
  }

  // dkernel = gates^T h before: one product over all steps, with the states side by side.
  static void recurrent_gradient(KernelTask& task, const Layer& layer, const Matrix& gates) {
    if (layer.steps > 1) {
      const Reals y(DenseInput(task.outputs[0], kY, layer.type).memory(), layer.type);
      kernel_gradient(task, 1, gates, states_before(layer, y), kResult);
    } else if (layer.h0.data != nullptr) {
      kernel_gradient(task, 1, gates, layer.h0, kResult);
    } else if (!task.adds_to_weight_grad(1)) {
      gpu::zero_view(task.weight_grads[1]);
    }
  }

  bool reverse_;
};

const RegisterKernel registered(
    "lstm",
    [](const Attributes& attributes) {
      return std::make_unique<Lstm>(attributes.integer("reverse") != 0);
    },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
