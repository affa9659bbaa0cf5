#include "gpu/convolution.h"

#include <array>
#include <map>
#include <memory>
#include <tuple>

namespace flexlegion::gpu {

#if !FLEXLEGION_CUDA

namespace {

// body(offset of x, offset of the kernel, offset of y) for every product that a convolution sums.
template <typename Body>
void for_each_product(const Convolution& v, const Body& body) {
  const std::int64_t i_group = v.channels / v.groups, o_group = v.filters / v.groups;
  for (std::int64_t n = 0; n < v.samples; ++n) {
    for (std::int64_t oh = 0; oh < v.h.out; ++oh) {
      for (std::int64_t ow = 0; ow < v.w.out; ++ow) {
        for (std::int64_t ih = v.h.begin(oh); ih < v.h.end(oh); ++ih) {
          for (std::int64_t iw = v.w.begin(ow); iw < v.w.end(ow); ++iw) {
            const std::int64_t kh = ih - (oh * v.h.stride - v.h.before);
            const std::int64_t kw = iw - (ow * v.w.stride - v.w.before);
            for (std::int64_t o = 0; o < v.filters; ++o) {
              for (std::int64_t i = 0; i < i_group; ++i) {
                body(((n * v.h.in + ih) * v.w.in + iw) * v.channels + o / o_group * i_group + i,
                     ((o * v.h.kernel + kh) * v.w.kernel + kw) * i_group + i,
                     ((n * v.h.out + oh) * v.w.out + ow) * v.filters + o);
              }
            }
          }
        }
      }
    }
  }
}

std::int64_t inputs(const Convolution& v) { return v.samples * v.h.in * v.w.in * v.channels; }
std::int64_t kernels(const Convolution& v) {
  return v.filters * v.h.kernel * v.w.kernel * (v.channels / v.groups);
}
std::int64_t outputs(const Convolution& v) { return v.samples * v.h.out * v.w.out * v.filters; }

}  // namespace

void convolve(const Convolution& conv, const float* x, const float* kernel, float* y) {
  std::fill_n(y, outputs(conv), 0.0f);
  for_each_product(
      conv, [=](std::int64_t i, std::int64_t k, std::int64_t o) { y[o] += x[i] * kernel[k]; });
}

void convolve_backward_data(const Convolution& conv, const float* kernel, const float* dy,
                            float* dx) {
  std::fill_n(dx, inputs(conv), 0.0f);
  for_each_product(
      conv, [=](std::int64_t i, std::int64_t k, std::int64_t o) { dx[i] += dy[o] * kernel[k]; });
}

void convolve_backward_kernel(const Convolution& conv, const float* x, const float* dy,
                              float* dkernel) {
  std::fill_n(dkernel, kernels(conv), 0.0f);
  for_each_product(
      conv, [=](std::int64_t i, std::int64_t k, std::int64_t o) { dkernel[k] += dy[o] * x[i]; });
}

#else

namespace {

constexpr int kPaddedSlot = 10, kWorkspaceSlot = 11;

// cuDNN pads both ends alike, but a tile at a tensor's border has its padding at one end: what one
// end has more than the other lies in scratch memory, as zeros around the tile.
struct Padding {
  std::int64_t h, w;  // cuDNN's
  std::int64_t before_h, after_h, before_w, after_w;

  explicit Padding(const Convolution& v)
      : h(std::max<std::int64_t>(0, std::min(v.h.before, v.h.after))),
        w(std::max<std::int64_t>(0, std::min(v.w.before, v.w.after))),
        before_h(std::max<std::int64_t>(0, v.h.before - h)),
        after_h(std::max<std::int64_t>(0, v.h.after - h)),
        before_w(std::max<std::int64_t>(0, v.w.before - w)),
        after_w(std::max<std::int64_t>(0, v.w.after - w)) {}

  bool any() const { return before_h + after_h + before_w + after_w > 0; }
};

// Descriptors, and for each direction the algorithm that cuDNN's heuristics prefer.
struct Plan {
  cudnnTensorDescriptor_t x{}, y{};
  cudnnFilterDescriptor_t kernel{};
  cudnnConvolutionDescriptor_t conv{};
  std::int64_t in_h = 0, in_w = 0;  // of x, padded

  Plan(const Convolution& v, Precision precision) {
    const Padding padding(v);
    in_h = v.h.in + padding.before_h + padding.after_h;
    in_w = v.w.in + padding.before_w + padding.after_w;
    const auto i = [](std::int64_t n) { return static_cast<int>(n); };
    check(cudnnCreateTensorDescriptor(&x));
    check(cudnnCreateTensorDescriptor(&y));
    check(cudnnCreateFilterDescriptor(&kernel));
    check(cudnnCreateConvolutionDescriptor(&conv));
    check(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, i(v.samples),
                                     i(v.channels), i(in_h), i(in_w)));
    check(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, i(v.samples),
                                     i(v.filters), i(v.h.out), i(v.w.out)));
    check(cudnnSetFilter4dDescriptor(kernel, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, i(v.filters),
                                     i(v.channels / v.groups), i(v.h.kernel), i(v.w.kernel)));
    check(cudnnSetConvolution2dDescriptor(conv, i(padding.h), i(padding.w), i(v.h.stride),
                                          i(v.w.stride), 1, 1, CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT));
    check(cudnnSetConvolutionGroupCount(conv, i(v.groups)));
    check(cudnnSetConvolutionMathType(conv, precision == Precision::fp32 ? CUDNN_FMA_MATH
                                            : precision == Precision::tf32
                                                ? CUDNN_DEFAULT_MATH
                                                : CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION));
  }
  Plan(const Plan&) = delete;
  ~Plan() {
    cudnnDestroyTensorDescriptor(x);
    cudnnDestroyTensorDescriptor(y);
    cudnnDestroyFilterDescriptor(kernel);
    cudnnDestroyConvolutionDescriptor(conv);
  }
};

