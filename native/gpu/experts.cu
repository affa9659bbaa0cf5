// experts: output(row) = sum of gate(row, e) down(e) h(row, e) over the experts e whose gate is not
// 0, with h(row, e) = f(up(e) x(row)), or that times gate(e) x(row).
//
// As in ops/experts.cc, the rows of an expert are gathered, in blocks. How many rows each expert
// has decides which products there are: the host waits for these numbers, once a pass.
#include <algorithm>
#include <vector>

#include "gpu/blas.h"
#include "ops/expert_activation.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

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
  kHidden,
  kHiddenGrad,
  kResult,
  kWeight,                   // of three weights
  kWeightGrad = kWeight + 3  // of three weights
};

enum Weight { up, down, gate };

constexpr std::int64_t kBlock = 512;  // rows of an expert that are computed at once

// In device memory (experts, rows): the rows whose gate for the expert is not 0, as many as
// `counts` then tells. A thread for each expert goes through all rows.
const std::int32_t* chosen_rows(const float* gates, std::int64_t rows, std::int64_t experts,
                                std::vector<std::int32_t>& counts) {
  auto* const list = reinterpret_cast<std::int32_t*>(scratch(kChosen, experts * rows));
  auto* const sizes = reinterpret_cast<std::int32_t*>(scratch(kCounts, experts));
  for_each(experts, [=] FL_BODY(std::int64_t e) {
    std::int32_t count = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (gates[r * experts + e] != 0) list[e * rows + count++] = static_cast<std::int32_t>(r);
    }
    sizes[e] = count;
  });
  counts.resize(static_cast<std::size_t>(experts));
  read_integers(sizes, experts, counts.data());
  return list;
}

// A task's operands, as dense matrices of its rows.
struct Operands {
  std::int64_t rows, d, units, experts;
  const float *x, *gates;
  std::vector<float*> weights;  // up (experts, units, d), down (experts, d, units), gate as up
  const std::int32_t* chosen;   // (experts, rows): an expert's rows, as many as it has
  std::vector<std::int32_t> counts;

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
    chosen = chosen_rows(gates, rows, experts, counts);
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
  bool first;                // of the expert's
  const std::int32_t* rows;  // in device memory
  std::int64_t count, most;  // its rows; of any block

  // In scratch memory that suffices for any block: a slot that grows leaves its memory unused.
  Matrix matrix(int slot, std::int64_t cols) const {
    return Matrix::row_major(scratch(slot, most * cols), count, cols, cols);
  }
  // The rows of a dense matrix.
  Matrix gathered(const float* from, std::int64_t cols, int slot) const {
    const Matrix m = matrix(slot, cols);
    for_each(count * cols, [=, numbers = rows] FL_BODY(std::int64_t i) {
      m.data[i] = from[numbers[i / cols] * cols + i % cols];
    });
    return m;
  }
  // to(row) += by(row) m(i), for each row i of the block; `by` is null for 1.
  void add(const Matrix& m, const float* by, std::int64_t by_stride, float* to) const {
    for_each(count * m.cols, [=, numbers = rows] FL_BODY(std::int64_t i) {
      const std::int64_t row = numbers[i / m.cols];
      to[row * m.cols + i % m.cols] += (by == nullptr ? 1.0f : by[row * by_stride]) * m.data[i];
    });
  }
};

// Calls body(block) for all of the experts' rows, and none(expert) for experts without any.
template <typename Body, typename None>
void for_each_block(const Operands& of, Body&& body, None&& none) {
  for (std::int64_t e = 0; e < of.experts; ++e) {
    const std::int64_t count = of.counts[static_cast<std::size_t>(e)];
    if (count == 0) none(e);
    for (std::int64_t at = 0; at < count; at += kBlock) {
      body(Block{e, at == 0, of.chosen + e * of.rows + at, std::min(kBlock, count - at),
                 std::min(kBlock, of.rows)});
    }
  }
}

void fill_zeros(float* data, std::int64_t n) {
  for_each(n, [=] FL_BODY(std::int64_t i) { data[i] = 0; });
}

// What is between the layers: up(e) x, gate(e) x, and h.
struct Hidden {
  Matrix a, gated, h;
};

Hidden hidden_of(ExpertActivation f, const Operands& of, const Block& block, const Matrix& x) {
  Hidden hidden;
  hidden.a = block.matrix(kUp, of.units);
  hidden.h = block.matrix(kHidden, of.units);
  multiply(x, of.weight(up, block.expert).transposed(), hidden.a);
  if (of.gated()) {
    hidden.gated = block.matrix(kGated, of.units);
    multiply(x, of.weight(gate, block.expert).transposed(), hidden.gated);
  }
  const float *const a = hidden.a.data, *const other = hidden.gated.data;
  float* const h = hidden.h.data;
  for_each(hidden.a.rows * hidden.a.cols, [=] FL_BODY(std::int64_t i) {
    h[i] = f.value(a[i]) * (other == nullptr ? 1.0f : other[i]);
  });
  return hidden;
}

