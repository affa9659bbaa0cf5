#include "gpu/convolution.h"

#include <array>
#include <map>
#include <memory>
#include <tuple>

#if FLEXLEGION_CUDA
#include <cuda_bf16.h>

#include "gpu/launch.h"
#endif

namespace flexlegion::gpu {

namespace {

std::int64_t kernels(const ConvTile& v) {
  return v.filters * v.h.kernel * v.w.kernel * (v.channels / v.groups);
}
std::int64_t outputs(const ConvTile& v) { return v.samples * v.h.out * v.w.out * v.filters; }

}  // namespace

#if !FLEXLEGION_CUDA

namespace {

std::int64_t inputs(const ConvTile& v) { return v.samples * v.h.in * v.w.in * v.channels; }

// body(offset of x, offset of the kernel, offset of y) for every product that a convolution sums.
template <typename Body>
void for_each_product(const ConvTile& v, const Body& body) {
  const std::int64_t i_group = v.channels / v.groups, o_group = v.filters / v.groups;
  for (std::int64_t n = 0; n < v.samples; ++n) {
    for (std::int64_t oh = 0; oh < v.h.out; ++oh) {
      for (std::int64_t ow = 0; ow < v.w.out; ++ow) {
        for (std::int64_t kh = 0; kh < v.h.kernel; ++kh) {
          for (std::int64_t kw = 0; kw < v.w.kernel; ++kw) {
            const std::int64_t ih = v.h.under(oh, kh), iw = v.w.under(ow, kw);
            if (ih < 0 || ih >= v.h.in || iw < 0 || iw >= v.w.in) continue;
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

}  // namespace

void convolve(const ConvTile& conv, const float* x, const float* kernel, float* y) {
  std::fill_n(y, outputs(conv), 0.0f);
  for_each_product(
      conv, [=](std::int64_t i, std::int64_t k, std::int64_t o) { y[o] += x[i] * kernel[k]; });
}

void convolve_backward_data(const ConvTile& conv, const float* kernel, const float* dy, float* dx) {
  std::fill_n(dx, inputs(conv), 0.0f);
  for_each_product(
      conv, [=](std::int64_t i, std::int64_t k, std::int64_t o) { dx[i] += dy[o] * kernel[k]; });
}

void convolve_backward_kernel(const ConvTile& conv, const float* x, const float* dy,
                              float* dkernel) {
  std::fill_n(dkernel, kernels(conv), 0.0f);
  for_each_product(
      conv, [=](std::int64_t i, std::int64_t k, std::int64_t o) { dkernel[k] += dy[o] * x[i]; });
}

#else

namespace {

constexpr int kPaddedSlot = 10, kWorkspaceSlot = 11;
constexpr int kRoundedInputSlot = 13, kRoundedKernelSlot = 14, kRoundedOutputSlot = 15;

// Descriptors, and for each direction the algorithms that can compute it, best first by cuDNN's
// heuristics: asking them takes longer than many a convolution.
struct Plan {
  static constexpr int kAlgorithms = 8;
  template <typename Performance>
  struct Algorithms {
    Performance found[kAlgorithms];
    int count = 0;
  };

  cudnnTensorDescriptor_t x{}, y{};
  cudnnFilterDescriptor_t kernel{};
  cudnnConvolutionDescriptor_t conv{};
  AxisPadding h, w;
  std::int64_t in_h, in_w;  // of x, padded in memory
  Algorithms<cudnnConvolutionFwdAlgoPerf_t> forward;
  Algorithms<cudnnConvolutionBwdDataAlgoPerf_t> backward_data;
  Algorithms<cudnnConvolutionBwdFilterAlgoPerf_t> backward_kernel;
  bool usable = true;  // until cuDNN says that it cannot compute it in this precision

  Plan(const ConvTile& v, Precision precision)
      : h(v.h),
        w(v.w),
        in_h(v.h.in + h.before + h.after),
        in_w(v.w.in + w.before + w.after),
        precision_(precision) {
    describe(v);
    usable =
        accepted(cudnnGetConvolutionForwardAlgorithm_v7(dnn(), x, kernel, conv, y, kAlgorithms,
                                                        &forward.count, forward.found)) &&
        accepted(cudnnGetConvolutionBackwardDataAlgorithm_v7(
            dnn(), kernel, y, conv, x, kAlgorithms, &backward_data.count, backward_data.found)) &&
        accepted(cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            dnn(), x, y, conv, kernel, kAlgorithms, &backward_kernel.count, backward_kernel.found));
  }
  Plan(const Plan&) = delete;
  ~Plan() {
    cudnnDestroyTensorDescriptor(x);
    cudnnDestroyTensorDescriptor(y);
    cudnnDestroyFilterDescriptor(kernel);
    cudnnDestroyConvolutionDescriptor(conv);
  }

  bool pads_in_memory() const { return h.in_memory() || w.in_memory(); }

  bool rounds() const { return precision_ == Precision::bf16; }

  // False if cuDNN lacks that in bf16, of which it has less than of the others: GPUs without it,
  // some shapes. Other failures are thrown.
  bool accepted(cudnnStatus_t status) const {
    const bool lacks = status >= CUDNN_STATUS_NOT_SUPPORTED && status < kNextCategory;
    if (rounds() && (lacks || status == CUDNN_STATUS_BAD_PARAM)) return false;
    check(status);
    return true;
  }

  // The best algorithm whose workspace fits into the scratch memory that is left; `conv` computes
  // as it does from now on. In bf16, null if there is none.
  template <typename Performance>
  const Performance* choose(const Algorithms<Performance>& algorithms) const {
    for (int i = 0; i < algorithms.count; ++i) {
      const Performance& one = algorithms.found[i];
      if (one.status != CUDNN_STATUS_SUCCESS ||
          static_cast<std::int64_t>(one.memory) + 1024 > scratch_left()) {
        continue;
      }
      // Single precision stays that.
      if (precision_ != Precision::fp32) check(cudnnSetConvolutionMathType(conv, one.mathType));
      return &one;
    }
    if (rounds()) return nullptr;
    throw std::runtime_error("cuDNN has no algorithm for a convolution in the scratch memory left");
  }

 private:
  static constexpr int kNextCategory = CUDNN_STATUS_NOT_SUPPORTED + 1000;

  void describe(const ConvTile& v) {
    const auto type = rounds() ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const auto i = [](std::int64_t n) { return static_cast<int>(n); };
    check(cudnnCreateTensorDescriptor(&x));
    check(cudnnCreateTensorDescriptor(&y));
    check(cudnnCreateFilterDescriptor(&kernel));
    check(cudnnCreateConvolutionDescriptor(&conv));
    check(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, type, i(v.samples), i(v.channels),
                                     i(in_h), i(in_w)));
    check(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, type, i(v.samples), i(v.filters),
                                     i(v.h.out), i(v.w.out)));
    check(cudnnSetFilter4dDescriptor(kernel, type, CUDNN_TENSOR_NHWC, i(v.filters),
                                     i(v.channels / v.groups), i(v.h.kernel), i(v.w.kernel)));
    check(cudnnSetConvolution2dDescriptor(conv, i(h.both), i(w.both), i(v.h.stride), i(v.w.stride),
                                          i(v.h.dilation), i(v.w.dilation), CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT));
    check(cudnnSetConvolutionGroupCount(conv, i(v.groups)));
    check(cudnnSetConvolutionMathType(conv, precision_ == Precision::fp32 ? CUDNN_FMA_MATH
                                            : precision_ == Precision::tf32
                                                ? CUDNN_DEFAULT_MATH
                                                : CUDNN_TENSOR_OP_MATH));
  }

  Precision precision_;
};

// A thread is one device's, so its plans are, too.
Plan& plan_of(const ConvTile& v, Precision p) {
  using Key = std::array<std::int64_t, 19>;
  thread_local std::map<Key, std::unique_ptr<Plan> > plans;
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
                v.h.dilation,
                v.w.in,
                v.w.out,
                v.w.before,
                v.w.after,
                v.w.kernel,
                v.w.stride,
                v.w.dilation,
                static_cast<std::int64_t>(p)};
  std::unique_ptr<Plan>& plan = plans[key];
  if (plan == nullptr) plan = std::make_unique<Plan>(v, p);
  return *plan;
}

float* workspace(std::size_t bytes) {
  return scratch(kWorkspaceSlot, static_cast<std::int64_t>(bytes / sizeof(float) + 1));
}

TensorView interior_of(float* padded, const ConvTile& v, const Plan& plan) {
  const TensorView whole =
      dense_view(padded, Rect::of_shape({v.samples, plan.in_h, plan.in_w, v.channels}), {});
  const std::int64_t top = plan.h.before, left = plan.w.before;
  return narrowed(narrowed(whole, 1, top, top + v.h.in), 2, left, left + v.w.in);
}

TensorView dense_input(float* x, const ConvTile& v) {
  return dense_view(x, Rect::of_shape({v.samples, v.h.in, v.w.in, v.channels}), {});
}

std::int64_t padded_volume(const ConvTile& v, const Plan& plan) {
  return v.samples * plan.in_h * plan.in_w * v.channels;
}

const float* padded_input(const ConvTile& v, const Plan& plan, const float* x) {
  if (!plan.pads_in_memory()) return x;
  float* const padded = scratch(kPaddedSlot, padded_volume(v, plan));
  check(cudaMemsetAsync(padded, 0, static_cast<std::size_t>(padded_volume(v, plan)) * sizeof(float),
                        stream()));
  gpu::copy_view(interior_of(padded, v, plan), dense_input(const_cast<float*>(x), v));
  return padded;
}

constexpr float kOne = 1.0f, kZero = 0.0f;

// What cuDNN reads: the numbers themselves, or a rounded copy of them.
const void* operand(const Plan& plan, int slot, const float* values, std::int64_t n) {
  if (!plan.rounds()) return values;
  auto* const rounded = reinterpret_cast<__nv_bfloat16*>(scratch(slot, (n + 1) / 2));
  for_each(n, [=] FL_BODY(std::int64_t i) { rounded[i] = __float2bfloat16(values[i]); });
  return rounded;
}

// Where cuDNN writes, and how that becomes the result.
class Result {
 public:
  Result(const Plan& plan, int slot, float* values, std::int64_t n)
      : values_(values),
        n_(n),
        rounded_(plan.rounds() ? reinterpret_cast<__nv_bfloat16*>(scratch(slot, (n + 1) / 2))
                               : nullptr) {}
  void* data() const { return rounded_ == nullptr ? static_cast<void*>(values_) : rounded_; }
  void commit() const {
    if (rounded_ == nullptr) return;
    float* const values = values_;
    const __nv_bfloat16* const rounded = rounded_;
    for_each(n_, [=] FL_BODY(std::int64_t i) { values[i] = __bfloat162float(rounded[i]); });
  }

 private:
  float* values_;
  std::int64_t n_;
  __nv_bfloat16* rounded_;
};

// Whether rounded copies of all operands leave room for as much again.
bool rounded_fits(const ConvTile& v, const Plan& plan) {
  return 4 * (2 * padded_volume(v, plan) + kernels(v) + outputs(v)) < scratch_left();
}

// body(plan) computes, or returns false if cuDNN cannot in that precision: then tf32 does.
template <typename Body>
void compute(const ConvTile& v, const Body& body) {
  if (precision() == Precision::bf16) {
    Plan& plan = plan_of(v, Precision::bf16);
    if (plan.usable && rounded_fits(v, plan)) {
      plan.usable = body(plan);
      if (plan.usable) return;
    }
  }
  body(plan_of(v, precision() == Precision::fp32 ? Precision::fp32 : Precision::tf32));
}

}  // namespace

void convolve(const ConvTile& conv, const float* x, const float* kernel, float* y) {
  compute(conv, [&](const Plan& plan) {
    const void* const in =
        operand(plan, kRoundedInputSlot, padded_input(conv, plan, x), padded_volume(conv, plan));
    const void* const weights = operand(plan, kRoundedKernelSlot, kernel, kernels(conv));
    const Result out(plan, kRoundedOutputSlot, y, outputs(conv));
    const auto* const best = plan.choose(plan.forward);
    if (best == nullptr ||
        !plan.accepted(cudnnConvolutionForward(dnn(), &kOne, plan.x, in, plan.kernel, weights,
                                               plan.conv, best->algo, workspace(best->memory),
                                               best->memory, &kZero, plan.y, out.data()))) {
      return false;
    }
    out.commit();
    return true;
  });
}

void convolve_backward_data(const ConvTile& conv, const float* kernel, const float* dy, float* dx) {
  compute(conv, [&](const Plan& plan) {
    const bool pads = plan.pads_in_memory();
    const std::int64_t volume = padded_volume(conv, plan);
    float* const padded = pads ? scratch(kPaddedSlot, volume) : dx;
    const void* const weights = operand(plan, kRoundedKernelSlot, kernel, kernels(conv));
    const void* const in = operand(plan, kRoundedOutputSlot, dy, outputs(conv));
    const Result out(plan, kRoundedInputSlot, padded, volume);
    const auto* const best = plan.choose(plan.backward_data);
    if (best == nullptr ||
        !plan.accepted(cudnnConvolutionBackwardData(dnn(), &kOne, plan.kernel, weights, plan.y, in,
                                                    plan.conv, best->algo, workspace(best->memory),
                                                    best->memory, &kZero, plan.x, out.data()))) {
      return false;
    }
    out.commit();
    if (pads) gpu::copy_view(dense_input(dx, conv), interior_of(padded, conv, plan));
    return true;
  });
}

void convolve_backward_kernel(const ConvTile& conv, const float* x, const float* dy,
                              float* dkernel) {
  compute(conv, [&](const Plan& plan) {
    const void* const in =
        operand(plan, kRoundedInputSlot, padded_input(conv, plan, x), padded_volume(conv, plan));
    const void* const gradient = operand(plan, kRoundedOutputSlot, dy, outputs(conv));
    const Result out(plan, kRoundedKernelSlot, dkernel, kernels(conv));
    const auto* const best = plan.choose(plan.backward_kernel);
    if (best == nullptr ||
        !plan.accepted(cudnnConvolutionBackwardFilter(
            dnn(), &kOne, plan.x, in, plan.y, gradient, plan.conv, best->algo,
            workspace(best->memory), best->memory, &kZero, plan.kernel, out.data()))) {
      return false;
    }
    out.commit();
    return true;
  });
}

#endif

}  // namespace flexlegion::gpu
