// matmul: output(n, ..., i, j) = sum over k of a(n, ..., i, k) * b(n, ..., k, j).
//
// One product, of a batch of matrices, for each index of the dimensions before the last three.
//
// A product takes one batch dimension: the one before the matrices. Dimensions further out are
// walked, for a tile's strides there may be anything. Backwards da = dc b^T and db = a^T dc, by
// transposed views and without copies.
#include <algorithm>

#include "ops/products.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

bool contiguous_rows(const TensorView& view) { return view.dense_from(view.rank() - 1); }

// A tile whose rows are contiguous, and of that type: packed into scratch `slot` where they are
// not.
TensorView input_rows(const TensorView& view, int slot, DataType type) {
  if (contiguous_rows(view) && view.fits(type)) return view;
  return dense_view(DenseInput(view, slot, type).memory(), view.tile, view.shape, type);
}

class MatMul : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    const DataType type = task.outputs[0].type;
    const TensorView a = input_rows(task.inputs[0], 0, type);
    const TensorView b = input_rows(task.inputs[1], 1, type);
    multiply(a, false, b, false, task.outputs[0], false);
  }

  void backward(KernelTask& task) override {
    const TensorView& dc = task.output_grads[0];
    const TensorView rows = input_rows(dc, 0, dc.type);
    if (task.wants_input_grad(0)) {
      const TensorView b = input_rows(task.inputs[1], 1, dc.type);
      multiply(rows, false, b, true, task.input_grads[0], task.adds_to_input_grad(0));
    }
    if (task.wants_input_grad(1)) {
      const TensorView a = input_rows(task.inputs[0], 1, dc.type);
      multiply(a, true, rows, false, task.input_grads[1], task.adds_to_input_grad(1));
    }
  }

 private:
  // c = a b or c += a b, where a and b may stand for their transposes (scratch slot 2).
  void multiply(const TensorView& a, bool transpose_a, const TensorView& b, bool transpose_b,
                const TensorView& c, bool add) {
    if (c.tile.empty()) return;
    // Rows that lie apart can be written in place, but elements that do cannot.
    const OutputTile result(c, 2, add, contiguous_rows(c), a.type);
    ProductOptions options;
    options.adds = result.adds();
    const int batch = c.rank() - 3;
    const auto body = [&](const Offsets<3>& at) {
      const Matrix left = matrices(a, at[1], batch), right = matrices(b, at[2], batch);
      products_.multiply(transpose_a ? left.transposed() : left,
                         transpose_b ? right.transposed() : right,
                         matrices(result.view(), at[0], batch), options);
    };
    for_each_index<3>({&result.view(), &a, &b}, batch, body);
    result.commit();
  }

  Products products_;
};

const RegisterKernel registered("matmul",
                                [](const Attributes&) { return std::make_unique<MatMul>(); });

}  // namespace
}  // namespace flexlegion
