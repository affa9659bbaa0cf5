// dense: output(..., o) = f(sum over i of input(..., i) * kernel(o, i) + bias(o)).
//
// Three matrix products. Weights that unrolled steps share take their gradients' sum in the product
// itself.
//
// The input's dimensions before the last are all rows of one matrix: a batch of sequences is as
// many rows as it has steps. A tile may have some rows, some units o and some inputs i. If it has
// only some inputs, its product is a partial value, which the runtime adds to the others'; then the
// activation is none and one task alone has the bias.
//
// Forwards, bias and activation are fused into the product, and nothing passes through memory
// twice. Backwards, dz = dy f'(y) is computed first (scratch slot 0), then dx = dz W, dW = dz^T x
// and db = the sum of dz's rows.
#include <algorithm>

#include "ops/products.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

class Dense : public Kernel {
 public:
  explicit Dense(const Attributes& attributes)
      : activation_(activation_of(attributes)), use_bias_(attributes.integer("use_bias") != 0) {}

  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const DataType type = task.outputs[0].type;
    const Matrix x = input_matrix(task.inputs[0], 0, type);
    const Matrix w = input_matrix(task.weights[0], 1, type);
    const OutputMatrix y(task.outputs[0], 2, false, type);
    ProductOptions options;
    // The bias is absent in all parts but one; an absent tile gives a null pointer, and no bias.
    options.bias = use_bias_ ? DenseInput(task.weights[1], 3).data() : nullptr;
    options.activation = activation_;
    products_.multiply(x, w.transposed(), y.matrix(), options);
    y.commit();
  }

  void backward(KernelTask& task) override {
    const DataType type = task.output_grads[0].type;
    const Matrix dy = input_matrix(before_activation(task), 1, type);
    if (!task.input_grads.empty() && task.input_grads[0].present()) {
      products_.multiply_into(task.input_grads[0], 2, task.adds_to_input_grad(0), dy,
                              input_matrix(task.weights[0], 3, type));
    }
    if (task.weight_grads[0].present()) {
      products_.multiply_into(task.weight_grads[0], 2, task.adds_to_weight_grad(0), dy.transposed(),
                              input_matrix(task.inputs[0], 3, type));
    }
    if (use_bias_ && task.weight_grads[1].present()) {
      const OutputMatrix db(task.weight_grads[1], 2, task.adds_to_weight_grad(1));
      if (!db.adds()) std::fill_n(db.matrix().f32(), db.matrix().cols, 0.0f);
      // Threads take columns, not rows: each then owns its sums, and their order does not depend on
      // the number of threads.
      share_range(dy.cols, dy.rows * dy.cols, [&](std::int64_t lo, std::int64_t hi) {
        add_rows(columns(dy, lo, hi - lo), db.matrix().f32() + lo);
      });
      db.commit();
    }
  }

 private:
  // The gradient with respect to what the activation was applied to (scratch slot 0).
  TensorView before_activation(const KernelTask& task) const {
    const TensorView& dy = task.output_grads[0];
    if (activation_ == Activation::none) return dy;
    const TensorView result = scratch_view(0, dy, dy.type);
    activation_backward(activation_, dy, task.outputs[0], result);
    return result;
  }

  Activation activation_;
  bool use_bias_;
  Products products_;
};

const RegisterKernel registered("dense",
                                [](const Attributes& a) { return std::make_unique<Dense>(a); });

}  // namespace
}  // namespace flexlegion
