// One unit of a long short-term memory in one step of one sample: for the CPU's kernel and the
// GPU's.
#pragma once

#include <cstdint>

#include "ops/vector_math.h"

namespace flexlegion::lstm {

constexpr int kGates = 4;      // i, f, g, o: neighbours in weights, planes in what is saved
constexpr int kCell = kGates;  // the plane after them
constexpr int kPlanes = kGates + 1;

// From the gates' arguments x (without the bias) to the saved planes, which lie `plane` apart, and
// h.
FL_DEVICE FLEXLEGION_INLINE void unit_forward(const float* x, const float* bias, float c_before,
                                              float* saved, std::int64_t plane, float& h) {
  const float i = vector_sigmoid(x[0] + bias[0]);
  const float f = vector_sigmoid(x[1] + bias[1]);
  const float g = vector_tanh(x[2] + bias[2]);
  const float o = vector_sigmoid(x[3] + bias[3]);
  const float c = f * c_before + i * g;
  saved[0] = i;
  saved[plane] = f;
  saved[2 * plane] = g;
  saved[3 * plane] = o;
  saved[kCell * plane] = c;
  h = o * vector_tanh(c);
}

// The same backwards: from the gradients of h and c to those of the gates' arguments, dx. Returns
// the gradient of c_before.
FL_DEVICE FLEXLEGION_INLINE float unit_backward(const float* saved, std::int64_t plane,
                                                float c_before, float dh, float dc, float* dx) {
  const float i = saved[0], f = saved[plane];
  const float g = saved[2 * plane], o = saved[3 * plane];
  const float tanh_c = vector_tanh(saved[kCell * plane]);
  const float dc_now = dc + dh * o * (1.0f - tanh_c * tanh_c);
  dx[0] = dc_now * g * i * (1.0f - i);
  dx[1] = dc_now * c_before * f * (1.0f - f);
  dx[2] = dc_now * i * (1.0f - g * g);
  dx[3] = dh * tanh_c * o * (1.0f - o);
  return dc_now * f;
}

}  // namespace flexlegion::lstm
