// dense: output(..., o) = f(sum over i of input(..., i) * kernel(o, i) + bias(o)).
//
// Three matrix products. Weights that unrolled steps share take their gradients' sum in the product
// itself.
#include <algorithm>

#include "ops/products.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

FLEXLEGION_SIMD void add_rows(const Matrix& rows, float* sums) {  // row-major
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const float* row = rows.data + r * rows.row;
    for (std::int64_t c = 0; c < rows.cols; ++c) sums[c] += row[c];
  }
}

class Dense : public Kernel {
 public:
  explicit Dense(const Attributes& attributes)
      : activation_(activation_of(attributes)), use_bias_(attributes.integer("use_bias") != 0) {}

  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const Matrix x = input_matrix(task.inputs[0], 0);
    const Matrix w = input_matrix(task.weights[0], 1);
    const OutputMatrix y(task.outputs[0], 2);
    ProductOptions options;
    options.bias = use_bias_ ? DenseInput(task.weights[1], 3).data() : nullptr;
    options.activation = activation_;
    products_.multiply(x, w.transposed(), y.matrix(), options);
    y.commit();
  }

  void backward(KernelTask& task) override {
    const Matrix dy = input_matrix(before_activation(task), 1);
    if (!task.input_grads.empty() && task.input_grads[0].present()) {
      gradient(dy, input_matrix(task.weights[0], 3), task.input_grads[0],
               task.adds_to_input_grad(0));
    }
    if (task.weight_grads[0].present()) {
      gradient(dy.transposed(), input_matrix(task.inputs[0], 3), task.weight_grads[0],
               task.adds_to_weight_grad(0));
    }
    if (use_bias_ && task.weight_grads[1].present()) {
      const OutputMatrix db(task.weight_grads[1], 2, task.adds_to_weight_grad(1));
      if (!db.adds()) std::fill_n(db.matrix().data, db.matrix().cols, 0.0f);
      share_range(dy.cols, dy.rows * dy.cols, [&](std::int64_t lo, std::int64_t hi) {
        Matrix columns = dy;
        columns.data += lo * dy.col;
        columns.cols = hi - lo;
        add_rows(columns, db.matrix().data + lo);
      });
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

  void gradient(const Matrix& a, const Matrix& b, const TensorView& grad, bool adds) {
    const OutputMatrix result(grad, 2, adds);
    ProductOptions options;
    options.adds = result.adds();
    products_.multiply(a, b, result.matrix(), options);
    result.commit();
  }

  Activation activation_;
  bool use_bias_;
  Products products_;
};

const RegisterKernel registered("dense",
                                [](const Attributes& a) { return std::make_unique<Dense>(a); });

}  // namespace
}  // namespace flexlegion
