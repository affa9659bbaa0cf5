// A product, with what a dense layer does to it: cuBLASLt's kernels end with a bias, so that
// without an activation the result is written once.
#pragma once

#include "gpu/blas.h"
#include "ops/activation.h"

namespace flexlegion::gpu {

// c(r, j) = f(sum over i of a(r, i) b(i, j) + bias[j]), of dense rows c; the bias, of floats, may
// be absent. If c is narrow, the sum is rounded once, and cuBLASLt takes the bias rounded. Takes
// scratch slots `slot` and `slot` + 1.
void multiply_and_activate(const Matrix& a, const Matrix& b, const Matrix& c, const Reals& bias,
                           Activation activation, int slot);

}  // namespace flexlegion::gpu
