// lstm: one or several steps of a long short-term memory, on a tile of samples (and units).
//
// The products with the inputs are one for all steps, before the loop over the steps or after it;
// what is left in the loop is one product a step with the recurrent kernel, and one pass over the
// units. The forward pass saves the gates and cells, so that the backward pass has two products for
// each of the forward pass's.
//
// Where x is bfloat16, so are the factors of all products: y, kernels, and the gradients of the
// gates' arguments. Gates, cells and their gradients are floats.
//
// Costs: with n samples, forwards one product of (n steps) rows, and in the loop one of n rows a
// step, which cannot be joined with others, for it needs the state before it. The recurrent kernel
// is read in each step. From some steps on, it is first copied into the layout in which that is
// fastest (Products::packing_pays).
//
// A task may have some of the units alone, if it computes one step: then h0 is the whole state, of
// `hidden` elements, and gates, cells and outputs are those of its units.
#include <algorithm>
#include <cstring>
#include <functional>

#include "ops/kernel.h"
#include "ops/lstm_cell.h"
#include "ops/products.h"
#include "ops/simd.h"
#include "ops/written_row.h"

namespace flexlegion {
namespace {

using namespace lstm;

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
  kResult,
  kRow
};
// The gradient of y is not read any more when the states before each step are gathered there.
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
  DataType type;                // of factors
  Matrix x, kernel, recurrent;  // (n steps, d), (4 units, d), (4 units, hidden)
  Matrix h0;                    // (n, hidden); without data, it is zero
  const float* zero_row;        // of as many elements as there are units
  OptionalRows c0;

  Layer(const KernelTask& task, bool reverse)
      : n(task.inputs[0].extent(0)),
        steps(task.inputs[0].extent(1)),
        units(task.weights[0].extent(0)),
        reverse(reverse),
        type(task.inputs[0].type),
        x(input_matrix(task.inputs[0], kX, type)),
        kernel(input_matrix(task.weights[0], kKernel, type)),
        recurrent(input_matrix(task.weights[1], kRecurrent, type)),
        zero_row(zeros(kZeroRow, units)),
        c0(task.inputs, 2, kC0, zero_row) {
    if (task.inputs.size() > 1 && task.inputs[1].present()) {
      h0 = input_matrix(task.inputs[1], kH0, type);
    }
  }

