// The activations that a convolution or a dense layer can end with.
#pragma once

#include "ops/kernel.h"

namespace flexlegion {

enum class Activation { none, relu, sigmoid, tanh };

// The attribute "activation" of a layer.
Activation activation_of(const Attributes& attributes);

// x = f(x).
void activate(Activation activation, const TensorView& x);

// result = output_grad * f'(x), where the derivative is told by output = f(x) alone. Tiles of equal
// extents; result may be output_grad itself. If it `adds`, result += ...
void activation_backward(Activation activation, const TensorView& output_grad,
                         const TensorView& output, const TensorView& result, bool adds = false);

}  // namespace flexlegion
