#include "gpu/activation.h"

namespace flexlegion::gpu {

void add_bias_and_activate(float* y, const float* bias, std::int64_t rows, std::int64_t columns,
                           Activation activation) {
  if (bias == nullptr && activation == Activation::none) return;
  for_each(rows * columns, [=] FL_BODY(std::int64_t i) {
    y[i] = apply(activation, bias == nullptr ? y[i] : y[i] + bias[i % columns]);
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
  const float* const data = dy.f32();
  const std::int64_t row = dy.row, column = dy.col;
  sum_columns<1>(
      dy.rows, dy.cols, slot,
      [=] FL_BODY(std::int64_t r, std::int64_t c) { return Sums<1>{{data[r * row + c * column]}}; },
      [=] FL_BODY(std::int64_t c, const Sums<1>& total) {
        put(db[c], static_cast<float>(total.of[0]), adds);
      });
}

}  // namespace flexlegion::gpu
