// lstm: one or several steps of a long short-term memory, on a tile of samples (and units).
//
// The products with the inputs are one for all steps, before the loop over the steps or after it;
// what is left in the loop is one product a step with the recurrent kernel, and one pass over the
// units. The forward pass saves the gates and cells, so that the backward pass has two products for
// each of the forward pass's.
#include <algorithm>
#include <functional>

#include "ops/few_rows.h"
#include "ops/kernel.h"
#include "ops/lstm_cell.h"
#include "ops/products.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

using namespace lstm;

constexpr std::int64_t kManySteps = 4;  // packing the recurrent kernel pays from here on

enum Slot {
  kX,
  kKernel,
  kRecurrent,
  kPacked,
  kBias,
  kRecurrentBias,
  kSummedBias,
  kY,
  kSaved,
  kH0,
  kC0,
  kZeroRow,
  kGateRows,
  kDy,
  kDh,
  kDc,
  kResult
};
constexpr int kStates = kDy;  // needed after it

// One sample's step, as lstm_cell.h has it for one unit.
FLEXLEGION_SIMD void step_forward(const float* __restrict__ x, const float* __restrict__ bias,
                                  const float* __restrict__ c_before, std::int64_t units,
                                  float* __restrict__ saved, float* __restrict__ y) {
#pragma omp simd
  for (std::int64_t u = 0; u < units; ++u) {
    unit_forward(x + kGates * u, bias + kGates * u, c_before[u], saved + u, units, y[u]);
  }
}

FLEXLEGION_SIMD void step_backward(const float* __restrict__ saved,
                                   const float* __restrict__ c_before, const float* __restrict__ dy,
                                   const float* __restrict__ dh, std::int64_t units,
                                   float* __restrict__ dc, float* __restrict__ dx) {
#pragma omp simd
  for (std::int64_t u = 0; u < units; ++u) {
    dc[u] = unit_backward(saved + u, units, c_before[u], dy[u] + dh[u], dc[u], dx + kGates * u);
  }
}

FLEXLEGION_SIMD void add_rows(const Matrix& rows, float* sums) {
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const float* const row = rows.f32() + r * rows.row;
    for (std::int64_t c = 0; c < rows.cols; ++c) sums[c] += row[c];
  }
}

// A tensor (n, ...) as dense memory, or nothing, which stands for zeros.
class OptionalRows {
 public:
  OptionalRows(const std::vector<TensorView>& views, std::size_t i, int slot, const float* zeros)
      : zeros_(zeros) {
    if (i >= views.size() || !views[i].present()) return;
    data_ = DenseInput(views[i], slot).data();
    row_ = views[i].volume() / views[i].extent(0);
  }
  bool present() const { return data_ != nullptr; }
  const float* row(std::int64_t i, std::int64_t offset = 0) const {
    return present() ? data_ + i * row_ + offset : zeros_;
  }
  Matrix matrix(std::int64_t rows) const { return Matrix::row_major(data_, rows, row_, row_); }

 private:
  const float* zeros_;
  float* data_ = nullptr;
  std::int64_t row_ = 0;
};

// Writes dense memory to a gradient's tile, or adds it.
void give(float* dense, const TensorView& gradient, bool adds) {
  const TensorView view = dense_view(dense, gradient.tile, gradient.shape);
  adds ? add_view(gradient, view) : copy_view(gradient, view);
}

float* zeros(int slot, std::int64_t elements) {
  float* const data = scratch(slot, elements);
  std::fill_n(data, elements, 0.0f);
  return data;
}

// What both passes know of a task.
struct Layer {
  std::int64_t n, steps, units;
  bool reverse;                 // whether the last step comes first
  Matrix x, kernel, recurrent;  // (n steps, d), (4 units, d), (4 units, hidden)
  const float* zero_row;        // of as many elements as there are units
  OptionalRows h0, c0;

  Layer(const KernelTask& task, bool reverse)
      : n(task.inputs[0].extent(0)),
        steps(task.inputs[0].extent(1)),
        units(task.weights[0].extent(0)),
        reverse(reverse),
        x(input_matrix(task.inputs[0], kX)),
        kernel(input_matrix(task.weights[0], kKernel)),
        recurrent(input_matrix(task.weights[1], kRecurrent)),
        zero_row(zeros(kZeroRow, units)),
        h0(task.inputs, 1, kH0, zero_row),
        c0(task.inputs, 2, kC0, zero_row) {}

