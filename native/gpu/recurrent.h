// What recurrent layers on a GPU share: where steps stand in memory, operands that may be missing,
// and the gradient of a kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/blas.h"
#include "gpu/portable.h"
#include "gpu/real.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {

// A tensor (n, ...) as dense memory, of its own type; nothing stands for zeros.
inline Reals optional_rows(const std::vector<TensorView>& views, std::size_t i, int slot) {
  if (i >= views.size() || !views[i].present()) return {};
  const DataType type = views[i].type;
  return {DenseInput(views[i], slot, type).memory(), type};
}
// An element of it.
FL_DEVICE inline float at(const Reals& rows, std::int64_t k) {
  return rows.present() ? static_cast<float>(rows[k]) : 0.0f;
}

template <int N>
FL_DEVICE inline void store(const float (&values)[N], const Reals& to) {
  for (int k = 0; k < N; ++k) to[k] = values[k];
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
  // Step t of rows (n steps, columns).
  Matrix step(const Matrix& rows, std::int64_t t) const {
    return Matrix::row_major(rows.at(row(0, t) * rows.cols), n, rows.cols, steps * rows.cols,
                             rows.type);
  }
};

// Of weight i, by which x was multiplied to the gates' arguments: gates^T x.
inline void kernel_gradient(KernelTask& task, std::size_t i, const Matrix& gates, const Matrix& x,
                            int slot) {
  multiply_into(task.weight_grads[i], slot, task.adds_to_weight_grad(i), gates.transposed(), x);
}

}  // namespace flexlegion::gpu