  // Where step t of a sample stands among rows (n steps): steps are counted as they are computed.
  std::int64_t row(std::int64_t i, std::int64_t t) const {
    return i * steps + (reverse ? steps - 1 - t : t);
  }
  // Step t of rows (n steps, width), which lie next to each other.
  Matrix step(const Matrix& rows, std::int64_t t) const {
    return Matrix::row_major(rows.at(row(0, t) * rows.cols), n, rows.cols, steps * rows.cols,
                             rows.type);
  }
  // All steps of `data` (n, steps, width).
  Matrix rows(void* data, std::int64_t width, DataType its) const {
    return Matrix::row_major(data, n * steps, width, width, its);
  }
  // The last step of `data` (n, steps, ...) as a tile like that of a state (n, width).
  TensorView last(void* data, DataType its, std::int64_t width, const TensorView& like) const {
    TensorView view = dense_view(data, like.tile, like.shape, its);
    view.data = view.at(row(0, steps - 1) * width);
    view.stride[0] = steps * width;
    return view;
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
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const std::int64_t width = kGates * units;
    const float* const bias = bias_of(task);
    const DenseOutput out(task.outputs[0], kY, false, layer.type), saved(task.outputs[3], kSaved);
    const Matrix y = layer.rows(out.memory(), units, layer.type);
    const Matrix gates =
        layer.rows(scratch(kGateRows, n * steps * width), width, DataType::float32);
    products_.multiply(layer.x, layer.kernel.transposed(), gates);
    const StepFactor recurrent(products_, layer.recurrent.transposed(), n, steps);
    for (std::int64_t t = 0; t < steps; ++t) {
      // Without an initial state, the first step's recurrent product is zero.
      if (t > 0 || layer.h0.data != nullptr) {
        recurrent.multiply(t > 0 ? layer.step(y, t - 1) : layer.h0, layer.step(gates, t), true);
      }
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const std::int64_t row = layer.row(i, t);
          const WrittenRow h(y.at(row * units), y.type, units, kRow);
          step_forward(gates.f32() + row * width, bias, layer.c_before(saved.data(), i, t), units,
                       saved.data() + layer.planes(i, t), h.floats());
          h.commit();
        }
      });
    }
    out.commit();
    saved.commit();
    // Outputs: 0 all states, 1 and 2 the last state and cell, 3 what is saved.
    const TensorView &h = task.outputs[1], &c = task.outputs[2];
    copy_view(h, layer.last(out.memory(), layer.type, units, h));
    float* const cells = saved.data() + kCell * units;
    copy_view(c, layer.last(cells, DataType::float32, kPlanes * units, c));
  }

  void backward(KernelTask& task) override {
    if (task.outputs[3].tile.empty()) return;
    const Layer layer(task, reverse_);
    const Matrix gates = gate_gradients(task, layer);
    if (task.wants_input_grad(0)) {
      products_.multiply_into(task.input_grads[0], kResult, task.adds_to_input_grad(0), gates,
                              layer.kernel);
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
  // Of so many elements of that type.
  static void* memory(int slot, std::int64_t elements, DataType type) {
    return scratch(slot, floats_for(elements, type));
  }

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
      if (!products.packing_pays(factor, rows, steps)) return;
      packed_ = scratch(kPacked, products.packed_size(factor, rows));
      products.pack(factor, rows, packed_);
    }
    void multiply(const Matrix& a, const Matrix& c, bool adds) const {
      if (packed_ != nullptr) {
        products_.multiply_packed(a, factor_, packed_, c, adds);
      } else {
        products_.multiply(a, factor_, c, adding(adds));
      }
    }

   private:
    Products& products_;
    Matrix factor_;
    float* packed_ = nullptr;
  };

  // The gradients of the gates' arguments, (n steps, 4 units), and with them those of the state.
  Matrix gate_gradients(KernelTask& task, const Layer& layer) {
    const std::int64_t n = layer.n, steps = layer.steps, units = layer.units;
    const std::int64_t width = kGates * units;
    const DenseInput saved(task.outputs[3], kSaved);
    const OptionalRows dy(task.output_grads, 0, kDy, layer.zero_row);
    float* const dh = state_gradient(task.output_grads[1], kDh, n * units);
    float* const dc = state_gradient(task.output_grads[2], kDc, n * units);
    const Matrix gates =
        layer.rows(memory(kGateRows, n * steps * width, layer.type), width, layer.type);
    const StepFactor recurrent(products_, layer.recurrent, n, steps);
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const WrittenRow dx(gates.at(layer.row(i, t) * width), gates.type, width, kRow);
          step_backward(saved.data() + layer.planes(i, t), layer.c_before(saved.data(), i, t),
                        dy.row(i, layer.row(0, t) * units), dh + i * units, units, dc + i * units,
                        dx.floats());
          dx.commit();
        }
      });
      const Matrix now = layer.step(gates, t);
      if (t > 0) {
        // Written, not added: the whole gradient of the state before comes by the recurrent kernel;
        // dy is added in the next turn of the loop.
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
    return gates;
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
    if (steps == 1) return layer.h0;
    const std::int64_t hidden = layer.units;
    const DenseInput dense(task.outputs[0], kY, layer.type);
    const Matrix y = layer.rows(dense.memory(), hidden, layer.type);
    const Matrix states =
        layer.rows(memory(kStates, n * steps * hidden, layer.type), hidden, layer.type);
    const auto bytes = static_cast<std::size_t>(element_bytes(layer.type) * hidden);
    const bool starts_at_zero = layer.h0.data == nullptr;
    for (std::int64_t i = 0; i < n; ++i) {
      void* const first = states.at(layer.row(i, 0) * hidden);
      if (starts_at_zero) {
        std::memset(first, 0, bytes);
      } else {
        std::memcpy(first, layer.h0.at(i * layer.h0.row), bytes);
      }
      // The states before the other steps are the outputs one step earlier: all rows but the last,
      // moved by one.
      std::memcpy(states.at((i * steps + (layer.reverse ? 0 : 1)) * hidden),
                  y.at((i * steps + layer.reverse) * hidden),
                  static_cast<std::size_t>(steps - 1) * bytes);
    }
    return states;
  }

  // gates^T x
  void weight_gradient(KernelTask& task, std::size_t i, const Matrix& gates, const Matrix& x) {
    const TensorView& gradient = task.weight_grads[i];
    const bool adds = task.adds_to_weight_grad(i);
    if (x.data == nullptr) {
      if (!adds) zero_view(gradient);
      return;
    }
    products_.multiply_into(gradient, kResult, adds, gates.transposed(), x);
  }

  bool reverse_;
  Products products_;
};

const RegisterKernel registered("lstm", [](const Attributes& attributes) {
  return std::make_unique<Lstm>(attributes.integer("reverse") != 0);
});

}  // namespace
}  // namespace flexlegion
