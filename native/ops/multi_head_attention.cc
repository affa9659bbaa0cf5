// multi_head_attention: softmax(q k^T / sqrt(d)) v for each sample and head, over queries
// (n, s, heads, d), keys (n, t, heads, d) and values (n, t, heads, e).
//
// Queries are taken in blocks whose scores stay in the cache; nothing of the size s * t is ever in
// memory, and the backward pass computes the scores again. Heads are matrices whose rows lie apart,
// used where they stand. In causal attention a block reads the keys up to its last query only.
#include <algorithm>
#include <cmath>

#include "ops/products.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

constexpr std::int64_t kRows = 64;           // queries of a block
constexpr std::int64_t kScores = 64 * 1024;  // of a block, unless that is less than one head

enum Slot {  // scratch memory
  kQueries,
  kKeys,
  kValues,
  kOutput,  // or its gradient
  kQueryGrads,
  kKeyGrads,
  kValueGrads,
  kExponentials,
  kScoreGrads,
  kInverseSums,
  kScaledGrads
};

FLEXLEGION_SIMD void scale_row(const float* x, float factor, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

// From one query's exponentials e, and the gradients of its weights times its inverse sum (g), the
// gradients of its scores: g_i = scale e_i (g_i - inverse_sum * sum of e g).
FLEXLEGION_SIMD void softmax_backward(const float* e, float inverse_sum, float scale, float* g,
                                      std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += e[i] * g[i];
  const float mean = sum * inverse_sum;
  for (std::int64_t i = 0; i < n; ++i) g[i] = scale * e[i] * (g[i] - mean);
}

// A tile whose channels are contiguous: packed where they are not.
TensorView rows_of(const TensorView& view, Slot slot) {
  if (view.dense_from(3)) return view;
  return dense_view(DenseInput(view, slot).data(), view.tile, view.shape);
}

// The gradient of input i, if the trainer wants it (else absent).
OutputTile gradient_of(const KernelTask& task, std::size_t i, Slot slot) {
  const TensorView tile = i < task.input_grads.size() ? task.input_grads[i] : TensorView();
  const bool in_place = !tile.present() || tile.dense_from(3);
  return OutputTile(tile, slot, task.adds_to_input_grad(i), in_place);
}

// Some queries of some heads of one sample, and the keys that they attend to.
struct Block {
  std::int64_t sample, head, heads, row, rows, keys;
  bool first;  // of these heads' blocks

  Matrix queries(const TensorView& view) const { return matrices(view, row, rows); }
  Matrix attended(const TensorView& view) const { return matrices(view, 0, keys); }
  // Of the same queries, in scratch memory, a matrix a head.
  Matrix packed(Slot slot, std::int64_t cols) const {
    return {scratch(slot, heads * rows * cols), rows, cols, cols, 1, heads, rows * cols};
  }

 private:
  Matrix matrices(const TensorView& view, std::int64_t from, std::int64_t count) const {
    float* const data =
        view.f32() + sample * view.stride[0] + from * view.stride[1] + head * view.stride[2];
    return {data, count, view.extent(3), view.stride[1], 1, heads, view.stride[2]};
  }
};

// Calls body(row of the matrices, index among all of them, index within its matrix).
template <typename Body>
void for_each_matrix_row(const Matrix& m, Body&& body) {
  for (std::int64_t b = 0; b < m.batch; ++b) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      body(m.data + b * m.batch_stride + r * m.row, b * m.rows + r, r);
    }
  }
}

