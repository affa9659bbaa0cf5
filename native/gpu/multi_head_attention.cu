// multi_head_attention: softmax(scale q k^T + bias) v for each sample and head, over queries
// (n, s, heads, d), keys (n, t, groups, d) and values (n, t, groups, e). Heads in a row share a
// group's keys and values. The bias (n, heads, s, t) may be absent, and of extent 1 where it is the
// same for all; a query whose biases are all -infinity attends to nothing. While training, weights
// may be dropped.
//
// Operands are packed with a matrix a sample and head, so that one product does many of these; the
// queries of heads that share keys are one matrix. The scores of some of them are in memory at a
// time; the backward pass computes them again. Where cuDNN has one kernel for all of it, that is
// taken instead (fused_attention.h).
//
// Algorithm, for the matrices whose scores fit kScores elements at a time: scores = scale q k^T in
// one batched product; the bias is added; a softmax of each row, in causal attention of those keys
// that it may see; dropout; y = weights v. Backwards the weights are computed again, then dv = z^T
// dy, dz = dy v^T, ds by the softmax's derivative, dq = scale ds k and dk = scale ds^T q.
//
// Costs: the scores go through memory several times each way, which is why the fused kernel is
// preferred. Matrices of all queries and keys keep the tensor cores busy with few launches.
#include <algorithm>
#include <utility>

#include "gpu/blas.h"
#include "gpu/fused_attention.h"
#include "gpu/row_softmax.h"
#include "ops/dropout.h"

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
  kProducts,  // scores, and their gradients
  kWeights,
  kKept,
  kScoreGrads
};

// The same tile as (n, heads, rows, channels). Heads come before rows, so that each head's rows are
// one matrix.
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
  Reals data;  // absent: a gradient that nobody wants
  std::int64_t rows = 0, cols = 0;

  Heads(const Reals& packed, const TensorView& tile)
      : data(packed), rows(tile.extent(1)), cols(tile.extent(3)) {}
  // `count` matrices from `first` on; of each `joined` of them, the rows are one matrix's.
  Matrix some(std::int64_t first, std::int64_t joined, std::int64_t count) const {
    const std::int64_t size = joined * rows * cols;
    const Reals begin = data + first * rows * cols;
    return {begin.data(), joined * rows, cols, cols, 1, count, size, data.type()};
  }
};

// Some groups' matrices of keys and values, and those of the queries that attend to them: as many
// heads for each group.
struct Block {
  std::int64_t group, groups, head, heads;

  Matrix keys(const Heads& x) const { return x.some(group, 1, groups); }
  Matrix queries(const Heads& x) const { return x.some(head, heads, groups); }
};

Heads packed(const TensorView& view, Slot slot, DataType type) {
  return {{DenseInput(by_head(view), slot, type).memory(), type}, view};
}

// The gradient of input i, to be packed; absent if nobody wants it.
class Gradient {
 public:
  Gradient(const KernelTask& task, std::size_t i, Slot slot, DataType factors)
      : tile_(task.wants_input_grad(i) ? task.input_grads[i] : TensorView()),
        type_(product_type(factors, tile_.type)),
        result_(by_head(tile_), slot, task.adds_to_input_grad(i), type_) {}
  bool wanted() const { return tile_.present(); }
  Heads heads() const { return {{result_.memory(), type_}, tile_}; }
  void commit() const { result_.commit(); }

 private:
  TensorView tile_;
  DataType type_;
  DenseOutput result_;
};

// A tile of a bias, or of its gradient. Where its extent is 1, it is the same for all.
struct Bias {
  Reals data;  // absent: there is none
  std::int64_t extent[4], step[4];

  explicit Bias(const TensorView& view) : data(view.data, view.type) {
    for (int d = 0; d < 4; ++d) {
      extent[d] = view.present() ? view.extent(d) : 0;
      step[d] = extent[d] == 1 ? 0 : view.stride[d];
    }
  }
  FL_DEVICE std::int64_t volume() const { return extent[0] * extent[1] * extent[2] * extent[3]; }
};

