// One unit of a gated recurrent unit in one step of one sample: for the CPU's kernel and the GPU's.
#pragma once

#include <cstdint>

#include "ops/vector_math.h"

namespace flexlegion::gru {

constexpr int kGates = 3;   // r, z, n: neighbours in weights
constexpr int kPlanes = 4;  // of what is saved: r, z, n, and what r multiplies

// From the products of the kernel with x and of the recurrent kernel with h (both without their
// biases) to the saved planes, which lie `plane` apart, and the new h.
FL_DEVICE FLEXLEGION_INLINE void unit_forward(const float* x, const float* bias, const float* g,
                                              const float* recurrent_bias, float h_before,
                                              float* saved, std::int64_t plane, float& h) {
  const float r = vector_sigmoid(x[0] + bias[0] + g[0] + recurrent_bias[0]);
  const float z = vector_sigmoid(x[1] + bias[1] + g[1] + recurrent_bias[1]);
  const float inner = g[2] + recurrent_bias[2];
  const float n = vector_tanh(x[2] + bias[2] + r * inner);
  saved[0] = r;
  saved[plane] = z;
  saved[2 * plane] = n;
  saved[3 * plane] = inner;
  h = (1.0f - z) * n + z * h_before;
}

// The same backwards: from the gradient of h to those of both products, dx and dg. Returns that of
// h_before, but for what comes by the recurrent kernel.
FL_DEVICE FLEXLEGION_INLINE float unit_backward(const float* saved, std::int64_t plane,
                                                float h_before, float dh, float* dx, float* dg) {
  const float r = saved[0], z = saved[plane], n = saved[2 * plane], inner = saved[3 * plane];
  const float dn = dh * (1.0f - z) * (1.0f - n * n);
  dx[0] = dg[0] = dn * inner * r * (1.0f - r);
  dx[1] = dg[1] = dh * (h_before - n) * z * (1.0f - z);
  dx[2] = dn;
  dg[2] = dn * r;
  return dh * z;
}

}  // namespace flexlegion::gru