  // Where step t of a sample stands among rows (n steps): steps are counted as they are computed.
  std::int64_t row(std::int64_t i, std::int64_t t) const {
    return i * steps + (reverse ? steps - 1 - t : t);
  }
  // Step t of `data` (n, steps, width).
  Matrix step(float* data, std::int64_t width, std::int64_t t) const {
    return Matrix::row_major(data + row(0, t) * width, n, width, steps * width);
  }
  // The saved planes of a sample's step.
  std::int64_t planes(std::int64_t i, std::int64_t t) const { return row(i, t) * kPlanes * units; }
  // The cells before step t.
  const float* c_before(const float* saved, std::int64_t i, std::int64_t t) const {
    return t == 0 ? c0.row(i) : saved + planes(i, t - 1) + kCell * units;
  }
};

class Lstm : public Kernel {
 public:
  explicit Lstm(bool reverse) : reverse_(reverse) {}
  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const std::int64_t width = kGates * units;
    const float* const bias = bias_of(task);
    const DenseOutput y(task.outputs[0], kY), saved(task.outputs[3], kSaved);
    float* const gates = scratch(kGateRows, n * steps * width);
    few_rows::multiply(products_, layer.x, layer.kernel.transposed(),
                       Matrix::row_major(gates, n * steps, width, width), false);
    const StepFactor recurrent(products_, layer.recurrent.transposed(), n, steps);
    for (std::int64_t t = 0; t < steps; ++t) {
      if (t > 0 || layer.h0.present()) {
        recurrent.multiply(t > 0 ? layer.step(y.data(), units, t - 1) : layer.h0.matrix(n),
                           layer.step(gates, width, t), true);
      }
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const std::int64_t row = layer.row(i, t);
          step_forward(gates + row * width, bias, layer.c_before(saved.data(), i, t), units,
                       saved.data() + layer.planes(i, t), y.data() + row * units);
        }
      });
    }
    y.commit();
    saved.commit();
    float* const h = scratch(kDh, n * units);
    float* const c = scratch(kDc, n * units);
    for (std::int64_t i = 0; i < n; ++i) {
      std::copy_n(y.data() + layer.row(i, steps - 1) * units, units, h + i * units);
      std::copy_n(layer.c_before(saved.data(), i, steps), units, c + i * units);
    }
    give(h, task.outputs[1], false);
    give(c, task.outputs[2], false);
  }

  void backward(KernelTask& task) override {
    if (task.outputs[3].tile.empty()) return;
    const Layer layer(task, reverse_);
    const Matrix gates = gate_gradients(task, layer);
    if (task.wants_input_grad(0)) {
      multiply_into(task.input_grads[0], task.adds_to_input_grad(0), gates, layer.kernel);
    }
    if (task.wants_weight_grad(0)) weight_gradient(task, 0, gates, layer.x);
    if (task.wants_weight_grad(1)) {
      weight_gradient(task, 1, gates, states_before(task, layer));
    }
    // Of two biases, each has the gradient of their sum.
    for (std::size_t i = 2; i < task.weights.size(); ++i) {
      if (!task.wants_weight_grad(i)) continue;
      float* const sums = zeros(kResult, gates.cols);
      add_rows(gates, sums);
      give(sums, task.weight_grads[i], task.adds_to_weight_grad(i));
    }
  }

 private:
  // The bias, or the sum of both.
  static const float* bias_of(const KernelTask& task) {
    const float* const bias = DenseInput(task.weights[2], kBias).data();
    if (task.weights.size() < 4) return bias;
    const float* const other = DenseInput(task.weights[3], kRecurrentBias).data();
    const std::int64_t elements = task.weights[2].volume();
    float* const sum = scratch(kSummedBias, elements);
    std::transform(bias, bias + elements, other, sum, std::plus<float>());
    return sum;
  }

  // A right factor of a product in every step.
  class StepFactor {
   public:
    StepFactor(Products& products, const Matrix& factor, std::int64_t rows, std::int64_t steps)
        : products_(products), factor_(factor) {
      if (steps < kManySteps || few_rows::suits(rows, factor)) return;
      packed_ = scratch(kPacked, products.packed_size(factor, rows));
      products.pack(factor, rows, packed_);
    }
    void multiply(const Matrix& a, const Matrix& c, bool adds) const {
      ProductOptions options;
      options.adds = adds;
      if (packed_ != nullptr) {
        products_.multiply_packed(a, factor_, packed_, c, options);
      } else {
        few_rows::multiply(products_, a, factor_, c, adds);
      }
    }

   private:
    Products& products_;
    Matrix factor_;
    float* packed_ = nullptr;
  };

  void multiply_into(const TensorView& gradient, bool adds, const Matrix& a, const Matrix& b) {
    const OutputMatrix result(gradient, kResult, adds);
    few_rows::multiply(products_, a, b, result.matrix(), result.adds());
    result.commit();
  }

  // The gradients of the gates' arguments, (n steps, 4 units), and with them those of the state.
  Matrix gate_gradients(KernelTask& task, const Layer& layer) {
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const std::int64_t width = kGates * units;
    const DenseInput saved(task.outputs[3], kSaved);
    const OptionalRows dy(task.output_grads, 0, kDy, layer.zero_row);
    float* const dh = state_gradient(task.output_grads[1], kDh, n * units);
    float* const dc = state_gradient(task.output_grads[2], kDc, n * units);
    float* const gates = scratch(kGateRows, n * steps * width);
    const StepFactor recurrent(products_, layer.recurrent, n, steps);
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          step_backward(saved.data() + layer.planes(i, t), layer.c_before(saved.data(), i, t),
                        dy.row(i, layer.row(0, t) * units), dh + i * units, units, dc + i * units,
                        gates + layer.row(i, t) * width);
        }
      });
      const Matrix now = layer.step(gates, width, t);
      if (t > 0) {
        recurrent.multiply(now, Matrix::row_major(dh, n, units, units), false);
      } else if (task.wants_input_grad(1)) {
        const OutputMatrix dh0(task.input_grads[1], kResult, task.adds_to_input_grad(1));
        recurrent.multiply(now, dh0.matrix(), dh0.adds());
        dh0.commit();
      }
    }
    if (task.wants_input_grad(2)) {
      give(dc, task.input_grads[2], task.adds_to_input_grad(2));
    }
    return Matrix::row_major(gates, n * steps, width, width);
  }

  static float* state_gradient(const TensorView& gradient, int slot, std::int64_t elements) {
    if (!gradient.present()) return zeros(slot, elements);
    float* const data = scratch(slot, elements);
    copy_view(dense_view(data, gradient.tile, gradient.shape), gradient);
    return data;
  }

  // h before each step, (n steps, hidden); without data if all of them are zero.
  static Matrix states_before(const KernelTask& task, const Layer& layer) {
    const std::int64_t n = layer.n, steps = layer.steps;
    if (steps == 1) return layer.h0.matrix(n);
    const std::int64_t hidden = layer.units;
    const DenseInput y(task.outputs[0], kY);
    float* const states = scratch(kStates, n * steps * hidden);
    for (std::int64_t i = 0; i < n; ++i) {
      float* const rows = states + i * steps * hidden;
      const float* const others = y.data() + (i * steps + layer.reverse) * hidden;
      std::copy_n(layer.h0.row(i), hidden, states + layer.row(i, 0) * hidden);
      std::copy_n(others, (steps - 1) * hidden, rows + (layer.reverse ? 0 : hidden));
    }
    return Matrix::row_major(states, n * steps, hidden, hidden);
  }

  // gates^T x
  void weight_gradient(KernelTask& task, std::size_t i, const Matrix& gates, const Matrix& x) {
    const TensorView& gradient = task.weight_grads[i];
    const bool adds = task.adds_to_weight_grad(i);
    if (x.data == nullptr) {
      if (!adds) zero_view(gradient);
      return;
    }
    const OutputMatrix dw(gradient, kResult, adds);
    few_rows::multiply_outer(products_, gates, x, dw.matrix(), dw.adds());
    dw.commit();
  }

  bool reverse_;
  Products products_;
};

const RegisterKernel registered("lstm", [](const Attributes& attributes) {
  return std::make_unique<Lstm>(attributes.integer("reverse") != 0);
});

}  // namespace
}  // namespace flexlegion