// From the gradient p of h / gate to the gradients before the activation, in place of a and
// `gated`; h becomes h times the row's gate, whose gradient is the row's sum of p h.
void before_activation(ExpertActivation f, const Operands& of, const Block& block,
                       const Hidden& hidden, const Matrix& p, float* dgates) {
  const float* const gates = of.gates + block.expert;
  for_each_team(block.count, of.units,
                [=, units = of.units, experts = of.experts, rows = block.rows, e = block.expert,
                 p = p.data, a = hidden.a.data, other = hidden.gated.data,
                 h = hidden.h.data] FL_BODY(const Team& team, std::int64_t i) {
                  const std::int64_t row = rows[i];
                  const float weight = gates[row * experts];
                  float mine = 0;
                  for (std::int64_t k = i * units + team.rank; k < (i + 1) * units;
                       k += team.size) {
                    mine += p[k] * h[k];
                    h[k] *= weight;
                    const float grad = weight * p[k], value = f.value(a[k]), slope = f.slope(a[k]);
                    a[k] = grad * slope * (other == nullptr ? 1.0f : other[k]);
                    if (other != nullptr) other[k] = grad * value;
                  }
                  const float sum = team.sum(mine);
                  if (team.rank == 0 && dgates != nullptr) dgates[row * experts + e] = sum;
                });
}

class Experts : public Kernel {
 public:
  explicit Experts(const Attributes& attributes) : f_(attributes.text("activation")) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Operands of(task);
    const DenseOutput y(task.outputs[0], kOutput);
    fill_zeros(y.data(), of.rows * of.d);
    for_each_block(
        of,
        [&](const Block& block) {
          const Hidden hidden = hidden_of(f_, of, block, block.gathered(of.x, of.d, kRows));
          const Matrix result = block.matrix(kResult, of.d);
          multiply(hidden.h, of.weight(down, block.expert).transposed(), result);
          block.add(result, of.gates + block.expert, of.experts, y.data());
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
        of, [&](const Block& block) { differentiate(task, of, block, dy, dx, dgates); },
        [&](std::int64_t e) {
          for (std::size_t i = 0; i < task.weights.size(); ++i) {
            if (!task.wants_weight_grad(i) || task.adds_to_weight_grad(i)) continue;
            gpu::zero_view(subview(task.weight_grads[i], e));
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
      fill_zeros(data(), task.input_grads[i].volume());
    }
    float* data() const { return output.empty() ? nullptr : output[0].data(); }
    void commit() const {
      if (!output.empty()) output[0].commit();
    }
  };

  void differentiate(KernelTask& task, const Operands& of, const Block& block, const float* dy,
                     const Gradient& dx, const Gradient& dgates) {
    const Matrix x = block.gathered(of.x, of.d, kRows), g = block.gathered(dy, of.d, kRowGrads);
    const Hidden hidden = hidden_of(f_, of, block, x);
    const Matrix p = block.matrix(kHiddenGrad, of.units);
    multiply(g, of.weight(down, block.expert), p);
    before_activation(f_, of, block, hidden, p, dgates.data());
    weight_gradient(task, block, down, g, hidden.h);
    weight_gradient(task, block, up, hidden.a, x);
    if (of.gated()) weight_gradient(task, block, gate, hidden.gated, x);
    if (dx.data() == nullptr) return;
    const Matrix result = block.matrix(kResult, of.d);
    multiply(hidden.a, of.weight(up, block.expert), result);
    if (of.gated()) multiply(hidden.gated, of.weight(gate, block.expert), result, true);
    block.add(result, nullptr, 0, dx.data());
  }

  // a^T b, of the block's expert
  static void weight_gradient(KernelTask& task, const Block& block, Weight which, const Matrix& a,
                              const Matrix& b) {
    if (!task.wants_weight_grad(which)) return;
    const OutputMatrix dw(subview(task.weight_grads[which], block.expert), kWeightGrad + which,
                          !block.first || task.adds_to_weight_grad(which));
    multiply(a.transposed(), b, dw.matrix(), dw.adds());
    dw.commit();
  }

  ExpertActivation f_;
};

const RegisterKernel registered(
    "experts", [](const Attributes& a) { return std::make_unique<Experts>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
