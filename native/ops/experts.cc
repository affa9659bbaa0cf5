// experts: output(row) = sum of gate(row, e) down(e) h(row, e) over the experts e whose gate is not
// 0, with h(row, e) = f(up(e) x(row)), or that times gate(e) x(row).
//
// The rows of an expert are gathered, in blocks, so that its network is a few matrix products; what
// they give is added where the rows came from. The backward pass computes h again. With g the
// gathered gradients of the outputs, and p = g down(e), a gate's gradient is the sum of p h over
// the units: the forward pass's last product is not needed again.
#include <algorithm>
#include <vector>

#include "ops/expert_activation.h"
#include "ops/products.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

enum Slot {
  kInput,
  kGates,
  kOutput,
  kOutputGrad,
  kInputGrad,
  kGateGrad,
  kRows,
  kRowGrads,
  kUp,
  kGated,
  kHidden,
  kHiddenGrad,
  kResult,
  kWeight,                   // of three weights
  kWeightGrad = kWeight + 3  // of three weights
};

enum Weight { up, down, gate };

constexpr std::int64_t kBlock = 512;   // rows of an expert that are computed at once
constexpr std::int64_t kRounded = 16;  // products are prepared for multiples of that many rows

FLEXLEGION_SIMD void activate(ExpertActivation f, const float* a, const float* gated,
                              std::int64_t n, float* h) {
  for (std::int64_t i = 0; i < n; ++i) h[i] = f.value(a[i]);
  if (gated == nullptr) return;
  for (std::int64_t i = 0; i < n; ++i) h[i] *= gated[i];
}

// One row of a block: from p to the gradients before the activation, in place of a and `gated`; h
// becomes weight * h. Returns the gate's gradient.
FLEXLEGION_SIMD float differentiate(ExpertActivation f, float weight, const float* p,
                                    std::int64_t n, float* a, float* gated, float* h) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += p[i] * h[i];
  for (std::int64_t i = 0; i < n; ++i) h[i] *= weight;
  if (gated == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) a[i] = weight * p[i] * f.slope(a[i]);
    return sum;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const float grad = weight * p[i], value = f.value(a[i]);
    a[i] = grad * gated[i] * f.slope(a[i]);
    gated[i] = grad * value;
  }
  return sum;
}

FLEXLEGION_SIMD void add_scaled(const float* x, float by, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += by * x[i];
}

// A task's operands, as dense matrices of its rows.
struct Operands {
  std::int64_t rows, d, units, experts;
  const float *x, *gates;
  std::vector<float*> weights;  // up (experts, units, d), down (experts, d, units), gate as up

  explicit Operands(const KernelTask& task)
      : d(task.weights[up].extent(2)),
        units(task.weights[up].extent(1)),
        experts(task.weights[up].extent(0)) {
    rows = task.inputs[0].volume() / d;
    x = DenseInput(task.inputs[0], kInput).data();
    gates = DenseInput(task.inputs[1], kGates).data();
    for (std::size_t i = 0; i < task.weights.size(); ++i) {
      weights.push_back(DenseInput(task.weights[i], kWeight + static_cast<int>(i)).data());
    }
  }
  bool gated() const { return weights.size() > gate; }
  Matrix weight(Weight which, std::int64_t expert) const {
    float* const data = weights[which] + expert * units * d;
    return which == down ? Matrix::row_major(data, d, units, units)
                         : Matrix::row_major(data, units, d, d);
  }
};

// Some of the rows that an expert computes.
struct Block {
  std::int64_t expert;
  bool first;  // of the expert's
  const std::int64_t* rows;
  std::int64_t count;

  std::int64_t rounded() const { return (count + kRounded - 1) / kRounded * kRounded; }
  Matrix matrix(int slot, std::int64_t cols) const {
    return Matrix::row_major(scratch(slot, rounded() * cols), rounded(), cols, cols);
  }
  // The rows of a dense matrix; those that round up their number are 0.
  Matrix gathered(const float* from, std::int64_t cols, int slot) const {
    const Matrix m = matrix(slot, cols);
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(from + rows[i] * cols, cols, m.data + i * cols);
    }
    std::fill(m.data + count * cols, m.data + m.rows * cols, 0.0f);
    return m;
  }
};

// Calls body(block) for all of the experts' rows, and none(expert) for experts without any.
template <typename Body, typename None>
void for_each_block(const Operands& of, Body&& body, None&& none) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t e = 0; e < of.experts; ++e) {
    chosen.clear();
    for (std::int64_t r = 0; r < of.rows; ++r) {
      if (of.gates[r * of.experts + e] != 0) chosen.push_back(r);
    }
    const auto count = static_cast<std::int64_t>(chosen.size());
    if (count == 0) none(e);
    for (std::int64_t at = 0; at < count; at += kBlock) {
      body(Block{e, at == 0, chosen.data() + at, std::min(kBlock, count - at)});
    }
  }
}

