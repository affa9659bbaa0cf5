// multi_head_attention: softmax(q k^T / sqrt(d)) v for each sample and head, over queries
// (n, s, heads, d), keys (n, t, heads, d) and values (n, t, heads, e).
//
// Operands are packed with a matrix a sample and head, so that one product does many of these. The
// scores of some of them are in memory at a time; the backward pass computes them again.
#include <algorithm>
#include <cmath>
#include <utility>

#include "gpu/blas.h"
#include "gpu/row_softmax.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

constexpr std::int64_t kScores = 1 << 25;  // at a time, unless that is less than one matrix

enum Slot {
  kQueries,
  kKeys,
  kValues,
  kOutput,  // or its gradient
  kQueryGrads,
  kKeyGrads,
  kValueGrads,
  kWeights,
  kScoreGrads
};

// The same tile as (n, heads, rows, channels).
TensorView by_head(const TensorView& view) {
  TensorView result = view;
  std::swap(result.tile.lo[1], result.tile.lo[2]);
  std::swap(result.tile.hi[1], result.tile.hi[2]);
  std::swap(result.stride[1], result.stride[2]);
  std::swap(result.shape[1], result.shape[2]);
  return result;
}

// Packed matrices, one a sample and head.
struct Heads {
  float* data = nullptr;  // null: a gradient that nobody wants
  std::int64_t rows = 0, cols = 0;

  Heads(float* packed, const TensorView& tile)
      : data(packed), rows(tile.extent(1)), cols(tile.extent(3)) {}
  Matrix some(std::int64_t first, std::int64_t count) const {
    return {data + first * rows * cols, rows, cols, cols, 1, count, rows * cols};
  }
};

Heads packed(const TensorView& view, Slot slot) {
  return {DenseInput(by_head(view), slot).data(), view};
}

// The gradient of input i, to be packed; absent if nobody wants it.
class Gradient {
 public:
  Gradient(const KernelTask& task, std::size_t i, Slot slot)
      : tile_(task.wants_input_grad(i) ? task.input_grads[i] : TensorView()),
        result_(by_head(tile_), slot, task.adds_to_input_grad(i)) {}
  bool wanted() const { return tile_.present(); }
  Matrix some(std::int64_t first, std::int64_t count) const {
    return Heads(result_.data(), tile_).some(first, count);
  }
  void commit() const { result_.commit(); }

 private:
  TensorView tile_;
  DenseOutput result_;
};

class MultiHeadAttention : public Kernel {
 public:
  explicit MultiHeadAttention(const Attributes& attributes)
      : causal_(attributes.integer("causal") != 0) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Operands x(task);
    const DenseOutput y(by_head(task.outputs[0]), kOutput);
    const Heads outputs(y.data(), task.outputs[0]);
    for_each_block(x, [&](std::int64_t first, std::int64_t count) {
      multiply(weights(x, first, count), x.v.some(first, count), outputs.some(first, count));
    });
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return no_gradients(task);
    const Operands x(task);
    const Heads dy = packed(task.output_grads[0], kOutput);
    const Gradient dq(task, 0, kQueryGrads), dk(task, 1, kKeyGrads), dv(task, 2, kValueGrads);
    for_each_block(x, [&](std::int64_t first, std::int64_t count) {
      const Matrix w = weights(x, first, count), grads = dy.some(first, count);
      if (dv.wanted()) multiply(w.transposed(), grads, dv.some(first, count));
      if (!dq.wanted() && !dk.wanted()) return;
      const Matrix ds = scores(kScoreGrads, x, count);
      multiply(grads, x.v.some(first, count).transposed(), ds);
      softmax_rows_backward(w.data, ds.data, count * ds.rows, ds.cols);
      if (dq.wanted()) {
        multiply(ds, x.k.some(first, count), dq.some(first, count), false, x.scale);
      }
      if (dk.wanted()) {
        multiply(ds.transposed(), x.q.some(first, count), dk.some(first, count), false, x.scale);
      }
    });
    for (const Gradient* gradient : {&dq, &dk, &dv}) gradient->commit();
  }

 private:
  struct Operands {
    std::int64_t matrices, first_query;
    Heads q, k, v;
    float scale;

    explicit Operands(const KernelTask& task)
        : matrices(task.inputs[0].extent(0) * task.inputs[0].extent(2)),
          first_query(task.inputs[0].tile.lo[1]),
          q(packed(task.inputs[0], kQueries)),
          k(packed(task.inputs[1], kKeys)),
          v(packed(task.inputs[2], kValues)),
          scale(1.0f / std::sqrt(static_cast<float>(q.cols))) {}
  };

  // body(first, count) of the matrices whose scores are in memory together.
  template <typename Body>
  static void for_each_block(const Operands& x, const Body& body) {
    const std::int64_t most = std::max<std::int64_t>(1, kScores / (x.q.rows * x.k.rows));
    for (std::int64_t first = 0; first < x.matrices; first += most) {
      body(first, std::min(most, x.matrices - first));
    }
  }

  static Matrix scores(Slot slot, const Operands& x, std::int64_t count) {
    const std::int64_t rows = x.q.rows, cols = x.k.rows;
    return {scratch(slot, count * rows * cols), rows, cols, cols, 1, count, rows * cols};
  }

  // The softmax of some matrices' scores.
  Matrix weights(const Operands& x, std::int64_t first, std::int64_t count) const {
    const Matrix result = scores(kWeights, x, count);
    multiply(x.q.some(first, count), x.k.some(first, count).transposed(), result, false, x.scale);
    const RowLengths lengths{result.cols, causal_, x.first_query + 1, result.rows};
    softmax_rows(result.data, count * result.rows, result.cols, lengths);
    return result;
  }

  // Of a tile without queries.
  static void no_gradients(const KernelTask& task) {
    for (std::size_t i = 0; i < task.input_grads.size(); ++i) {
      if (task.wants_input_grad(i) && !task.adds_to_input_grad(i)) {
        gpu::zero_view(task.input_grads[i]);
      }
    }
  }

  bool causal_;
};

const RegisterKernel registered(
    "multi_head_attention",
    [](const Attributes& a) { return std::make_unique<MultiHeadAttention>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
