// matmul: output(n, ..., i, j) = sum over k of a(n, ..., i, k) * b(n, ..., k, j).
//
// One product of a batch of matrices, or several, where those do not lie at equal distances.
//
// cuBLAS takes one distance between the matrices of a batch, so as many dimensions as lie at equal
// distances in all three operands make one batch: for dense tensors all of them.
#include "gpu/blas.h"
#include "ops/kernel.h"
#include "ops/strided_loop.h"

namespace flexlegion::gpu {
namespace {

bool contiguous_rows(const TensorView& view) { return view.dense_from(view.rank() - 1); }

// A tile whose rows are contiguous, and of that type: packed into scratch `slot` where they are
// not.
TensorView input_rows(const TensorView& view, int slot, DataType type) {
  if (contiguous_rows(view) && view.fits(type)) return view;
  return dense_view(DenseInput(view, slot, type).memory(), view.tile, view.shape, type);
}

// The first of the dimensions that number, up to the last two, matrices at equal distances.
int first_of_batch(const TensorView& view) {
  int d = view.rank() - 3;
  while (d > 0 && view.stride[d - 1] == view.extent(d) * view.stride[d]) --d;
  return d;
}

// c = a b or c += a b, where a and b may stand for their transposes (scratch slot 2).
void multiply_tiles(const TensorView& a, bool transpose_a, const TensorView& b, bool transpose_b,
                    const TensorView& c, bool add) {
  if (c.tile.empty()) return;
  const OutputTile result(c, 2, add, contiguous_rows(c), product_type(a.type, c.type));
  const TensorView& to = result.view();
  const int batch = std::max({first_of_batch(to), first_of_batch(a), first_of_batch(b)});
  for_each_index<3>({&to, &a, &b}, batch, [&](const Offsets<3>& at) {
    const Matrix left = matrices(a, at[1], batch), right = matrices(b, at[2], batch);
    multiply(transpose_a ? left.transposed() : left, transpose_b ? right.transposed() : right,
             matrices(to, at[0], batch), result.adds());
  });
  result.commit();
}

class MatMul : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const DataType type = task.outputs[0].type;
    const TensorView a = input_rows(task.inputs[0], 0, type);
    const TensorView b = input_rows(task.inputs[1], 1, type);
    multiply_tiles(a, false, b, false, task.outputs[0], false);
  }

  void backward(KernelTask& task) override {
    const DataType type = task.output_grads[0].type;
    const TensorView rows = input_rows(task.output_grads[0], 0, type);
    if (task.wants_input_grad(0)) {
      const TensorView b = input_rows(task.inputs[1], 1, type);
      multiply_tiles(rows, false, b, true, task.input_grads[0], task.adds_to_input_grad(0));
    }
    if (task.wants_input_grad(1)) {
      const TensorView a = input_rows(task.inputs[0], 1, type);
      multiply_tiles(a, true, rows, false, task.input_grads[1], task.adds_to_input_grad(1));
    }
  }
};

const RegisterKernel registered(
    "matmul", [](const Attributes&) { return std::make_unique<MatMul>(); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
