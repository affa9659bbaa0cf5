// multi_head_attention: softmax(scale q k^T + bias) v for each sample and head, over queries
// (n, s, heads, d), keys (n, t, groups, d) and values (n, t, groups, e). Heads in a row share a
// group's keys and values. The bias (n, heads, s, t) may be absent, and of extent 1 where it is the
// same for all; a query whose biases are all -infinity attends to nothing. While training, weights
// may be dropped.
//
// Queries are taken in blocks whose scores stay in the cache; nothing of the size s * t is ever in
// memory, and the backward pass computes the scores again. Heads are matrices whose rows lie apart,
// used where they stand. In causal attention a block reads the keys up to its last query only.
//
// Where queries are bfloat16, so are the factors of all products: exponentials, the gradients of
// scores. Scores, sums and what is added up over blocks are floats.
//
// Why blocks of queries and whole rows of keys: a row's softmax needs all of its scores, and kRows
// rows of them fit the cache, so that the running maxima of FlashAttention (Dao et al. 2022), for
// blocks of keys as well, are not needed. For short sequences several heads make one block, so that
// products are large enough to be worth a call.
//
// The division by a softmax's sum is put off: outputs, e elements a query, are divided instead of
// weights, t elements a query. Backwards the output's gradients are scaled in its place.
//
// Costs of a block: two products forwards; backwards the first of them again, and four more. Memory
// beside the operands: the scores of one block.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/dropout.h"
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
  kScaledGrads,
  kBias,
  kBiasGrads,
  kKept,
  kFactor,
  kScaledFactor,
  kBiasRow = kScoreGrads  // which is written later
};

FLEXLEGION_SIMD void scale_row(const float* x, float factor, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

FLEXLEGION_SIMD void add_row(const float* x, float factor, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i] * factor;
}

FLEXLEGION_SIMD float sum_of(const float* x, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

// The exponentials of one query's scores x, in place: exp(scale x + bias - their maximum). Returns
// their sum, or 0 where all are -infinity. What is far below the maximum is exactly 0: masks leave
// much of that, and denormal numbers are slow.
FLEXLEGION_SIMD float biased_softmax(float* x, const float* bias, float scale, std::int64_t n) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity(), kSmallest = -87.0f;
  float maximum = kNothing;
#pragma omp simd reduction(max : maximum)
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = scale * x[i] + bias[i];
    maximum = x[i] > maximum ? x[i] : maximum;
  }
  if (maximum == kNothing) {  // or not a number, which stays
    for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] == kNothing ? 0.0f : x[i];
    return 0;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const float below = x[i] - maximum;
    x[i] = below < kSmallest ? 0.0f : vector_exp(below);
    sum += x[i];
  }
  return sum;
}

// What dropout keeps of some weights, the first of which has place `first`.
FLEXLEGION_SIMD void keep_row(const float* x, float* y, std::int64_t n, const DropoutMask& mask,
                              std::uint64_t first) {
  const std::uint64_t key = mask.key;
  const std::uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = drops(key, first + static_cast<std::uint64_t>(i), threshold) ? 0.0f : x[i] * scale;
  }
}

// From one query's exponentials e, what dropout keeps of them (k, or e itself), and the gradients
// of its weights times its inverse sum (g), the gradients of its scores:
// g_i = scale (k_i g_i - e_i inverse_sum * sum of k g).
FLEXLEGION_SIMD void softmax_backward(const float* e, const float* k, float inverse_sum,
                                      float scale, float* g, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += k[i] * g[i];
  const float mean = sum * inverse_sum;
  for (std::int64_t i = 0; i < n; ++i) g[i] = scale * (k[i] * g[i] - e[i] * mean);
}

// A tile of that type whose channels are contiguous: packed where they are not.
TensorView rows_of(const TensorView& view, Slot slot, DataType type = DataType::float32) {
  if (view.dense_from(3) && view.fits(type)) return view;
  return dense_view(DenseInput(view, slot, type).memory(), view.tile, view.shape, type);
}

