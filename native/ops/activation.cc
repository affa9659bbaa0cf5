// The activations that end a dense layer or a convolution, on CPU processors.
//
// Each of them has a gradient that its output y tells alone: of relu it is dy where y > 0, of
// sigmoid dy y (1 - y), of tanh dy (1 - y^2). So the operator saves its output, which the next
// operator needs anyway, and activates in place: no tensor holds what went into the activation.
//
// A pass reads and writes each element once, so it takes as long as the memory does. It runs on all
// threads of the device, over the pieces of a strided tile that are contiguous, and over copies of
// a few kilobytes where tiles are stored in two bytes (ops/floats.h).
#include "ops/activation.h"

#include <stdexcept>

#include "ops/floats.h"
#include "ops/simd.h"
#include "ops/vector_math.h"

namespace flexlegion {
namespace {

// The condition is y <= 0, not y > 0: a NaN in y then lets its gradient through, and training that
// diverges shows it.
FLEXLEGION_SIMD void relu_backward(const float* dy, const float* y, float* dx, std::int64_t n,
                                   bool adds) {
  write_or_add(adds, dx, n,
               [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA { return y[i] <= 0 ? 0.0f : dy[i]; });
}

FLEXLEGION_SIMD void sigmoid_backward(const float* dy, const float* y, float* dx, std::int64_t n,
                                      bool adds) {
  write_or_add(adds, dx, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return dy[i] * y[i] * (1.0f - y[i]);
  });
}

FLEXLEGION_SIMD void tanh_backward(const float* dy, const float* y, float* dx, std::int64_t n,
                                   bool adds) {
  write_or_add(adds, dx, n, [=](std::int64_t i) FLEXLEGION_INLINE_LAMBDA {
    return dy[i] * (1.0f - y[i] * y[i]);
  });
}

// One function each, because FLEXLEGION_SIMD compiles a whole function once for each generation of
// processors. A function pointer chosen at run time then costs one call a piece.
FLEXLEGION_SIMD void relu(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = relu_of(x[i]);
}

FLEXLEGION_SIMD void sigmoid(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = vector_sigmoid(x[i]);
}

FLEXLEGION_SIMD void tanh(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = vector_tanh(x[i]);
}

}  // namespace

Activation activation_of(const Attributes& attributes) {
  const std::string& name = attributes.text("activation");
  if (name == "none") return Activation::none;
  if (name == "relu") return Activation::relu;
  if (name == "sigmoid") return Activation::sigmoid;
  if (name == "tanh") return Activation::tanh;
  throw std::invalid_argument("activation '" + name + "' is none of: none relu sigmoid tanh");
}

void activate(Activation activation, const TensorView& x) {
  if (activation == Activation::none) return;
  const auto run = activation == Activation::relu      ? relu
                   : activation == Activation::sigmoid ? sigmoid
                                                       : tanh;
  share_floats<1, 1, 1>(Views<1>{&x},
                        [run](const Pointers<1>& at, std::int64_t n) { run(at[0], n); });
}

void activation_backward(Activation activation, const TensorView& output_grad,
                         const TensorView& output, const TensorView& result, bool adds) {
  if (activation == Activation::none) return write_or_add_view(result, output_grad, adds);
  // Whether the result is read as well as written is a constant of share_floats(): a result that is
  // only written need not be widened from two bytes first.
  const auto run = activation == Activation::relu      ? relu_backward
                   : activation == Activation::sigmoid ? sigmoid_backward
                                                       : tanh_backward;
  const Views<3> views{&result, &output_grad, &output};
  if (adds) {
    share_floats<1, 1, 3>(
        views, [run](const Pointers<3>& at, std::int64_t n) { run(at[1], at[2], at[0], n, true); });
  } else {
    share_floats<1, 0, 3>(views, [run](const Pointers<3>& at, std::int64_t n) {
      run(at[1], at[2], at[0], n, false);
    });
  }
}

}  // namespace flexlegion
