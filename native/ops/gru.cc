// gru: the steps of a layer of gated recurrent units, on a tile of samples.
//
// As with lstm, the products with the inputs are one for all steps; in the loop over the steps is
// one product a step with the recurrent kernel, and one pass over the units. The forward pass saves
// the gates. Backwards, the gradients of both products' results are kept for all steps, and make
// the weights' gradients at the end.
//
// Where x is bfloat16, so are the factors of all products: states, kernels, and the gradients of
// the gates' arguments. What is computed of units is floats; so is h, from step to step.
//
// Costs: with n samples, forwards one product of (n steps) rows and `steps` products of n rows. The
// latter cannot be joined, for each needs the state before it. Saved are four planes of units a
// step: r, z, n, and what r multiplies, which the recurrent product would have to be repeated for.
#include <algorithm>

#include "ops/gru_cell.h"
#include "ops/kernel.h"
#include "ops/products.h"
#include "ops/simd.h"
#include "ops/written_row.h"

namespace flexlegion {
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
  kDh,
  kStates,
  kFactor,
  kInputRow,
  kRecurrentRow,
  kResult
};

// One sample's step, as gru_cell.h has it for one unit.
FLEXLEGION_SIMD void step_forward(const float* __restrict__ x, const float* __restrict__ bias,
                                  const float* __restrict__ g,
                                  const float* __restrict__ recurrent_bias,
                                  const float* __restrict__ h_before, std::int64_t units,
                                  float* __restrict__ saved, float* __restrict__ y) {
#pragma omp simd
  for (std::int64_t u = 0; u < units; ++u) {
    unit_forward(x + kGates * u, bias + kGates * u, g + kGates * u, recurrent_bias + kGates * u,
                 h_before[u], saved + u, units, y[u]);
  }
}

// Of the gradients dy, which may be absent, and dh, which becomes that of h_before.
FLEXLEGION_SIMD void step_backward(const float* __restrict__ saved,
                                   const float* __restrict__ h_before, const float* __restrict__ dy,
                                   std::int64_t units, float* __restrict__ dh,
                                   float* __restrict__ dx, float* __restrict__ dg) {
#pragma omp simd
  for (std::int64_t u = 0; u < units; ++u) {
    const float gradient = dy == nullptr ? dh[u] : dh[u] + dy[u];
    dh[u] =
        unit_backward(saved + u, units, h_before[u], gradient, dx + kGates * u, dg + kGates * u);
  }
}

float* zeros(int slot, std::int64_t elements) {
  float* const data = scratch(slot, elements);
  std::fill_n(data, elements, 0.0f);
  return data;
}

// What both passes know of a task.
struct Layer {
  std::int64_t n, steps, units, width;
  bool reverse;                 // whether the last step comes first
  DataType type;                // of factors
  Matrix x, kernel, recurrent;  // (n steps, d), (3 units, d), (3 units, units)
  const float* h0;              // (n, units); zeros unless given

  Layer(const KernelTask& task, bool reverse)
      : n(task.inputs[0].extent(0)),
        steps(task.inputs[0].extent(1)),
        units(task.weights[0].extent(0)),
        width(kGates * units),
        reverse(reverse),
        type(task.inputs[0].type),
        x(input_matrix(task.inputs[0], kX, type)),
        kernel(input_matrix(task.weights[0], kKernel, type)),
        recurrent(input_matrix(task.weights[1], kRecurrent, type)),
        h0(task.inputs.size() > 1 ? DenseInput(task.inputs[1], kH0).data()
                                  : zeros(kH0, n * units)) {}

  // Where step t of a sample stands among rows (n steps): steps are counted as they are computed.
  std::int64_t row(std::int64_t i, std::int64_t t) const {
    return i * steps + (reverse ? steps - 1 - t : t);
  }
  // Step t of rows (n steps, columns).
  Matrix step(const Matrix& rows, std::int64_t t) const {
    return Matrix::row_major(rows.at(row(0, t) * rows.cols), n, rows.cols, steps * rows.cols,
                             rows.type);
  }
  // Factors of products, (n steps, columns).
  Matrix factors(int slot, std::int64_t columns) const {
    const std::int64_t elements = n * steps * columns;
    return Matrix::row_major(scratch(slot, floats_for(elements, type)), n * steps, columns, columns,
                             type);
  }
  Matrix rows(float* data, std::int64_t columns) const {
    return Matrix::row_major(data, n * steps, columns, columns);
  }
  // The states before step t, (n, units). Copied, for the factor of the product has to be dense and
  // of the factors' type, while y's rows of one step lie `steps` rows apart.
  Matrix states_before(const float* y, std::int64_t t) const {
    Matrix states = factors(kFactor, units);
    states.rows = n;
    for (std::int64_t i = 0; i < n; ++i) put(h_before(y, i, t), states, i);
    return states;
  }
  // The same before each step, (n steps, units).
  Matrix states_before(const float* y) const {
    const Matrix states = factors(kStates, units);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t t = 0; t < steps; ++t) put(h_before(y, i, t), states, row(i, t));
    }
    return states;
  }
  const float* h_before(const float* y, std::int64_t i, std::int64_t t) const {
    return t == 0 ? h0 + i * units : y + row(i, t - 1) * units;
  }

 private:
  void put(const float* h, const Matrix& states, std::int64_t i) const {
    void* const to = states.at(i * units);
    if (is_narrow(type)) {
      round_off(type, h, static_cast<Narrow*>(to), units);
    } else {
      std::copy_n(h, units, static_cast<float*>(to));
    }
  }
};

