// cosine: output(..., c) = x . w(c) / (|x| |w(c)|), of rows x of the input and w(c) of the kernel.
//
// With a = 1 / |x| and b(c) = 1 / |w(c)|, the gradients are those of a product that is scaled by
// a b(c), less what would only lengthen a row:
//   dx    = sum over c of dy(c) a b(c) w(c) - a^2 (sum over c of dy(c) y(c)) x
//   dw(c) = sum over rows of dy(c) a b(c) x - b(c)^2 (sum over rows of dy(c) y(c)) w(c)
//
// The products have factors of x's type; lengths and sums are floats.
//
// Costs: one matrix product forwards and two backwards, as a dense layer has, and passes over rows
// for lengths and scales. Lengths are computed again in the backward pass: reading x and w once is
// cheaper than saving them as tensors that tasks would exchange.
#include <algorithm>
#include <cmath>

#include "ops/products.h"
#include "ops/simd.h"
#include "ops/written_row.h"

namespace flexlegion {
namespace {

enum Slot {
  kInput,
  kKernel,
  kOutput,
  kOutputGrad,
  kScaled,
  kInputScales,
  kKernelScales,
  kInputSums,
  kKernelSums,
  kResult,
  kRow,
  kOtherRow
};

constexpr float kShortest = 1e-12f;  // a shorter row counts as one of this length

FLEXLEGION_SIMD float inverse_length(const float* x, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return 1.0f / std::max(std::sqrt(sum), kShortest);
}

const float* inverse_lengths(const Matrix& m, int slot) {
  float* const result = scratch(slot, m.rows);
  for (std::int64_t r = 0; r < m.rows; ++r)
    result[r] = inverse_length(read_row(m, r, kRow), m.cols);
  return result;
}

FLEXLEGION_SIMD void scale_row(const float* x, float by, const float* scales, std::int64_t n,
                               float* result) {
  for (std::int64_t c = 0; c < n; ++c) result[c] = x[c] * by * scales[c];
}

// Adds dy y to `sums`, and returns its sum.
FLEXLEGION_SIMD float add_products(const float* dy, const float* y, std::int64_t n, float* sums) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t c = 0; c < n; ++c) {
    const float product = dy[c] * y[c];
    sums[c] += product;
    total += product;
  }
  return total;
}

FLEXLEGION_SIMD void subtract_scaled(const float* x, float by, std::int64_t n, float* from) {
  for (std::int64_t i = 0; i < n; ++i) from[i] -= by * x[i];
}

class Cosine : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const DataType type = task.inputs[0].type;
    const Matrix x = input_matrix(task.inputs[0], kInput, type);
    const Matrix w = input_matrix(task.weights[0], kKernel, type);
    const float* const a = inverse_lengths(x, kInputScales);
    const float* const b = inverse_lengths(w, kKernelScales);
    const OutputMatrix y(task.outputs[0], kResult);
    products_.multiply(x, w.transposed(), y.matrix());
    for (std::int64_t r = 0; r < x.rows; ++r) {
      float* const row = y.matrix().f32() + r * y.matrix().row;
      scale_row(row, a[r], b, w.rows, row);
    }
    y.commit();
  }

  // One pass over the rows of dy and y makes the scaled gradient, which both products share, and
  // the sums of dy y by row and by class, which both corrections need.
  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return;
    const DataType type = task.inputs[0].type;
    const Matrix x = input_matrix(task.inputs[0], kInput, type);
    const Matrix w = input_matrix(task.weights[0], kKernel, type);
    const Matrix y = input_matrix(task.outputs[0], kOutput, type);
    const Matrix dy = input_matrix(task.output_grads[0], kOutputGrad, type);
    const float* const a = inverse_lengths(x, kInputScales);
    const float* const b = inverse_lengths(w, kKernelScales);
    float* const of_inputs = scratch(kInputSums, x.rows);
    float* const of_kernel = scratch(kKernelSums, w.rows);
    std::fill_n(of_kernel, w.rows, 0.0f);
    const Matrix scaled = Matrix::row_major(scratch(kScaled, floats_for(x.rows * w.rows, type)),
                                            x.rows, w.rows, w.rows, type);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const float* const row = read_row(dy, r, kRow);
      of_inputs[r] = add_products(row, read_row(y, r, kOtherRow), w.rows, of_kernel);
      const WrittenRow to(scaled.at(r * scaled.row), type, w.rows, kOtherRow);
      scale_row(row, a[r], b, w.rows, to.floats());
      to.commit();
    }
    if (task.wants_input_grad(0)) {
      gradient(scaled, w, x, a, of_inputs, task.input_grads[0], task.adds_to_input_grad(0));
    }
    if (task.wants_weight_grad(0)) {
      gradient(scaled.transposed(), x, w, b, of_kernel, task.weight_grads[0],
               task.adds_to_weight_grad(0));
    }
  }

 private:
  // scaled others - scales^2 sums rows. Where the product is added to the gradient's tile itself,
  // the correction is subtracted from the sum in place; else from the product, before it is stored
  // or added.
  void gradient(const Matrix& scaled, const Matrix& others, const Matrix& rows, const float* scales,
                const float* sums, const TensorView& grad, bool adds) {
    const OutputMatrix result(grad, kResult, adds);
    ProductOptions options;
    options.adds = result.adds();
    products_.multiply(scaled, others, result.matrix(), options);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      subtract_scaled(read_row(rows, r, kRow), scales[r] * scales[r] * sums[r], rows.cols,
                      result.matrix().f32() + r * result.matrix().row);
    }
    result.commit();
  }

  Products products_;
};

const RegisterKernel registered("cosine",
                                [](const Attributes&) { return std::make_unique<Cosine>(); });

}  // namespace
}  // namespace flexlegion