// The indices that a bias has in dimension d of `all`, at `index` of its own.
struct Indices {
  std::int64_t first, last;
  FL_DEVICE Indices(const Bias& bias, int d, std::int64_t index, std::int64_t all)
      : first(bias.extent[d] == 1 ? 0 : index), last(bias.extent[d] == 1 ? all : index + 1) {}
};

// Which score stands where in a block: rows of `keys` scores, one a query of a head of a sample.
struct Scores {
  std::int64_t first_head, heads, queries, keys;

  // Element (r, 0) of a bias.
  FL_DEVICE Reals bias_row(const Bias& bias, std::int64_t r) const {
    const std::int64_t head = first_head + r / queries;
    return bias.data +
           (head / heads * bias.step[0] + head % heads * bias.step[1] + r % queries * bias.step[2]);
  }
};

struct Operands {
  TensorView queries, keys;  // tiles
  Heads q, k, v;
  Bias bias;
  std::int64_t samples, heads, groups;
  std::int64_t sharing;  // heads that share a group's keys

  Operands(const KernelTask& task, DataType type)  // of the factors
      : queries(task.inputs[0]),
        keys(task.inputs[1]),
        q(packed(task.inputs[0], kQueries, type)),
        k(packed(task.inputs[1], kKeys, type)),
        v(packed(task.inputs[2], kValues, type)),
        bias(task.inputs.size() > 3 ? task.inputs[3] : TensorView()),
        samples(queries.extent(0)),
        heads(queries.extent(2)),
        groups(keys.extent(2)),
        sharing(queries.shape[2] / keys.shape[2]) {}
  // The tile's first head of a group, both counted from the tile's start.
  std::int64_t first_head(std::int64_t group) const {
    const std::int64_t head = (keys.tile.lo[2] + group) * sharing - queries.tile.lo[2];
    return std::clamp<std::int64_t>(head, 0, heads);
  }
  Scores places(const Block& block) const { return {block.head, heads, q.rows, k.rows}; }
};

Matrix score_matrices(Slot slot, const Operands& x, const Block& block, DataType type) {
  const std::int64_t rows = block.heads * x.q.rows, cols = x.k.rows;
  const std::int64_t floats = floats_for(block.groups * rows * cols, type);
  return {scratch(slot, floats), rows, cols, cols, 1, block.groups, rows * cols, type};
}

// Floats in place, or made narrow beside them.
Matrix beside(const Matrix& scores, Slot slot, const Operands& x, const Block& block) {
  const DataType type = x.q.data.type();
  return type == DataType::float32 ? scores : score_matrices(slot, x, block, type);
}

void add_bias(const Scores& scores, const Bias& bias, float* to, std::int64_t rows) {
  for_each_team(rows, scores.keys, [=] FL_BODY(const Team& team, std::int64_t r) {
    const Reals from = scores.bias_row(bias, r);
    // A team a row: the bias's row may be shared by samples, heads or queries.
    float* const row = to + r * scores.keys;
    for (std::int64_t j = team.rank; j < scores.keys; j += team.size) {
      row[j] += from[j * bias.step[3]];
    }
  });
}