class MultiHeadAttention : public Kernel {
 public:
  explicit MultiHeadAttention(const Attributes& attributes)
      : causal_(attributes.integer("causal") != 0) {}
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView q = rows_of(task.inputs[0], kQueries), k = rows_of(task.inputs[1], kKeys),
                     v = rows_of(task.inputs[2], kValues);
    const OutputTile y(task.outputs[0], kOutput, false, task.outputs[0].dense_from(3));
    for_each_block(q, k, [&](const Block& block) {
      const Weights weights = compute_weights(block, q, k);
      const Matrix out = block.queries(y.view());
      products_.multiply(weights.exponentials, block.attended(v), out);
      for_each_matrix_row(out, [&](float* row, std::int64_t i, std::int64_t) {
        scale_row(row, weights.inverse_sums[i], row, out.cols);
      });
    });
    y.commit();
  }

  void backward(KernelTask& task) override {
    const TensorView q = rows_of(task.inputs[0], kQueries), k = rows_of(task.inputs[1], kKeys),
                     v = rows_of(task.inputs[2], kValues),
                     dy = rows_of(task.output_grads[0], kOutput);
    const OutputTile dq = gradient_of(task, 0, kQueryGrads), dk = gradient_of(task, 1, kKeyGrads),
                     dv = gradient_of(task, 2, kValueGrads);
    for (const OutputTile* grad : {&dk, &dv}) {  // of keys that no query attends to
      const bool all = !q.tile.empty() && attended_keys(q, k, q.extent(1)) == k.extent(1);
      if (grad->view().present() && !grad->adds() && !all) zero_view(grad->view());
    }
    for_each_block(q, k, [&](const Block& block) {
      const Weights weights = compute_weights(block, q, k);
      const Matrix scaled = scaled_gradients(block, dy, weights);
      if (dv.view().present()) {
        products_.multiply(weights.exponentials.transposed(), scaled, block.attended(dv.view()),
                           adding(!block.first || dv.adds()));
      }
      if (!dq.view().present() && !dk.view().present()) return;
      const Matrix ds = score_gradients(block, scaled, v, weights);
      if (dq.view().present()) {
        products_.multiply(ds, block.attended(k), block.queries(dq.view()), adding(dq.adds()));
      }
      if (dk.view().present()) {
        products_.multiply(ds.transposed(), block.queries(q), block.attended(dk.view()),
                           adding(!block.first || dk.adds()));
      }
    });
    for (const OutputTile* grad : {&dq, &dk, &dv}) grad->commit();
  }

 private:
  // The softmax of a block's scores: row i is exponentials * inverse_sums[i].
  struct Weights {
    Matrix exponentials;
    const float* inverse_sums;
    float scale;  // of the scores
  };

  static ProductOptions adding(bool adds) {
    ProductOptions options;
    options.adds = adds;
    return options;
  }

  // The number of keys that the first `rows` queries of a tile attend to.
  std::int64_t attended_keys(const TensorView& q, const TensorView& k, std::int64_t rows) const {
    return causal_ ? std::min(k.extent(1), q.tile.lo[1] + rows) : k.extent(1);
  }

  // The last queries come first: they write the gradients of all keys, and others add to them.
  template <typename Body>
  void for_each_block(const TensorView& q, const TensorView& k, Body&& body) const {
    if (q.tile.empty()) return;
    const std::int64_t queries = q.extent(1), heads = q.extent(2);
    const std::int64_t last = (queries - 1) / kRows * kRows;
    const std::int64_t scores = std::min(kRows, queries) * k.extent(1);
    const std::int64_t group = std::max<std::int64_t>(1, kScores / scores);
    for (std::int64_t n = 0; n < q.extent(0); ++n) {
      for (std::int64_t head = 0; head < heads; head += group) {
        for (std::int64_t row = last; row >= 0; row -= kRows) {
          const std::int64_t rows = std::min(kRows, queries - row);
          body(Block{n, head, std::min(group, heads - head), row, rows,
                     attended_keys(q, k, row + rows), row == last});
        }
      }
    }
  }

  Weights compute_weights(const Block& block, const TensorView& q, const TensorView& k) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(q.extent(3)));
    const Matrix scores = block.packed(kExponentials, block.keys);
    float* const inverse_sums = scratch(kInverseSums, block.heads * block.rows);
    products_.multiply(block.queries(q), block.attended(k).transposed(), scores);
    for_each_matrix_row(scores, [&](float* row, std::int64_t i, std::int64_t r) {
      const std::int64_t keys = attended_keys(q, k, block.row + r + 1);
      inverse_sums[i] = 1.0f / row_softmax(row, keys, row, scale).sum;
      std::fill(row + keys, row + block.keys, 0.0f);
    });
    return {scores, inverse_sums, scale};
  }

  // The output's gradients, each times its query's inverse sum.
  static Matrix scaled_gradients(const Block& block, const TensorView& dy, const Weights& weights) {
    const Matrix result = block.packed(kScaledGrads, dy.extent(3)), from = block.queries(dy);
    for_each_matrix_row(from, [&](const float* row, std::int64_t i, std::int64_t) {
      scale_row(row, weights.inverse_sums[i], result.data + i * result.row, result.cols);
    });
    return result;
  }

  Matrix score_gradients(const Block& block, const Matrix& scaled, const TensorView& v,
                         const Weights& weights) {
    const Matrix grads = block.packed(kScoreGrads, block.keys);
    products_.multiply(scaled, block.attended(v).transposed(), grads);
    for_each_matrix_row(grads, [&](float* row, std::int64_t i, std::int64_t) {
      softmax_backward(weights.exponentials.data + i * block.keys, weights.inverse_sums[i],
                       weights.scale, row, block.keys);
    });
    return grads;
  }

  bool causal_;
  Products products_;
};

const RegisterKernel registered("multi_head_attention", [](const Attributes& a) {
  return std::make_unique<MultiHeadAttention>(a);
});

}  // namespace
}  // namespace flexlegion
