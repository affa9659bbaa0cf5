// experts: output(row) = sum of gate(row, e) down(e) h(row, e) over the experts e whose gate is not
// 0, with h(row, e) = f(up(e) x(row)), or that times gate(e) x(row), for every kind of device.
//
// The rows of an expert are gathered, in blocks, so that its network is a few matrix products; what
// they give is added where the rows came from. The backward pass computes h again. With g the
// gathered gradients of the outputs, and p = g down(e), a gate's gradient is the sum of p h over
// the units: the forward pass's last product is not needed again.
//
// The factors of all products are of x's type, be it floats or of two bytes: rows, weights, h, and
// gradients before the activation. All else are floats.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/expert_activation.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace flexlegion::experts {

enum Slot {
  kInput,
  kGates,
  kOutput,
  kOutputGrad,
  kInputGrad,
  kGateGrad,
  kChosen,
  kCounts,
  kRows,
  kRowGrads,
  kUp,
  kGated,
  kHidden,  // backward: times the gate
  kHiddenGrad,
  kUpGrad,
  kGatedGrad,
  kRow,  // of three
  kResult = kRow + 3,
  kWeight,                   // of three weights
  kWeightGrad = kWeight + 3  // of three weights
};

enum Weight { up, down, gate };

constexpr std::int64_t kBlock = 512;  // rows of an expert that are computed at once

// Some of the rows that an expert computes.
struct Block {
  std::int64_t expert;
  bool first;                // of the expert's
  const std::int32_t* rows;  // where the device has its data
  std::int64_t count, most;  // its rows; of any block
};

// A task's operands, as dense matrices of its rows.
struct Operands {
  std::int64_t rows, d, units, experts;
  DataType type;  // of factors
  Matrix x;
  const float* gates;
  std::vector<void*> weights;  // up (experts, units, d), down (experts, d, units), gate as up

  bool gated() const { return weights.size() > gate; }
  Matrix weight(Weight which, std::int64_t expert) const {
    Matrix m = which == down ? Matrix::row_major(weights[which], d, units, units, type)
                             : Matrix::row_major(weights[which], units, d, d, type);
    m.data = m.at(expert * units * d);
    return m;
  }
};

// What is between the layers: up(e) x, gate(e) x, and h. Or, as factors, the gradients of the first
// two, and h times the row's gate.
struct Hidden {
  Matrix a, gated, h;
};

// A Device has classes Input, Output (DenseInput, DenseOutput) and OutputMatrix; a class Rows with,
// for each expert, the rows whose gate for it is not 0; and these functions:
//   takes(type): whether products have factors of that type
//   zero(data, n), zero_view(view), multiply(a, b, c, adds)
//   matrix(slot, block, cols, type): scratch memory for the rows of a block
//   gather(from, block, to): these rows of a dense matrix of the same type
//   add(m, block, by, by_stride, to): to(row) += by(row) m(i), for each of them; `by` null: 1
//   activate(f, hidden): h
//   differentiate(f, operands, block, hidden, p, grads, dgates): from the gradient p of h / gate to
//     those before the activation, and to h times the row's gate, whose gradient is the row's sum
//     of p h.
template <typename Device>
class Experts : public Kernel {
 public:
  explicit Experts(const Attributes& attributes) : f_(attributes.text("activation")) {}

