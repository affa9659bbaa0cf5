#include "gpu/activation.h"

#include "gpu/blas.h"

namespace flexlegion::gpu {

void add_bias_and_activate(const Reals& x, const Reals& y, const Reals& bias, std::int64_t rows,
                           std::int64_t columns, Activation activation) {
  for_each(rows * columns, [=] FL_BODY(std::int64_t i) {
    const float product = x[i];
    y[i] = apply(activation, bias.present() ? product + bias[i % columns] : product);
  });
}

void activation_backward(Activation activation, const TensorView& output_grad,
                         const TensorView& output, const TensorView& result, bool adds) {
  if (activation == Activation::none) return gpu::write_or_add_view(result, output_grad, adds);
  const Tiles<3> tiles({&output_grad, &output, &result});
  for_each(result.volume(), [=] FL_BODY(std::int64_t i) {
    const auto e = tiles(i);
    put(e[2], e[0] * derivative(activation, e[1]), adds);
  });
}

void bias_gradient(const Matrix& dy, const TensorView& bias_grad, int slot, bool adds) {
  const Strided db(bias_grad);
  const Reals data = reals(dy);
  const std::int64_t row = dy.row, column = dy.col;
  sum_columns<1>(
      dy.rows, dy.cols, slot,
      [=] FL_BODY(std::int64_t r, std::int64_t c) { return Sums<1>{{data[r * row + c * column]}}; },
      [=] FL_BODY(std::int64_t c, const Sums<1>& total) {
        put(db[c], static_cast<float>(total.of[0]), adds);
      });
}

}  // namespace flexlegion::gpu