class Experts : public Kernel {
 public:
  explicit Experts(const Attributes& attributes) : f_(attributes.text("activation")) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Operands of(task);
    const DenseOutput y(task.outputs[0], kOutput);
    std::fill_n(y.data(), of.rows * of.d, 0.0f);
    for_each_block(
        of,
        [&](const Block& block) {
          const Hidden hidden(*this, of, block, block.gathered(of.x, of.d, kRows));
          const Matrix result = block.matrix(kResult, of.d);
          products_.multiply(hidden.h, of.weight(down, block.expert).transposed(), result);
          for (std::int64_t i = 0; i < block.count; ++i) {
            const std::int64_t r = block.rows[i];
            add_scaled(result.data + i * of.d, of.gates[r * of.experts + block.expert], of.d,
                       y.data() + r * of.d);
          }
        },
        [](std::int64_t) {});
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return;
    const Operands of(task);
    const float* const dy = DenseInput(task.output_grads[0], kOutputGrad).data();
    const Gradient dx(task, 0, kInputGrad), dgates(task, 1, kGateGrad);
    for_each_block(
        of, [&](const Block& block) { differentiate_block(task, of, block, dy, dx, dgates); },
        [&](std::int64_t e) {
          for (std::size_t i = 0; i < task.weights.size(); ++i) {
            if (!task.wants_weight_grad(i) || task.adds_to_weight_grad(i)) continue;
            zero_view(subview(task.weight_grads[i], e));
          }
        });
    dx.commit();
    dgates.commit();
  }

 private:
  // An input's gradient, to which rows are added one by one.
  struct Gradient {
    std::vector<DenseOutput> output;  // none if it is not wanted

    Gradient(const KernelTask& task, std::size_t i, int slot) {
      if (!task.wants_input_grad(i)) return;
      output.emplace_back(task.input_grads[i], slot, task.adds_to_input_grad(i));
      std::fill_n(data(), task.input_grads[i].volume(), 0.0f);
    }
    float* data() const { return output.empty() ? nullptr : output[0].data(); }
    void commit() const {
      if (!output.empty()) output[0].commit();
    }
  };

  // What is between the layers: up(e) x, gate(e) x, and h.
  struct Hidden {
    Matrix a, gated, h;

    Hidden(Experts& kernel, const Operands& of, const Block& block, const Matrix& x)
        : a(block.matrix(kUp, of.units)), h(block.matrix(kHidden, of.units)) {
      kernel.products_.multiply(x, of.weight(up, block.expert).transposed(), a);
      if (of.gated()) {
        gated = block.matrix(kGated, of.units);
        kernel.products_.multiply(x, of.weight(gate, block.expert).transposed(), gated);
      }
      activate(kernel.f_, a.data, gated.data, a.rows * a.cols, h.data);
    }
  };

  void differentiate_block(KernelTask& task, const Operands& of, const Block& block,
                           const float* dy, const Gradient& dx, const Gradient& dgates) {
    const Matrix x = block.gathered(of.x, of.d, kRows), g = block.gathered(dy, of.d, kRowGrads);
    const Hidden hidden(*this, of, block, x);
    const Matrix p = block.matrix(kHiddenGrad, of.units);
    products_.multiply(g, of.weight(down, block.expert), p);
    for (std::int64_t i = 0; i < p.rows; ++i) {
      const std::int64_t at = i * of.units;
      const std::int64_t gate_at = i < block.count ? block.rows[i] * of.experts + block.expert : -1;
      float* const gated = of.gated() ? hidden.gated.data + at : nullptr;
      const float sum = differentiate(f_, gate_at < 0 ? 0.0f : of.gates[gate_at], p.data + at,
                                      of.units, hidden.a.data + at, gated, hidden.h.data + at);
      if (gate_at >= 0 && dgates.data() != nullptr) dgates.data()[gate_at] = sum;
    }
    weight_gradient(task, block, down, g, hidden.h);
    weight_gradient(task, block, up, hidden.a, x);
    if (of.gated()) weight_gradient(task, block, gate, hidden.gated, x);
    if (dx.data() == nullptr) return;
    const Matrix result = block.matrix(kResult, of.d);
    products_.multiply(hidden.a, of.weight(up, block.expert), result);
    if (of.gated()) {
      ProductOptions adds;
      adds.adds = true;
      products_.multiply(hidden.gated, of.weight(gate, block.expert), result, adds);
    }
    for (std::int64_t i = 0; i < block.count; ++i) {
      add_scaled(result.data + i * of.d, 1.0f, of.d, dx.data() + block.rows[i] * of.d);
    }
  }

  // a^T b, of the block's expert
  void weight_gradient(KernelTask& task, const Block& block, Weight which, const Matrix& a,
                       const Matrix& b) {
    if (!task.wants_weight_grad(which)) return;
    const OutputMatrix dw(subview(task.weight_grads[which], block.expert), kWeightGrad + which,
                          !block.first || task.adds_to_weight_grad(which));
    ProductOptions options;
    options.adds = dw.adds();
    products_.multiply(a.transposed(), b, dw.matrix(), options);
    dw.commit();
  }

  ExpertActivation f_;
  Products products_;
};

const RegisterKernel registered("experts",
                                [](const Attributes& a) { return std::make_unique<Experts>(a); });

}  // namespace
}  // namespace flexlegion
