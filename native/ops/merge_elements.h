// How two partial values of one element become one, for the CPU and the GPU.
#pragma once

#include <cmath>

#include "gpu/portable.h"

namespace flexlegion {

// NaN, if one of them is.
FL_DEVICE inline float larger(float a, float b) { return a > b || a != a ? a : b; }

// log(e^a + e^b), also where these are too large or too small for a float.
FL_DEVICE inline float log_add_exp(float a, float b) {
  constexpr float kLog2 = 0.693147181f;
  if (a == b) return a + kLog2;  // of infinities, too
  return larger(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
}

// Whether they are equal, or both NaN.
FL_DEVICE inline bool same_number(float a, float b) { return a == b || (a != a && b != b); }

}  // namespace flexlegion
