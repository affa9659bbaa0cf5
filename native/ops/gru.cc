// gru: the steps of a layer of gated recurrent units, on a tile of samples.
//
// As with lstm, the products with the inputs are one for all steps; in the loop over the steps is
// one product a step with the recurrent kernel, and one pass over the units. The forward pass saves
// the gates. Backwards, the gradients of both products' results are kept for all steps, and make
// the weights' gradients at the end.
#include <algorithm>

#include "ops/gru_cell.h"
#include "ops/kernel.h"
#include "ops/products.h"

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
  kResult
};

float* zeros(int slot, std::int64_t elements) {
  float* const data = scratch(slot, elements);
  std::fill_n(data, elements, 0.0f);
  return data;
}

// What both passes know of a task.
struct Layer {
  std::int64_t n, steps, units, width;
  bool reverse;                 // whether the last step comes first
  Matrix x, kernel, recurrent;  // (n steps, d), (3 units, d), (3 units, units)
  const float* h0;              // (n, units); zeros unless given

  Layer(const KernelTask& task, bool reverse)
      : n(task.inputs[0].extent(0)),
        steps(task.inputs[0].extent(1)),
        units(task.weights[0].extent(0)),
        width(kGates * units),
        reverse(reverse),
        x(input_matrix(task.inputs[0], kX)),
        kernel(input_matrix(task.weights[0], kKernel)),
        recurrent(input_matrix(task.weights[1], kRecurrent)),
        h0(task.inputs.size() > 1 ? DenseInput(task.inputs[1], kH0).data()
                                  : zeros(kH0, n * units)) {}

  // Where step t of a sample stands among rows (n steps): steps are counted as they are computed.
  std::int64_t row(std::int64_t i, std::int64_t t) const {
    return i * steps + (reverse ? steps - 1 - t : t);
  }
  // Step t of `data` (n, steps, columns).
  Matrix step(float* data, std::int64_t columns, std::int64_t t) const {
    return Matrix::row_major(data + row(0, t) * columns, n, columns, steps * columns);
  }
  Matrix rows(float* data, std::int64_t columns) const {
    return Matrix::row_major(data, n * steps, columns, columns);
  }
  const float* h_before(const float* y, std::int64_t i, std::int64_t t) const {
    return t == 0 ? h0 + i * units : y + row(i, t - 1) * units;
  }
};

class Gru : public Kernel {
 public:
  explicit Gru(bool reverse) : reverse_(reverse) {}
  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Layer layer(task, reverse_);
    const std::int64_t n = layer.n, units = layer.units, width = layer.width;
    const float* const bias = DenseInput(task.weights[2], kBias).data();
    const float* const recurrent_bias = DenseInput(task.weights[3], kRecurrentBias).data();
    const DenseOutput y(task.outputs[0], kY), saved(task.outputs[2], kSaved);
    float* const x_gates = scratch(kInputGates, n * layer.steps * width);
    float* const h_gates = scratch(kRecurrentGates, n * width);
    products_.multiply(layer.x, layer.kernel.transposed(), layer.rows(x_gates, width));
    for (std::int64_t t = 0; t < layer.steps; ++t) {
      const Matrix before = t == 0
                                ? Matrix::row_major(const_cast<float*>(layer.h0), n, units, units)
                                : layer.step(y.data(), units, t - 1);
      products_.multiply(before, layer.recurrent.transposed(),
                         Matrix::row_major(h_gates, n, width, width));
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const std::int64_t row = layer.row(i, t);
          const float* const h = layer.h_before(y.data(), i, t);
          for (std::int64_t u = 0; u < units; ++u) {
            unit_forward(x_gates + row * width + kGates * u, bias + kGates * u,
                         h_gates + i * width + kGates * u, recurrent_bias + kGates * u, h[u],
                         saved.data() + row * kPlanes * units + u, units,
                         y.data()[row * units + u]);
          }
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
    float* const dx_gates = scratch(kInputGates, n * layer.steps * width);
    float* const dh_gates = scratch(kRecurrentGates, n * layer.steps * width);
    for (std::int64_t t = layer.steps - 1; t >= 0; --t) {
      share_range(n, n * width, [&](std::int64_t lo, std::int64_t hi) {
        for (std::int64_t i = lo; i < hi; ++i) {
          const std::int64_t row = layer.row(i, t);
          const float* const h = layer.h_before(y.data(), i, t);
          for (std::int64_t u = 0; u < units; ++u) {
            float& gradient = dh[i * units + u];
            if (dy != nullptr) gradient += dy[row * units + u];
            gradient = unit_backward(saved.data() + row * kPlanes * units + u, units, h[u],
                                     gradient, dx_gates + row * width + kGates * u,
                                     dh_gates + row * width + kGates * u);
          }
        }
      });
      products_.multiply(layer.step(dh_gates, width, t), layer.recurrent,
                         Matrix::row_major(dh, n, units, units), adding(true));
    }
    if (task.wants_input_grad(1)) {
      const TensorView& dh0 = task.input_grads[1];
      write_or_add_view(dh0, dense_view(dh, dh0.tile, dh0.shape), task.adds_to_input_grad(1));
    }
    const Matrix gx = layer.rows(dx_gates, width), gh = layer.rows(dh_gates, width);
    if (task.wants_input_grad(0)) {
      products_.multiply_into(task.input_grads[0], kResult, task.adds_to_input_grad(0), gx,
                              layer.kernel);
    }
    if (task.wants_weight_grad(0)) weight_gradient(task, 0, gx, layer.x);
    if (task.wants_weight_grad(1)) weight_gradient(task, 1, gh, states_before(layer, y.data()));
    if (task.wants_weight_grad(2)) bias_gradient(task, 2, gx);
    if (task.wants_weight_grad(3)) bias_gradient(task, 3, gh);
  }

 private:
  // h before each step, (n steps, units).
  static Matrix states_before(const Layer& layer, const float* y) {
    float* const states = scratch(kStates, layer.n * layer.steps * layer.units);
    for (std::int64_t i = 0; i < layer.n; ++i) {
      for (std::int64_t t = 0; t < layer.steps; ++t) {
        std::copy_n(layer.h_before(y, i, t), layer.units, states + layer.row(i, t) * layer.units);
      }
    }
    return layer.rows(states, layer.units);
  }

  // gates^T x
  void weight_gradient(KernelTask& task, std::size_t i, const Matrix& gates, const Matrix& x) {
    products_.multiply_into(task.weight_grads[i], kResult, task.adds_to_weight_grad(i),
                            gates.transposed(), x);
  }

  static void bias_gradient(KernelTask& task, std::size_t i, const Matrix& gates) {
    float* const sums = zeros(kResult, gates.cols);
    for (std::int64_t r = 0; r < gates.rows; ++r) {
      for (std::int64_t c = 0; c < gates.cols; ++c) sums[c] += gates.f32()[r * gates.row + c];
    }
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