// A dense matrix of floats as a factor of a product: rounded where factors are of another type.
Matrix factor(const Matrix& m, Slot slot, DataType type) {
  if (type == m.type) return m;
  Matrix rounded = m;
  rounded.data = scratch(slot, floats_for(m.batch * m.rows * m.cols, type));
  rounded.type = type;
  copy_view(view_of(rounded), view_of(m));
  return rounded;
}

// The gradient of input i, if the trainer wants it (else absent).
OutputTile gradient_of(const KernelTask& task, std::size_t i, Slot slot) {
  const TensorView tile = i < task.input_grads.size() ? task.input_grads[i] : TensorView();
  const bool in_place = !tile.present() || tile.dense_from(3);
  return OutputTile(tile, slot, task.adds_to_input_grad(i), in_place);
}

// What is added to scores, or its gradient; absent if there is none.
struct BiasTile {
  TensorView view;

  bool present() const { return view.present(); }
  bool same_for_all_keys() const { return view.extent(3) == 1; }
  // Of a query, counted from the tile's start.
  float* row(std::int64_t sample, std::int64_t head, std::int64_t query) const {
    const auto offset = [&](int d, std::int64_t i) {
      return view.extent(d) == 1 ? 0 : i * view.stride[d];
    };
    return view.f32() + offset(0, sample) + offset(1, head) + offset(2, query);
  }
};

// Some queries of some heads of one sample, and the keys that they attend to. Heads that share keys
// are in blocks of their own.
struct Block {
  std::int64_t sample, head, heads, group, row, rows, keys;
  bool first;  // of those that attend to these keys

  Matrix queries(const TensorView& view) const { return matrices(view, head, row, rows); }
  Matrix attended(const TensorView& view) const { return matrices(view, group, 0, keys); }
  // Of the same queries, in scratch memory, a matrix a head.
  Matrix packed(Slot slot, std::int64_t cols) const {
    return {scratch(slot, heads * rows * cols), rows, cols, cols, 1, heads, rows * cols};
  }

 private:
  Matrix matrices(const TensorView& view, std::int64_t first_head, std::int64_t from,
                  std::int64_t count) const {
    void* const data =
        view.at(sample * view.stride[0] + from * view.stride[1] + first_head * view.stride[2]);
    return {data, count, view.extent(3), view.stride[1], 1, heads, view.stride[2], view.type};
  }
};

// Calls body(row of the matrices, index among all of them, index within its matrix).
template <typename Body>
void for_each_matrix_row(const Matrix& m, Body&& body) {
  for (std::int64_t b = 0; b < m.batch; ++b) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      body(m.f32() + b * m.batch_stride + r * m.row, b * m.rows + r, r);
    }
  }
}

