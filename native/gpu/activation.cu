// What ends a dense layer or a convolution on GPUs: bias and activation in one pass, the
// activation's gradient in one, and a bias's gradient as the sums of dy's columns.
//
// A pass is one kernel launch that reads and writes each element once, 16 bytes a thread where rows
// begin aligned. The derivative follows from the output alone, as on CPUs (ops/activation.cc), so
// what went into the activation is not kept.
#include "gpu/activation.h"

#include "gpu/blas.h"
#include "gpu/column_sums.h"

namespace flexlegion::gpu {

void add_bias_and_activate(const Reals& x, const Reals& y, const Reals& bias, std::int64_t rows,
                           std::int64_t columns, Activation activation) {
  const bool wide = begins_wide(x) && begins_wide(y) && begins_wide(bias);
  for_each_in_rows(rows, columns, wide, [=] FL_BODY(auto width, std::int64_t row, std::int64_t c) {
    auto values = load(width, x, row * columns + c);
    if (bias.present()) {
      const auto its = load(width, bias, c);
      for (int k = 0; k < width.value; ++k) values[k] += its[k];
    }
    for (int k = 0; k < width.value; ++k) values[k] = apply(activation, values[k]);
    store(y, row * columns + c, values);
  });
}

void activation_backward(Activation activation, const TensorView& output_grad,
                         const TensorView& output, const TensorView& result, bool adds) {
  if (activation == Activation::none) return gpu::write_or_add_view(result, output_grad, adds);
  for_each_element<3>({&output_grad, &output, &result}, [=] FL_BODY(auto e) {
    auto grad = e[0];
    const auto y = e[1];
    for (int k = 0; k < e.kWidth; ++k) grad[k] *= derivative(activation, y[k]);
    e.put(2, grad, adds);
  });
}

// A matrix whose columns are contiguous (a transposed one) has no rows to read 16 bytes from, and
// takes the loop over single elements.
void bias_gradient(const Matrix& dy, const TensorView& bias_grad, int slot, bool adds) {
  const Strided db(bias_grad);
  const Reals data = reals(dy);
  const std::int64_t row = dy.row, column = dy.col;
  const auto finish = [=] FL_BODY(std::int64_t c, const Sums<1>& total) {
    put(db[c], static_cast<float>(total.of[0]), adds);
  };
  if (column == 1) {
    sum_wide_columns<1>(
        dy.rows, dy.cols, row % kWide == 0 && begins_wide(data), slot,
        [=] FL_BODY(auto width, std::int64_t r, std::int64_t c, auto& sums) {
          const auto values = load(width, data, r * row + c);
          for (int k = 0; k < width.value; ++k) sums[0][k] += values[k];
        },
        finish);
    return;
  }
  sum_columns<1>(
      dy.rows, dy.cols, slot,
      [=] FL_BODY(std::int64_t r, std::int64_t c) { return Sums<1>{{data[r * row + c * column]}}; },
      finish);
}

}  // namespace flexlegion::gpu