class Gru : public Kernel {
 public:
  explicit Gru(bool reverse) : reverse_(reverse) {}
  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  // Outputs: 0 all states, 1 the last state, 2 what is saved.
  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, units = layer.units, width = layer.width;
    const float* const bias = DenseInput(task.weights[2], kBias).data();
    const float* const recurrent_bias = DenseInput(task.weights[3], kRecurrentBias).data();
    const DenseOutput y(task.outputs[0], kY), saved(task.outputs[2], kSaved);
    float* const x_gates = scratch(kInputGates, n * layer.steps * width);
    float* const h_gates = scratch(kRecurrentGates, n * width);
    // What depends on the inputs, of all steps at once.
    products_.multiply(layer.x, layer.kernel.transposed(), layer.rows(x_gates, width));
    for (std::int64_t t = 0; t < layer.steps; ++t) {
      products_.multiply(layer.states_before(y.data(), t), layer.recurrent.transposed(),
                         Matrix::row_major(h_gates, n, width, width));
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const std::int64_t row = layer.row(i, t);
          step_forward(x_gates + row * width, bias, h_gates + i * width, recurrent_bias,
                       layer.h_before(y.data(), i, t), units, saved.data() + row * kPlanes * units,
                       y.data() + row * units);
        }
      });
    }
    y.commit();
    saved.commit();
    TensorView last = dense_view(y.data() + layer.row(0, layer.steps - 1) * units,
                                 task.outputs[1].tile, task.outputs[1].shape);
    last.stride[0] = layer.steps * units;
    copy_view(task.outputs[1], last);
  }

  // From the last step to the first, keeping the gradients of both products' results. The gradients
  // of inputs and weights are products over all steps at the end.
  void backward(KernelTask& task) override {
    if (task.outputs[2].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, units = layer.units, width = layer.width;
    const DenseInput y(task.outputs[0], kY), saved(task.outputs[2], kSaved);
    const float* const dy =
        task.output_grads[0].present() ? DenseInput(task.output_grads[0], kDy).data() : nullptr;
    float* const dh = zeros(kDh, n * units);
    if (task.output_grads[1].present()) {
      copy_view(dense_view(dh, task.output_grads[1].tile, task.output_grads[1].shape),
                task.output_grads[1]);
    }
    const Matrix gx = layer.factors(kInputGates, width), gh = layer.factors(kRecurrentGates, width);
    for (std::int64_t t = layer.steps - 1; t >= 0; --t) {
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const std::int64_t row = layer.row(i, t);
          const WrittenRow dx(gx.at(row * width), gx.type, width, kInputRow);
          const WrittenRow dg(gh.at(row * width), gh.type, width, kRecurrentRow);
          step_backward(saved.data() + row * kPlanes * units, layer.h_before(y.data(), i, t),
                        dy == nullptr ? nullptr : dy + row * units, units, dh + i * units,
                        dx.floats(), dg.floats());
          dx.commit();
          dg.commit();
        }
      });
      // dh holds the part of the gradient that came past the gates; the product adds what came
      // through them.
      products_.multiply(layer.step(gh, t), layer.recurrent, Matrix::row_major(dh, n, units, units),
                         adding(true));
    }
    // After the first step, what is left in dh is the gradient of the initial state.
    if (task.wants_input_grad(1)) {
      const TensorView& dh0 = task.input_grads[1];
      write_or_add_view(dh0, dense_view(dh, dh0.tile, dh0.shape), task.adds_to_input_grad(1));
    }
    if (task.wants_input_grad(0)) {
      products_.multiply_into(task.input_grads[0], kResult, task.adds_to_input_grad(0), gx,
                              layer.kernel);
    }
    if (task.wants_weight_grad(0)) weight_gradient(task, 0, gx, layer.x);
    if (task.wants_weight_grad(1)) weight_gradient(task, 1, gh, layer.states_before(y.data()));
    if (task.wants_weight_grad(2)) bias_gradient(task, 2, gx);
    if (task.wants_weight_grad(3)) bias_gradient(task, 3, gh);
  }

 private:
  // gates^T x
  void weight_gradient(KernelTask& task, std::size_t i, const Matrix& gates, const Matrix& x) {
    products_.multiply_into(task.weight_grads[i], kResult, task.adds_to_weight_grad(i),
                            gates.transposed(), x);
  }

  static void bias_gradient(KernelTask& task, std::size_t i, const Matrix& gates) {
    float* const sums = zeros(kResult, gates.cols);
    add_rows(gates, sums);
    const TensorView& gradient = task.weight_grads[i];
    write_or_add_view(gradient, dense_view(sums, gradient.tile, gradient.shape),
                      task.adds_to_weight_grad(i));
  }

  bool reverse_;
  Products products_;
};

const RegisterKernel registered("gru", [](const Attributes& attributes) {
  return std::make_unique<Gru>(attributes.integer("reverse") != 0);
});

}  // namespace
}  // namespace flexlegion
