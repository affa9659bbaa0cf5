// The activations that a convolution or a dense layer can end with.
#pragma once

#include "gpu/portable.h"
#include "ops/kernel.h"
#include "ops/simd.h"

namespace flexlegion {

enum class Activation { none, relu, sigmoid, tanh };

// max(x, 0). NaN stays NaN, so that training that diverges is noticed: a comparison with NaN is
// false. Compilers make one instruction of it.
FL_DEVICE FLEXLEGION_INLINE float relu_of(float x) { return x < 0.0f ? 0.0f : x; }

// The attribute "activation" of a layer.
Activation activation_of(const Attributes& attributes);

// x = f(x).
void activate(Activation activation, const TensorView& x);

// result = output_grad * f'(x), where the derivative is told by output = f(x) alone. Tiles of equal
// extents; result may be output_grad itself. If it `adds`, result += ...
void activation_backward(Activation activation, const TensorView& output_grad,
                         const TensorView& output, const TensorView& result, bool adds = false);

}  // namespace flexlegion
