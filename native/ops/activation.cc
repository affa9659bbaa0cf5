#include "ops/activation.h"

#include <stdexcept>

#include "ops/floats.h"
#include "ops/simd.h"
#include "ops/vector_math.h"

namespace flexlegion {
namespace {

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