// A thread is one device's, so its plans are, too.
const Plan& plan_of(const Convolution& v) {
  using Key = std::array<std::int64_t, 18>;
  thread_local std::map<Key, std::unique_ptr<Plan> > plans;
  const Precision p = precision();
  const Key key{v.samples,
                v.channels,
                v.filters,
                v.groups,
                v.h.in,
                v.h.out,
                v.h.before,
                v.h.after,
                v.h.kernel,
                v.h.stride,
                v.w.in,
                v.w.out,
                v.w.before,
                v.w.after,
                v.w.kernel,
                v.w.stride,
                static_cast<std::int64_t>(p)};
  std::unique_ptr<Plan>& plan = plans[key];
  if (plan == nullptr) plan = std::make_unique<Plan>(v, p);
  return *plan;
}

// The first algorithm that succeeds and whose workspace fits into the scratch memory that is left.
template <typename Performance>
const Performance& fitting(const Performance* found, int count) {
  for (int i = 0; i < count; ++i) {
    if (found[i].status == CUDNN_STATUS_SUCCESS &&
        static_cast<std::int64_t>(found[i].memory) + 256 <= scratch_left()) {
      return found[i];
    }
  }
  throw std::runtime_error("cuDNN has no algorithm for a convolution in the scratch memory left");
}

float* workspace(std::size_t bytes) {
  return scratch(kWorkspaceSlot, static_cast<std::int64_t>(bytes / sizeof(float) + 1));
}

TensorView interior_of(float* padded, const Convolution& v, const Plan& plan) {
  const Padding padding(v);
  const TensorView whole =
      dense_view(padded, Rect::of_shape({v.samples, plan.in_h, plan.in_w, v.channels}), {});
  return narrowed(narrowed(whole, 1, padding.before_h, padding.before_h + v.h.in), 2,
                  padding.before_w, padding.before_w + v.w.in);
}

TensorView dense_input(float* x, const Convolution& v) {
  return dense_view(x, Rect::of_shape({v.samples, v.h.in, v.w.in, v.channels}), {});
}

std::int64_t padded_volume(const Convolution& v, const Plan& plan) {
  return v.samples * plan.in_h * plan.in_w * v.channels;
}

const float* padded_input(const Convolution& v, const Plan& plan, const float* x) {
  if (!Padding(v).any()) return x;
  float* const padded = scratch(kPaddedSlot, padded_volume(v, plan));
  check(cudaMemsetAsync(padded, 0, static_cast<std::size_t>(padded_volume(v, plan)) * sizeof(float),
                        stream()));
  gpu::copy_view(interior_of(padded, v, plan), dense_input(const_cast<float*>(x), v));
  return padded;
}

constexpr int kAlgorithms = 8;
constexpr float kOne = 1.0f, kZero = 0.0f;

}  // namespace

void convolve(const Convolution& conv, const float* x, const float* kernel, float* y) {
  const Plan& plan = plan_of(conv);
  const float* const input = padded_input(conv, plan, x);
  cudnnConvolutionFwdAlgoPerf_t found[kAlgorithms];
  int count = 0;
  check(cudnnGetConvolutionForwardAlgorithm_v7(dnn(), plan.x, plan.kernel, plan.conv, plan.y,
                                               kAlgorithms, &count, found));
  const auto& best = fitting(found, count);
  check(cudnnSetConvolutionMathType(plan.conv, best.mathType));
  check(cudnnConvolutionForward(dnn(), &kOne, plan.x, input, plan.kernel, kernel, plan.conv,
                                best.algo, workspace(best.memory), best.memory, &kZero, plan.y, y));
}

void convolve_backward_data(const Convolution& conv, const float* kernel, const float* dy,
                            float* dx) {
  const Plan& plan = plan_of(conv);
  const bool pads = Padding(conv).any();
  float* const out = pads ? scratch(kPaddedSlot, padded_volume(conv, plan)) : dx;
  cudnnConvolutionBwdDataAlgoPerf_t found[kAlgorithms];
  int count = 0;
  check(cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn(), plan.kernel, plan.y, plan.conv, plan.x,
                                                    kAlgorithms, &count, found));
  const auto& best = fitting(found, count);
  check(cudnnSetConvolutionMathType(plan.conv, best.mathType));
  check(cudnnConvolutionBackwardData(dnn(), &kOne, plan.kernel, kernel, plan.y, dy, plan.conv,
                                     best.algo, workspace(best.memory), best.memory, &kZero, plan.x,
                                     out));
  if (pads) gpu::copy_view(dense_input(dx, conv), interior_of(out, conv, plan));
}

void convolve_backward_kernel(const Convolution& conv, const float* x, const float* dy,
                              float* dkernel) {
  const Plan& plan = plan_of(conv);
  const float* const input = padded_input(conv, plan, x);
  cudnnConvolutionBwdFilterAlgoPerf_t found[kAlgorithms];
  int count = 0;
  check(cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn(), plan.x, plan.y, plan.conv, plan.kernel,
                                                      kAlgorithms, &count, found));
  const auto& best = fitting(found, count);
  check(cudnnSetConvolutionMathType(plan.conv, best.mathType));
  check(cudnnConvolutionBackwardFilter(dnn(), &kOne, plan.x, input, plan.y, dy, plan.conv,
                                       best.algo, workspace(best.memory), best.memory, &kZero,
                                       plan.kernel, dkernel));
}

#endif

}  // namespace flexlegion::gpu
