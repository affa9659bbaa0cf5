// dense: output(..., o) = f(sum over i of input(..., i) * kernel(o, i) + bias(o)).
//
// Three matrix products. Their factors may have any leading dimension, so that tiles are packed
// only where their rows do not lie at equal distances (both leading dimensions of a sequence split,
// say).
#include <array>

#include "ops/onednn_support.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

using onednn::f32_desc;

struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0, cols = 0, ld = 0;
};

// All dimensions but the last as rows, if they lie at equal distances.
bool matrix_in_place(const TensorView& view, Matrix& matrix) {
  const int last = view.rank() - 1;
  if (!view.dense_from(last)) return false;
  matrix = {view.f32(), 1, view.extent(last), view.extent(last)};
  for (int d = last - 1; d >= 0; --d) {
    if (view.extent(d) == 1) continue;
    if (matrix.rows == 1) matrix.ld = view.stride[d];
    if (view.stride[d] != matrix.ld * matrix.rows) return false;
    matrix.rows *= view.extent(d);
  }
  return true;
}

Matrix packed_matrix(float* data, const TensorView& view) {
  const std::int64_t cols = view.extent(view.rank() - 1);
  return {data, view.volume() / cols, cols, cols};
}

Matrix input_matrix(const TensorView& view, int slot) {
  Matrix matrix;
  if (matrix_in_place(view, matrix)) return matrix;
  return packed_matrix(DenseInput(view, slot).data(), view);
}

// A result, in place or in scratch memory until commit(). oneDNN writes rows that lie apart (a tile
// of the columns) a tenth slower than it computes them, far more than copying them takes.
class OutputMatrix {
 public:
  OutputMatrix(const TensorView& view, int slot)
      : buffer_(view, slot), matrix_(packed_matrix(buffer_.data(), view)) {}
  const Matrix& matrix() const { return matrix_; }
  void commit() const { buffer_.commit(); }

 private:
  DenseOutput buffer_;
  Matrix matrix_;
};

FLEXLEGION_SIMD void sum_rows(const float* rows, std::int64_t count, std::int64_t cols,
                              std::int64_t ld, float* sums) {
  for (std::int64_t c = 0; c < cols; ++c) sums[c] = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const float* row = rows + r * ld;
    for (std::int64_t c = 0; c < cols; ++c) sums[c] += row[c];
  }
}

class Dense : public Kernel {
 public:
  explicit Dense(const Attributes& attributes)
      : activation_(activation_of(attributes)), use_bias_(attributes.integer("use_bias") != 0) {}

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Matrix x = input_matrix(task.inputs[0], 0);
    const Matrix w = input_matrix(task.weights[0], 1);
    const OutputMatrix y(task.outputs[0], 2);
    float* const bias = use_bias_ ? DenseInput(task.weights[1], 3).data() : nullptr;
    multiply(x, false, w, true, y.matrix(), bias, activation_);
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return;
    const Matrix dy = input_matrix(before_activation(task), 1);
    if (!task.input_grads.empty() && task.input_grads[0].present()) {
      const OutputMatrix dx(task.input_grads[0], 2);
      multiply(dy, false, input_matrix(task.weights[0], 3), false, dx.matrix());
      dx.commit();
    }
    if (task.weight_grads[0].present()) {
      const OutputMatrix dw(task.weight_grads[0], 2);
      multiply(dy, true, input_matrix(task.inputs[0], 3), false, dw.matrix());
      dw.commit();
    }
    if (use_bias_ && task.weight_grads[1].present()) {
      const DenseOutput db(task.weight_grads[1], 2);
      sum_rows(dy.data, dy.rows, dy.cols, dy.ld, db.data());
      db.commit();
    }
  }

 private:
  // The gradient with respect to what the activation was applied to (scratch slot 0).
  TensorView before_activation(const KernelTask& task) const {
    const TensorView& dy = task.output_grads[0];
    if (activation_ == Activation::none) return dy;
    const TensorView result = dense_view(scratch(0, dy.volume()), dy.tile, dy.shape);
    activation_backward(activation_, dy, task.outputs[0], result);
    return result;
  }

  // c = f(a b + bias), where a and b may stand for their transposes.
  void multiply(const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b,
                const Matrix& c, float* bias = nullptr, Activation activation = Activation::none) {
    const std::int64_t inner = transpose_a ? a.rows : a.cols;
    const onednn::Cache::Key key{transpose_a, transpose_b, c.rows, c.cols,         inner,
                                 a.ld,        b.ld,        c.ld,   bias != nullptr};
    const auto describe = [&] {
      const auto matrix_desc = [](std::int64_t rows, std::int64_t cols, std::int64_t ld, bool t) {
        return t ? f32_desc({rows, cols}, {1, ld}) : f32_desc({rows, cols}, {ld, 1});
      };
      const auto a_desc = matrix_desc(c.rows, inner, a.ld, transpose_a);
      const auto b_desc = matrix_desc(inner, c.cols, b.ld, transpose_b);
      const auto c_desc = matrix_desc(c.rows, c.cols, c.ld, false);
      const auto attributes = onednn::attributes(activation);
      using Desc = dnnl::matmul::primitive_desc;
      if (bias == nullptr) return Desc(onednn::engine(), a_desc, b_desc, c_desc, attributes);
      const auto bias_desc = f32_desc({1, c.cols}, {c.cols, 1});
      return Desc(onednn::engine(), a_desc, b_desc, bias_desc, c_desc, attributes);
    };
    const onednn::Prepared& product = cache_.get(key, describe);
    if (bias == nullptr) {
      product.execute({{DNNL_ARG_SRC, a.data}, {DNNL_ARG_WEIGHTS, b.data}, {DNNL_ARG_DST, c.data}});
    } else {
      product.execute({{DNNL_ARG_SRC, a.data},
                       {DNNL_ARG_WEIGHTS, b.data},
                       {DNNL_ARG_BIAS, bias},
                       {DNNL_ARG_DST, c.data}});
    }
  }

  Activation activation_;
  bool use_bias_;
  onednn::Cache cache_;
};

const RegisterKernel registered("dense",
                                [](const Attributes& a) { return std::make_unique<Dense>(a); });

}  // namespace
}  // namespace flexlegion
