// cosine: output(..., c) = x . w(c) / (|x| |w(c)|), of rows x of the input and w(c) of the kernel.
//
// The gradients are derived in ops/cosine.cc. The products have factors of x's type.
//
// Launches: forwards one for each factor's lengths, the product, and the scaling of the result in
// place; backwards the scaled gradient, and for each wanted gradient its sums of dy y, the product
// and the correction.
#include "gpu/blas.h"
#include "gpu/column_sums.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
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
  kPartialSums,
  kResult
};

constexpr float kShortest = 1e-12f;  // a shorter row counts as one of this length

// 1 / |row| of each row: a team adds the squares of a row.
const float* inverse_lengths(const Matrix& m, int slot) {
  float* const result = scratch(slot, m.rows);
  for_each_team(m.rows, m.cols, [=] FL_BODY(const Team& team, std::int64_t r) {
    float mine = 0;
    for (std::int64_t i = team.rank; i < m.cols; i += team.size) {
      const float x = reals(m)[r * m.row + i * m.col];
      mine += x * x;
    }
    const float length = sqrtf(team.sum(mine));
    if (team.rank == 0) result[r] = 1.0f / (length > kShortest ? length : kShortest);
  });
  return result;
}

// result(r, c) = m(r, c) a(r) b(c)
void scale(const Matrix& m, const float* a, const float* b, const Matrix& result) {
  for_each(m.rows * m.cols, [=] FL_BODY(std::int64_t i) {
    const std::int64_t r = i / m.cols, c = i % m.cols;
    reals(result)[r * result.row + c] = reals(m)[r * m.row + c * m.col] * a[r] * b[c];
  });
}

// The gradient of rows, x or w alike: scaled others - scales^2 sums rows. The first term is a
// product, straight into the gradient; the second is subtracted from it in one pass.
void gradient(const Matrix& scaled, const Matrix& others, const Matrix& rows, const float* scales,
              const float* sums, const TensorView& grad, bool adds) {
  const OutputMatrix result(grad, kResult, adds);
  const Matrix to = result.matrix();
  multiply(scaled, others, to, result.adds());
  for_each(rows.rows * rows.cols, [=] FL_BODY(std::int64_t i) {
    const std::int64_t r = i / rows.cols, k = i % rows.cols;
    to.f32()[r * to.row + k * to.col] -=
        scales[r] * scales[r] * sums[r] * reals(rows)[r * rows.row + k * rows.col];
  });
  result.commit();
}

// Lengths are computed again backwards: two reads of the factors, instead of tensors that are saved
// and moved.
class Cosine : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    const DataType type = task.inputs[0].type;
    const Matrix x = input_matrix(task.inputs[0], kInput, type);
    const Matrix w = input_matrix(task.weights[0], kKernel, type);
    const float* const a = inverse_lengths(x, kInputScales);
    const float* const b = inverse_lengths(w, kKernelScales);
    const DenseOutput y(task.outputs[0], kResult);
    const Matrix result = Matrix::row_major(y.data(), x.rows, w.rows, w.rows);
    multiply(x, w.transposed(), result);
    scale(result, a, b, result);
    y.commit();
  }

  // dy / (|x| |w|) is a factor of both products, so it is made once.
  void backward(KernelTask& task) override {
    if (task.output_grads[0].tile.empty()) return;
    const DataType type = task.inputs[0].type;
    const Matrix x = input_matrix(task.inputs[0], kInput, type);
    const Matrix w = input_matrix(task.weights[0], kKernel, type);
    const Matrix y = input_matrix(task.outputs[0], kOutput, type);
    const Matrix dy = input_matrix(task.output_grads[0], kOutputGrad, type);
    const float* const a = inverse_lengths(x, kInputScales);
    const float* const b = inverse_lengths(w, kKernelScales);
    const Matrix scaled = scratch_matrix(kScaled, x.rows, w.rows, type);
    scale(dy, a, b, scaled);
    if (task.wants_input_grad(0)) {
      float* const sums = scratch(kInputSums, x.rows);
      for_each_team(x.rows, w.rows, [=] FL_BODY(const Team& team, std::int64_t r) {
        float mine = 0;
        for (std::int64_t c = team.rank; c < dy.cols; c += team.size) {
          mine += reals(dy)[r * dy.row + c * dy.col] * reals(y)[r * y.row + c * y.col];
        }
        const float sum = team.sum(mine);
        if (team.rank == 0) sums[r] = sum;
      });
      gradient(scaled, w, x, a, sums, task.input_grads[0], task.adds_to_input_grad(0));
    }
    if (task.wants_weight_grad(0)) {
      float* const sums = scratch(kKernelSums, w.rows);
      sum_columns<1>(
          x.rows, w.rows, kPartialSums,
          [=] FL_BODY(std::int64_t r, std::int64_t c) {
            return Sums<1>{{static_cast<double>(reals(dy)[r * dy.row + c * dy.col]) *
                            reals(y)[r * y.row + c * y.col]}};
          },
          [=] FL_BODY(std::int64_t c, const Sums<1>& sum) {
            sums[c] = static_cast<float>(sum.of[0]);
          });
      gradient(scaled.transposed(), x, w, b, sums, task.weight_grads[0],
               task.adds_to_weight_grad(0));
    }
  }
};

const RegisterKernel registered(
    "cosine", [](const Attributes&) { return std::make_unique<Cosine>(); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