// Each element is the sum of the gradients of the scores that it was added to.
void add_bias_gradients(const Operands& x, const Block& block, const Matrix& ds, const Bias& db) {
  const Scores scores = x.places(block);
  const std::int64_t samples = x.samples, count = block.groups * block.heads;
  const Reals from = reals(ds);
  for_each(db.volume(), [=] FL_BODY(std::int64_t e) {
    std::int64_t rest = e, index[4];
    for (int d = 3; d >= 0; --d) {
      index[d] = rest % db.extent[d];
      rest /= db.extent[d];
    }
    const Indices of_sample(db, 0, index[0], samples), of_head(db, 1, index[1], scores.heads),
        of_query(db, 2, index[2], scores.queries), of_key(db, 3, index[3], scores.keys);
    double sum = 0;
    for (std::int64_t n = of_sample.first; n < of_sample.last; ++n) {
      for (std::int64_t h = of_head.first; h < of_head.last; ++h) {
        const std::int64_t matrix = n * scores.heads + h - scores.first_head;
        if (matrix < 0 || matrix >= count) continue;  // another block's
        for (std::int64_t i = of_query.first; i < of_query.last; ++i) {
          const Reals row = from + (matrix * scores.queries + i) * scores.keys;
          for (std::int64_t j = of_key.first; j < of_key.last; ++j) sum += row[j];
        }
      }
    }
    db.data[index[0] * db.step[0] + index[1] * db.step[1] + index[2] * db.step[2] +
            index[3] * db.step[3]] += static_cast<float>(sum);
  });
}

// What dropout keeps of a block's weights. A weight's place is that of its score among all
// samples, heads, queries and keys, however these are split.
Matrix keep(const Operands& x, const Block& block, const Matrix& weights, const DropoutMask& mask) {
  const Matrix result = score_matrices(kKept, x, block, weights.type);
  const Scores scores = x.places(block);
  const Rect& tile = x.queries.tile;
  const std::int64_t first_sample = tile.lo[0], first_query = tile.lo[1], first_head = tile.lo[2];
  const std::int64_t all_queries = x.queries.shape[1], all_heads = x.queries.shape[2];
  const std::int64_t keys = scores.keys, all_keys = x.keys.shape[1];
  const Reals from = reals(weights), to = reals(result);
  for_each(result.batch * result.rows * keys, [=] FL_BODY(std::int64_t i) {
    const std::int64_t r = i / keys, head = scores.first_head + r / scores.queries;
    const std::int64_t sample = first_sample + head / scores.heads;
    const std::int64_t matrix = sample * all_heads + first_head + head % scores.heads;
    const std::int64_t row = matrix * all_queries + first_query + r % scores.queries;
    const auto place = static_cast<std::uint64_t>(row * all_keys + i % keys);
    to[i] = drops(mask.key, place, mask.threshold) ? 0.0f : from[i] * mask.scale;
  });
  return result;
}

class MultiHeadAttention : public Kernel {
 public:
  explicit MultiHeadAttention(const Attributes& attributes)
      : causal_(attributes.integer("causal") != 0),
        scale_(static_cast<float>(attributes.number("scale"))),
        dropout_(attributes, "dropout") {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }
  bool repeats() const override { return dropout_.rate == 0; }

