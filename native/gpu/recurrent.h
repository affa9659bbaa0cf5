// What recurrent layers on a GPU share: where steps stand in memory, operands that may be missing,
// and the gradient of a kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/blas.h"
#include "gpu/portable.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {

// A tensor (n, ...) as dense memory, or null, which stands for zeros.
inline float* optional_rows(const std::vector<TensorView>& views, std::size_t i, int slot) {
  return i < views.size() ? DenseInput(views[i], slot).data() : nullptr;
}

// What a layer's passes know of a task, as bodies capture it.
struct Steps {
  std::int64_t n, steps, units;
  bool reverse;  // whether the last step comes first

  Steps(const KernelTask& task, bool reverse)
      : n(task.inputs[0].extent(0)),
        steps(task.inputs[0].extent(1)),
        units(task.weights[0].extent(0)),
        reverse(reverse) {}

  // Where step t of a sample stands among rows (n steps): steps are counted as they are computed.
  FL_DEVICE std::int64_t row(std::int64_t i, std::int64_t t) const {
    return i * steps + (reverse ? steps - 1 - t : t);
  }
  // Step t of `data` (n, steps, columns).
  Matrix step(float* data, std::int64_t columns, std::int64_t t) const {
    return Matrix::row_major(data + row(0, t) * columns, n, columns, steps * columns);
  }
};

// Of weight i, by which x was multiplied to the gates' arguments: gates^T x.
inline void kernel_gradient(KernelTask& task, std::size_t i, const Matrix& gates, const Matrix& x,
                            int slot) {
  const OutputMatrix dw(task.weight_grads[i], slot, task.adds_to_weight_grad(i));
  multiply(gates.transposed(), x, dw.matrix(), dw.adds());
  dw.commit();
}

}  // namespace flexlegion::gpu