// With weights w = e / sum, forwards y = w v. Backwards dv = w^T dy, dw = dy v^T, dq = ds k and
// dk = ds^T q, where ds = scale w (dw - sum of w dw).
class MultiHeadAttention : public Kernel {
 public:
  explicit MultiHeadAttention(const Attributes& attributes)
      : causal_(attributes.integer("causal") != 0),
        scale_(static_cast<float>(attributes.number("scale"))),
        dropout_(attributes, "dropout") {}
  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    const Operands x(task);
    const OutputTile y(task.outputs[0], kOutput, false, task.outputs[0].dense_from(3));
    for_each_block(x, [&](const Block& block) {
      const Weights weights = compute_weights(block, x, task.run);
      const Matrix out = block.queries(y.view());
      products_.multiply(weights.factor, block.attended(x.v), out);
      for_each_matrix_row(out, [&](float* row, std::int64_t i, std::int64_t) {
        scale_row(row, weights.inverse_sums[i], row, out.cols);
      });
    });
    y.commit();
  }

  void backward(KernelTask& task) override {
    const Operands x(task);
    const TensorView dy = rows_of(task.output_grads[0], kOutput);
    const OutputTile dq = gradient_of(task, 0, kQueryGrads), dk = gradient_of(task, 1, kKeyGrads),
                     dv = gradient_of(task, 2, kValueGrads), db = gradient_of(task, 3, kBiasGrads);
    for (const OutputTile* grad : {&dk, &dv}) {  // of keys that no query attends to
      const bool all = !x.q.tile.empty() && attended_keys(x, x.q.extent(1)) == x.k.extent(1);
      if (grad->view().present() && !grad->adds() && !all) zero_view(grad->view());
    }
    if (db.view().present() && !db.adds()) zero_view(db.view());
    for_each_block(x, [&](const Block& block) {
      const Weights weights = compute_weights(block, x, task.run);
      const Matrix scaled = factor(scaled_gradients(block, dy, weights), kScaledFactor, x.q.type);
      if (dv.view().present()) {
        products_.multiply(weights.factor.transposed(), scaled, block.attended(dv.view()),
                           adding(!block.first || dv.adds()));
      }
      if (!dq.view().present() && !dk.view().present() && !db.view().present()) return;
      // ds was multiplied by scale; a bias, which is added after scaling, has it divided out again.
      const Matrix score_grads = score_gradients(block, scaled, x.v, weights);
      if (db.view().present()) add_bias_gradients(block, score_grads, {db.view()});
      const Matrix ds = factor(score_grads, kFactor, x.q.type);
      if (dq.view().present()) {
        products_.multiply(ds, block.attended(x.k), block.queries(dq.view()), adding(dq.adds()));
      }
      if (dk.view().present()) {
        products_.multiply(ds.transposed(), block.queries(x.q), block.attended(dk.view()),
                           adding(!block.first || dk.adds()));
      }
    });
    for (const OutputTile* grad : {&dq, &dk, &dv, &db}) grad->commit();
  }

 private:
  struct Operands {
    TensorView q, k, v;
    BiasTile bias;
    std::int64_t sharing;  // heads that share a group's keys

    explicit Operands(const KernelTask& task)
        : q(rows_of(task.inputs[0], kQueries, task.inputs[0].type)),
          k(rows_of(task.inputs[1], kKeys, q.type)),
          v(rows_of(task.inputs[2], kValues, q.type)),
          sharing(q.shape[2] / k.shape[2]) {
      if (task.inputs.size() > 3) bias.view = rows_of(task.inputs[3], kBias);
    }
    // Of a head, both counted from their tiles' starts.
    std::int64_t group(std::int64_t head) const {
      return (q.tile.lo[2] + head) / sharing - k.tile.lo[2];
    }
  };

  // The softmax of a block's scores: row i is exponentials * inverse_sums[i].
  struct Weights {
    Matrix exponentials;
    Matrix kept;    // by dropout
    Matrix factor;  // the same, as a factor
    const float* inverse_sums;
  };

  // The number of keys that the first `rows` queries of a tile attend to.
  std::int64_t attended_keys(const Operands& x, std::int64_t rows) const {
    return causal_ ? std::min(x.k.extent(1), x.q.tile.lo[1] + rows) : x.k.extent(1);
  }

  // The last queries come first: they write the gradients of all keys, and others add to them.
  template <typename Body>
  void for_each_block(const Operands& x, Body&& body) const {
    if (x.q.tile.empty()) return;
    const std::int64_t queries = x.q.extent(1), heads = x.q.extent(2);
    const std::int64_t last = (queries - 1) / kRows * kRows;
    const std::int64_t scores = std::min(kRows, queries) * x.k.extent(1);
    // Heads that share keys would add to the same gradients within one product.
    const std::int64_t together = x.sharing > 1 ? 1 : std::max<std::int64_t>(1, kScores / scores);
    for (std::int64_t n = 0; n < x.q.extent(0); ++n) {
      for (std::int64_t head = 0; head < heads; head += together) {
        const std::int64_t group = x.group(head);
        const bool first = head == 0 || x.group(head - 1) != group;
        for (std::int64_t row = last; row >= 0; row -= kRows) {
          const std::int64_t rows = std::min(kRows, queries - row);
          body(Block{n, head, std::min(together, heads - head), group, row, rows,
                     attended_keys(x, row + rows), first && row == last});
        }
      }
    }
  }

  Weights compute_weights(const Block& block, const Operands& x, const RunState& run) {
    const Matrix scores = block.packed(kExponentials, block.keys);
    float* const inverse_sums = scratch(kInverseSums, block.heads * block.rows);
    products_.multiply(block.queries(x.q), block.attended(x.k).transposed(), scores);
    for_each_matrix_row(scores, [&](float* row, std::int64_t i, std::int64_t r) {
      const std::int64_t keys = attended_keys(x, block.row + r + 1);
      const float sum = x.bias.present() ? biased_softmax(row, bias_row(block, x, i), scale_, keys)
                                         : row_softmax(row, keys, row, scale_).sum;
      inverse_sums[i] = sum > 0 ? 1.0f / sum : 0.0f;
      // In causal attention, keys after a block's earlier queries: their weight is zero.
      std::fill(row + keys, row + block.keys, 0.0f);
    });
    const Matrix kept = dropout_.drops_in(run) ? keep(block, x, scores, run) : scores;
    return {scores, kept, factor(kept, kFactor, x.q.type), inverse_sums};
  }

  // Of row i of a block's scores.
  static const float* bias_row(const Block& block, const Operands& x, std::int64_t i) {
    const float* const row =
        x.bias.row(block.sample, block.head + i / block.rows, block.row + i % block.rows);
    if (!x.bias.same_for_all_keys()) return row;
    float* const repeated = scratch(kBiasRow, block.keys);
    std::fill(repeated, repeated + block.keys, *row);
    return repeated;
  }

  // What dropout keeps of a block's exponentials. A weight's place is that of its score among all
  // samples, heads, queries and keys, however these are split.
  Matrix keep(const Block& block, const Operands& x, const Matrix& exponentials,
              const RunState& run) const {
    const Matrix result = block.packed(kKept, block.keys);
    const std::int64_t places = x.q.shape[2] * x.q.shape[1] * x.k.shape[1];
    const DropoutMask mask = dropout_.mask(run, places);
    for_each_matrix_row(exponentials, [&](const float* row, std::int64_t i, std::int64_t r) {
      const std::int64_t sample = x.q.tile.lo[0] + block.sample;
      const std::int64_t head = x.q.tile.lo[2] + block.head + i / block.rows;
      const std::int64_t query = x.q.tile.lo[1] + block.row + r;
      const std::int64_t place =
          ((sample * x.q.shape[2] + head) * x.q.shape[1] + query) * x.k.shape[1];
      keep_row(row, result.f32() + i * block.keys, block.keys, mask,
               static_cast<std::uint64_t>(place));
    });
    return result;
  }

  // The output's gradients, each times its query's inverse sum.
  static Matrix scaled_gradients(const Block& block, const TensorView& dy, const Weights& weights) {
    const Matrix result = block.packed(kScaledGrads, dy.extent(3)), from = block.queries(dy);
    for_each_matrix_row(from, [&](const float* row, std::int64_t i, std::int64_t) {
      scale_row(row, weights.inverse_sums[i], result.f32() + i * result.row, result.cols);
    });
    return result;
  }

  Matrix score_gradients(const Block& block, const Matrix& scaled, const TensorView& v,
                         const Weights& weights) {
    const Matrix grads = block.packed(kScoreGrads, block.keys);
    products_.multiply(scaled, block.attended(v).transposed(), grads);
    for_each_matrix_row(grads, [&](float* row, std::int64_t i, std::int64_t) {
      softmax_backward(weights.exponentials.f32() + i * block.keys,
                       weights.kept.f32() + i * block.keys, weights.inverse_sums[i], scale_, row,
                       block.keys);
    });
    return grads;
  }

  // Where the bias is the same for some scores, its gradient is the sum of theirs.
  void add_bias_gradients(const Block& block, const Matrix& ds, const BiasTile& bias) const {
    for_each_matrix_row(ds, [&](const float* row, std::int64_t i, std::int64_t r) {
      float* const sum = bias.row(block.sample, block.head + i / block.rows, block.row + r);
      if (bias.same_for_all_keys()) {
        *sum += sum_of(row, block.keys) / scale_;
      } else {
        add_row(row, 1.0f / scale_, sum, block.keys);
      }
    });
  }

  bool causal_;
  float scale_;
  DropoutLayer dropout_;
  Products products_;
};

const RegisterKernel registered("multi_head_attention", [](const Attributes& a) {
  return std::make_unique<MultiHeadAttention>(a);
});

}  // namespace
}  // namespace flexlegion
