// The activations that a convolution or a dense layer can end with.
#pragma once

#include "gpu/view.h"
#include "ops/activation.h"
#include "ops/matrix.h"

namespace flexlegion::gpu {

FL_DEVICE inline float apply(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return relu_of(x);
    case Activation::sigmoid:
      return 1.0f / (1.0f + expf(-x));
    case Activation::tanh:
      return tanhf(x);
    default:
      return x;
  }
}

// The derivative at x, told by y = f(x) alone.
FL_DEVICE inline float derivative(Activation activation, float y) {
  switch (activation) {
    case Activation::relu:
      return y <= 0.0f ? 0.0f : 1.0f;
    case Activation::sigmoid:
      return y * (1.0f - y);
    case Activation::tanh:
      return 1.0f - y * y;
    default:
      return 1.0f;
  }
}

// y(r, c) = f(x(r, c) + bias[c]) over dense rows; y may lie where x does, and the bias may be
// absent.
void add_bias_and_activate(const Reals& x, const Reals& y, const Reals& bias, std::int64_t rows,
                           std::int64_t columns, Activation activation);

// As ops/activation.h's activation_backward().
void activation_backward(Activation activation, const TensorView& output_grad,
                         const TensorView& output, const TensorView& result, bool adds = false);

// bias_grad[c] = or += the sum of dy's rows. Takes scratch slot `slot`.
void bias_gradient(const Matrix& dy, const TensorView& bias_grad, int slot, bool adds);

}  // namespace flexlegion::gpu
