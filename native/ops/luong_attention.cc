// luong_attention: tanh(W_c [context; h]), where context is the mean of the encoder's states s
// weighted by softmax(h W_a s).
//
// The backward pass computes the weights and contexts again: of their products only the one with
// W_a is large.
#include <algorithm>

#include "ops/few_rows.h"
#include "ops/kernel.h"
#include "ops/row_softmax.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

enum Slot {
  kStates,
  kMemory,
  kScoreKernel,
  kKernel,
  kQueries,
  kWeights,
  kJoined,
  kOutputGrad,
  kJoinedGrad,
  kWeightGrads,
  kQueryGrads,
  kResult
};

FLEXLEGION_SIMD void tanh_in_place(float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = vector_tanh(x[i]);
}

FLEXLEGION_SIMD void scale(float* x, float by, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= by;
}

// Of softmax's output y: from the gradient with respect to it to that with respect to its input.
FLEXLEGION_SIMD void softmax_backward(const float* y, float* dy, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += y[i] * dy[i];
  for (std::int64_t i = 0; i < n; ++i) dy[i] = y[i] * (dy[i] - sum);
}

Matrix scratch_matrix(int slot, std::int64_t rows, std::int64_t cols) {
  return Matrix::row_major(scratch(slot, rows * cols), rows, cols, cols);
}

// A task's operands, and what both passes compute: rows are steps of samples.
struct Attention {
  std::int64_t n, steps, source, d, e;
  Matrix h, memory;             // (n steps, d), (n source, e)
  Matrix score_kernel, kernel;  // (d, e), (units, e + d)
  Matrix queries, weights;      // h W_a, (n steps, e); softmax, (n steps, source)
  Matrix joined;                // [context; h], (n steps, e + d)

  Attention(const KernelTask& task, Products& products)
      : n(task.inputs[0].extent(0)),
        steps(task.inputs[0].extent(1)),
        source(task.inputs[1].extent(1)),
        d(task.inputs[0].extent(2)),
        e(task.inputs[1].extent(2)),
        h(input_matrix(task.inputs[0], kStates)),
        memory(Matrix::row_major(DenseInput(task.inputs[1], kMemory).data(), n * source, e, e)),
        score_kernel(input_matrix(task.weights[0], kScoreKernel)),
        kernel(input_matrix(task.weights[1], kKernel)),
        queries(scratch_matrix(kQueries, n * steps, e)),
        weights(scratch_matrix(kWeights, n * steps, source)),
        joined(scratch_matrix(kJoined, n * steps, e + d)) {
    few_rows::multiply(products, h, score_kernel, queries, false);
    products.multiply(by_sample(queries, n), by_sample(memory, n).transposed(),
                      by_sample(weights, n));
    for (std::int64_t r = 0; r < n * steps; ++r) {
      float* const row = weights.data + r * source;
      scale(row, 1.0f / row_softmax(row, source, row).sum, source);
    }
    products.multiply(by_sample(weights, n), by_sample(memory, n),
                      by_sample(columns(joined, 0, e), n));
    for (std::int64_t r = 0; r < n * steps; ++r) {
      std::copy_n(h.data + r * h.row, d, joined.data + r * joined.row + e);
    }
  }
};

class LuongAttention : public Kernel {
 public:
  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Attention attention(task, products_);
    const OutputMatrix y(task.outputs[0], kResult);
    const Matrix& to = y.matrix();
    few_rows::multiply(products_, attention.joined, attention.kernel.transposed(), to, false);
    tanh_in_place(to.data, to.rows * to.cols);
    y.commit();
  }

  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (dy.tile.empty()) return;
    const Attention attention(task, products_);
    const Matrix dz =
        scratch_matrix(kOutputGrad, attention.n * attention.steps, task.weights[1].extent(0));
    activation_backward(Activation::tanh, dy, task.outputs[0],
                        dense_view(dz.data, dy.tile, dy.shape));
    weight_gradient(task, 1, dz, attention.joined);
    if (!task.wants_input_grad(0) && !task.wants_input_grad(1) && !task.wants_weight_grad(0)) {
      return;
    }
    const Matrix joined_grad = scratch_matrix(kJoinedGrad, dz.rows, attention.joined.cols);
    few_rows::multiply(products_, dz, attention.kernel, joined_grad, false);
    const Matrix score_grads = score_gradients(attention, joined_grad);
    memory_gradient(task, attention, joined_grad, score_grads);
    const Matrix query_grads = scratch_matrix(kQueryGrads, dz.rows, attention.e);
    products_.multiply(by_sample(score_grads, attention.n),
                       by_sample(attention.memory, attention.n),
                       by_sample(query_grads, attention.n));
    weight_gradient(task, 0, attention.h, query_grads);
    state_gradient(task, attention, joined_grad, query_grads);
  }

 private:
  // a^T b
  void weight_gradient(KernelTask& task, std::size_t i, const Matrix& a, const Matrix& b) {
    if (!task.wants_weight_grad(i)) return;
    const OutputMatrix dw(task.weight_grads[i], kResult, task.adds_to_weight_grad(i));
    few_rows::multiply_outer(products_, a, b, dw.matrix(), dw.adds());
    dw.commit();
  }

  Matrix score_gradients(const Attention& attention, const Matrix& joined_grad) {
    const std::int64_t n = attention.n, source = attention.source;
    const Matrix result = scratch_matrix(kWeightGrads, joined_grad.rows, source);
    products_.multiply(by_sample(columns(joined_grad, 0, attention.e), n),
                       by_sample(attention.memory, n).transposed(), by_sample(result, n));
    for (std::int64_t r = 0; r < result.rows; ++r) {
      softmax_backward(attention.weights.data + r * source, result.data + r * source, source);
    }
    return result;
  }

  // Through the contexts, and through the scores.
  void memory_gradient(KernelTask& task, const Attention& attention, const Matrix& joined_grad,
                       const Matrix& score_grads) {
    if (!task.wants_input_grad(1)) return;
    const std::int64_t n = attention.n;
    const OutputMatrix ds(task.input_grads[1], kResult, task.adds_to_input_grad(1));
    ProductOptions options;
    options.adds = ds.adds();
    products_.multiply(by_sample(attention.weights, n).transposed(),
                       by_sample(columns(joined_grad, 0, attention.e), n),
                       by_sample(ds.matrix(), n), options);
    options.adds = true;
    products_.multiply(by_sample(score_grads, n).transposed(), by_sample(attention.queries, n),
                       by_sample(ds.matrix(), n), options);
    ds.commit();
  }

  // Through W_c, and through the queries.
  void state_gradient(KernelTask& task, const Attention& attention, const Matrix& joined_grad,
                      const Matrix& query_grads) {
    if (!task.wants_input_grad(0)) return;
    const TensorView& gradient = task.input_grads[0];
    const OutputMatrix dh(gradient, kResult, task.adds_to_input_grad(0));
    few_rows::multiply(products_, query_grads, attention.score_kernel.transposed(), dh.matrix(),
                       dh.adds());
    dh.commit();
    TensorView direct = dense_view(joined_grad.data + attention.e, gradient.tile, gradient.shape);
    direct.stride[1] = joined_grad.row;
    direct.stride[0] = attention.steps * joined_grad.row;
    add_view(gradient, direct);
  }

  Products products_;
};

const RegisterKernel registered("luong_attention", [](const Attributes&) {
  return std::make_unique<LuongAttention>();
});

}  // namespace
}  // namespace flexlegion