  // The fused way, if it has one for this task; else block by block: the products of queries and
  // keys, their softmax, and its product with the values.
  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    if (!dropout_.drops_in(task.run) && fused_attention(task, causal_, scale_)) return;
    const DataType type = task.outputs[0].type;
    const Operands x(task, type);
    const DenseOutput y(by_head(task.outputs[0]), kOutput, false, type);
    const Heads outputs({y.memory(), type}, task.outputs[0]);
    for_each_block(x, [&](const Block& block) {
      const Matrix w = weights(x, block);
      multiply(kept(x, block, w, task.run), block.keys(x.v), block.queries(outputs));
    });
    y.commit();
  }

  // Block by block: weights again, then the values' gradient, the scores' gradient, and from it
  // those of queries, keys and bias. Blocks are independent but for the bias, which has terms from
  // all of them.
  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return no_gradients(task);
    if (!dropout_.drops_in(task.run) && fused_attention_backward(task, causal_, scale_)) return;
    const DataType type = task.output_grads[0].type;
    const Operands x(task, type);
    const Heads dy = packed(task.output_grads[0], kOutput, type);
    const Gradient dq(task, 0, kQueryGrads, type), dk(task, 1, kKeyGrads, type),
        dv(task, 2, kValueGrads, type);
    const Bias db(task.wants_input_grad(3) ? task.input_grads[3] : TensorView());
    if (db.data.present() && !task.adds_to_input_grad(3)) gpu::zero_view(task.input_grads[3]);
    for_each_block(x, [&](const Block& block) {
      const Matrix w = weights(x, block), z = kept(x, block, w, task.run);
      const Matrix grads = block.queries(dy);
      if (dv.wanted()) multiply(z.transposed(), grads, block.keys(dv.heads()));
      if (!dq.wanted() && !dk.wanted() && !db.data.present()) return;
      const Matrix dz = score_matrices(kProducts, x, block, DataType::float32);
      multiply(grads, block.keys(x.v).transposed(), dz);
      const Matrix ds = beside(dz, kScoreGrads, x, block);
      softmax_rows_backward(reals(w), reals(z), dz.f32(), reals(ds), ds.batch * ds.rows, ds.cols);
      if (db.data.present()) add_bias_gradients(x, block, ds, db);
      if (dq.wanted()) multiply(ds, block.keys(x.k), block.queries(dq.heads()), false, scale_);
      if (dk.wanted()) {
        multiply(ds.transposed(), block.queries(x.q), block.keys(dk.heads()), false, scale_);
      }
    });
    for (const Gradient* gradient : {&dq, &dk, &dv}) gradient->commit();
  }

 private:
  // body(block) of what has its scores in memory together. Where a tile cuts groups, these have
  // different numbers of heads.
  template <typename Body>
  static void for_each_block(const Operands& x, const Body& body) {
    if (x.groups == 1 || x.heads == x.groups * x.sharing) {
      const std::int64_t heads = x.heads / x.groups, all = x.samples * x.groups;
      // Groups of whole heads: any number of them are one batch, for they have as many rows.
      const std::int64_t most = std::max<std::int64_t>(1, kScores / (heads * x.q.rows * x.k.rows));
      for (std::int64_t group = 0; group < all; group += most) {
        body(Block{group, std::min(most, all - group), group * heads, heads});
      }
      return;
    }
    for (std::int64_t n = 0; n < x.samples; ++n) {
      for (std::int64_t g = 0; g < x.groups; ++g) {
        const std::int64_t first = x.first_head(g);
        body(Block{n * x.groups + g, 1, n * x.heads + first, x.first_head(g + 1) - first});
      }
    }
  }

  // The softmax of a block's scores.
  Matrix weights(const Operands& x, const Block& block) const {
    const bool narrow = is_narrow(x.q.data.type());
    const Matrix scores =
        score_matrices(narrow ? kProducts : kWeights, x, block, DataType::float32);
    multiply(block.queries(x.q), block.keys(x.k).transposed(), scores, false, scale_);
    const std::int64_t rows = scores.batch * scores.rows;
    if (x.bias.data.present()) add_bias(x.places(block), x.bias, scores.f32(), rows);
    // In causal attention, query i sees the keys up to i: the rest of its row takes no part.
    const RowLengths lengths{scores.cols, causal_, x.queries.tile.lo[1] + 1, x.q.rows};
    const Matrix result = beside(scores, kWeights, x, block);
    softmax_rows(scores.f32(), reals(result), rows, scores.cols, lengths);
    return result;
  }

  // What dropout keeps of a block's weights.
  Matrix kept(const Operands& x, const Block& block, const Matrix& weights,
              const RunState& run) const {
    const std::int64_t places = x.queries.shape[2] * x.queries.shape[1] * x.keys.shape[1];
    return dropout_.drops_in(run) ? keep(x, block, weights, dropout_.mask(run, places)) : weights;
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
  float scale_;
  DropoutLayer dropout_;
};

const RegisterKernel registered(
    "multi_head_attention",
    [](const Attributes& a) { return std::make_unique<MultiHeadAttention>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