  bool accumulates() const override { return true; }
  bool repeats() const override { return false; }
  bool takes(DataType type) const override { return Device::takes(type); }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Operands of = operands_of(task);
    const Output y(task.outputs[0], kOutput);
    device_.zero(y.data(), of.rows * of.d);
    for_each_block(
        of,
        [&](const Block& block) {
          Hidden hidden = before_activation(of, block, gathered(of.x, block, kRows));
          hidden.h = device_.matrix(kHidden, block, of.units, of.type);
          device_.activate(f_, hidden);
          const Matrix result = floats(kResult, block, of.d);
          device_.multiply(hidden.h, of.weight(down, block.expert).transposed(), result);
          device_.add(result, block, of.gates + block.expert, of.experts, y.data());
        },
        [](std::int64_t) {});
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return;
    const Operands of = operands_of(task);
    const Matrix dy = rows_of(task.output_grads[0], kOutputGrad, of.d, of.type);
    const Gradient dx(*this, task, 0, kInputGrad), dgates(*this, task, 1, kGateGrad);
    for_each_block(
        of, [&](const Block& block) { differentiate(task, of, block, dy, dx, dgates); },
        [&](std::int64_t e) {
          for (std::size_t i = 0; i < task.weights.size(); ++i) {
            if (!task.wants_weight_grad(i) || task.adds_to_weight_grad(i)) continue;
            device_.zero_view(subview(task.weight_grads[i], e));
          }
        });
    dx.commit();
    dgates.commit();
  }

 private:
  using Input = typename Device::Input;
  using Output = typename Device::Output;

  static Operands operands_of(const KernelTask& task) {
    const TensorView& first = task.weights[up];
    const DataType type = task.inputs[0].type;
    Operands of{0, first.extent(2), first.extent(1), first.extent(0), type, Matrix(), nullptr, {}};
    of.x = rows_of(task.inputs[0], kInput, of.d, type);
    of.rows = of.x.rows;
    of.gates = Input(task.inputs[1], kGates).data();
    for (std::size_t i = 0; i < task.weights.size(); ++i) {
      of.weights.push_back(Input(task.weights[i], kWeight + static_cast<int>(i), type).memory());
    }
    return of;
  }

  static Matrix rows_of(const TensorView& view, int slot, std::int64_t d, DataType type) {
    return Matrix::row_major(Input(view, slot, type).memory(), view.volume() / d, d, d, type);
  }

  // An input's gradient, to which rows are added one by one.
  struct Gradient {
    std::vector<Output> output;  // none if it is not wanted

    Gradient(Experts& kernel, const KernelTask& task, std::size_t i, int slot) {
      if (!task.wants_input_grad(i)) return;
      output.emplace_back(task.input_grads[i], slot, task.adds_to_input_grad(i));
      kernel.device_.zero(data(), task.input_grads[i].volume());
    }
    float* data() const { return output.empty() ? nullptr : output[0].data(); }
    void commit() const {
      if (!output.empty()) output[0].commit();
    }
  };

  // Calls body(block) for all of the experts' rows, and none(expert) for experts without any.
  template <typename Body, typename None>
  void for_each_block(const Operands& of, Body&& body, None&& none) {
    const typename Device::Rows rows(of.gates, of.rows, of.experts);
    for (std::int64_t e = 0; e < of.experts; ++e) {
      const std::int64_t count = rows.count(e);
      if (count == 0) none(e);
      for (std::int64_t at = 0; at < count; at += kBlock) {
        body(Block{e, at == 0, rows.of(e) + at, std::min(kBlock, count - at),
                   std::min(kBlock, of.rows)});
      }
    }
  }

  Matrix gathered(const Matrix& from, const Block& block, int slot) {
    const Matrix m = device_.matrix(slot, block, from.cols, from.type);
    device_.gather(from, block, m);
    return m;
  }

  Matrix floats(int slot, const Block& block, std::int64_t cols) {
    return device_.matrix(slot, block, cols, DataType::float32);
  }

  // All but h.
  Hidden before_activation(const Operands& of, const Block& block, const Matrix& x) {
    Hidden hidden;
    hidden.a = floats(kUp, block, of.units);
    device_.multiply(x, of.weight(up, block.expert).transposed(), hidden.a);
    if (of.gated()) {
      hidden.gated = floats(kGated, block, of.units);
      device_.multiply(x, of.weight(gate, block.expert).transposed(), hidden.gated);
    }
    return hidden;
  }

  void differentiate(KernelTask& task, const Operands& of, const Block& block, const Matrix& dy,
                     const Gradient& dx, const Gradient& dgates) {
    const Matrix x = gathered(of.x, block, kRows);
    const Matrix g = gathered(dy, block, kRowGrads);
    const Hidden hidden = before_activation(of, block, x);
    const Matrix p = floats(kHiddenGrad, block, of.units);
    device_.multiply(g, of.weight(down, block.expert), p);
    Hidden grads;
    grads.a = device_.matrix(kUpGrad, block, of.units, of.type);
    grads.h = device_.matrix(kHidden, block, of.units, of.type);
    if (of.gated()) grads.gated = device_.matrix(kGatedGrad, block, of.units, of.type);
    device_.differentiate(f_, of, block, hidden, p, grads, dgates.data());
    weight_gradient(task, block, down, g, grads.h);
    weight_gradient(task, block, up, grads.a, x);
    if (of.gated()) weight_gradient(task, block, gate, grads.gated, x);
    if (dx.data() == nullptr) return;
    const Matrix result = floats(kResult, block, of.d);
    device_.multiply(grads.a, of.weight(up, block.expert), result);
    if (of.gated()) {
      device_.multiply(grads.gated, of.weight(gate, block.expert), result, true);
    }
    device_.add(result, block, nullptr, 0, dx.data());
  }

  // a^T b, of the block's expert
  void weight_gradient(KernelTask& task, const Block& block, Weight which, const Matrix& a,
                       const Matrix& b) {
    if (!task.wants_weight_grad(which)) return;
    const typename Device::OutputMatrix dw(subview(task.weight_grads[which], block.expert),
                                           kWeightGrad + which,
                                           !block.first || task.adds_to_weight_grad(which));
    device_.multiply(a.transposed(), b, dw.matrix(), dw.adds());
    dw.commit();
  }

  ExpertActivation f_;
  Device device_;
};

}  // namespace flexlegion::experts
