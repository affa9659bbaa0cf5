// What a batch normalisation can end with: an activation whose slope its backward pass finds from
// what goes into it, which it computes once more from its input.
#pragma once

#include <stdexcept>
#include <string>

#include "gpu/portable.h"
#include "ops/activation.h"
#include "ops/kernel.h"
#include "ops/vector_math.h"

namespace flexlegion {

enum class Epilogue { none, relu, relu6, silu, hardswish };

// The attribute "activation".
inline Epilogue epilogue_of(const Attributes& attributes) {
  const std::string name = attributes.text("activation");
  if (name == "none") return Epilogue::none;
  if (name == "relu") return Epilogue::relu;
  if (name == "relu6") return Epilogue::relu6;
  if (name == "silu") return Epilogue::silu;
  if (name == "hardswish") return Epilogue::hardswish;
  throw std::invalid_argument("no normalisation ends with '" + name + "'");
}

// x between 0 and `most`; NaN stays NaN.
FL_DEVICE FLEXLEGION_INLINE float clamped(float x, float most) {
  const float positive = relu_of(x);
  return positive > most ? most : positive;
}

// The activation of z.
FL_DEVICE FLEXLEGION_INLINE float ended(Epilogue epilogue, float z) {
  switch (epilogue) {
    case Epilogue::none:
      return z;
    case Epilogue::relu:
      return relu_of(z);
    case Epilogue::relu6:
      return clamped(z, 6.0f);
    case Epilogue::silu:
      return z * vector_sigmoid(z);
    case Epilogue::hardswish:
      return z * clamped(z + 3.0f, 6.0f) * (1.0f / 6.0f);
  }
  return z;
}

// Its gradient with respect to z, of a gradient of its result.
FL_DEVICE FLEXLEGION_INLINE float through(Epilogue epilogue, float z, float grad) {
  switch (epilogue) {
    case Epilogue::none:
      return grad;
    case Epilogue::relu:
      return z <= 0.0f ? 0.0f : grad;
    case Epilogue::relu6:
      return z <= 0.0f || z >= 6.0f ? 0.0f : grad;
    case Epilogue::silu: {
      const float gate = vector_sigmoid(z);
      return grad * (gate * (1.0f + z * (1.0f - gate)));
    }
    case Epilogue::hardswish: {
      const float slope = z * (1.0f / 3.0f) + 0.5f, right = z >= 3.0f ? 1.0f : slope;
      return grad * (z <= -3.0f ? 0.0f : right);
    }
  }
  return grad;
}

}  // namespace flexlegion
