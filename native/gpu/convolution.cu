// Convolutions by cuDNN: how they are described, which algorithm is taken, and in which type they
// are computed.
//
// 1. The type: tensors of two bytes as they are; in bf16 precision, floats are rounded into scratch
//    memory first, if there is room for it. cuDNN has less of these types than of floats. Where it
//    refuses, that is noted in the plan, and the convolution is computed in floats, from copies.
// 2. The plan, one a shape and type: descriptors, and the algorithms in the order of cuDNN's
//    heuristics. The heuristics take longer than many a convolution, so they are asked once.
// 3. The algorithm: the first whose workspace fits into the scratch memory that is left at this
//    moment. That memory is one arena for each device; nothing is allocated while training.
// 4. Padding: cuDNN pads both ends alike, but a tile at a tensor's border has its padding at one
//    end. What differs is padded in memory, by one copy of x (AxisPadding).
//
// On the host, six nested loops do the same, for tests.
#include "gpu/convolution.h"

#include <array>
#include <map>
#include <memory>
#include <tuple>

#include <vector>

#include "gpu/launch.h"

namespace flexlegion::gpu {

namespace {

std::int64_t kernels(const ConvTile& v) {
  return v.filters * v.h.kernel * v.w.kernel * (v.channels / v.groups);
}
std::int64_t outputs(const ConvTile& v) { return v.samples * v.h.out * v.w.out * v.filters; }

}  // namespace

#if !FLEXLEGION_CUDA

namespace {

constexpr int kSumsSlot = 10;

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
            // Taps over the padding have no element under them.
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

// Sums are floats, and rounded once.
template <typename Body>
void sum_up(const ConvTile& conv, const Reals& result, std::int64_t n, const Body& body) {
  std::vector<float> sums(static_cast<std::size_t>(n));
  for_each_product(
      conv, [&](std::int64_t i, std::int64_t k, std::int64_t o) { body(sums.data(), i, k, o); });
  for (std::int64_t i = 0; i < n; ++i) result[i] = sums[static_cast<std::size_t>(i)];
}

}  // namespace

void convolve(const ConvTile& conv, const Reals& x, const Reals& kernel, const Reals& bias,
              Activation activation, const Reals& y) {
  const Reals sums(scratch(kSumsSlot, outputs(conv)), DataType::float32);
  sum_up(conv, sums, outputs(conv), [&](float* of, std::int64_t i, std::int64_t k, std::int64_t o) {
    of[o] += x[i] * kernel[k];
  });
  add_bias_and_activate(sums, y, bias, outputs(conv) / conv.filters, conv.filters, activation);
}

void convolve_backward_data(const ConvTile& conv, const Reals& kernel, const Reals& dy,
                            const Reals& dx) {
  sum_up(conv, dx, inputs(conv), [&](float* sums, std::int64_t i, std::int64_t k, std::int64_t o) {
    sums[i] += dy[o] * kernel[k];
  });
}

void convolve_backward_kernel(const ConvTile& conv, const Reals& x, const Reals& dy,
                              const Reals& dkernel) {
  sum_up(conv, dkernel, kernels(conv),
         [&](float* sums, std::int64_t i, std::int64_t k, std::int64_t o) {
           sums[k] += dy[o] * x[i];
         });
}

#else

namespace {

// Above the slots that kernels of convolutions use for themselves.
constexpr int kPaddedSlot = 10, kWorkspaceSlot = 11;
constexpr int kBiasSlot = 12, kInputSlot = 13, kKernelSlot = 14,
              kOutputSlot = 15;  // of cuDNN's type

cudnnDataType_t cudnn_type(DataType type) {
  return type == DataType::bfloat16  ? CUDNN_DATA_BFLOAT16
         : type == DataType::float16 ? CUDNN_DATA_HALF
                                     : CUDNN_DATA_FLOAT;
}

constexpr float kOne = 1.0f, kZero = 0.0f;

float* workspace(std::size_t bytes) {
  return scratch(kWorkspaceSlot, static_cast<std::int64_t>(bytes / sizeof(float) + 1));
}

// A convolution of tensors of one type: descriptors, and for each direction the algorithms that can
// compute it, best first by cuDNN's heuristics: asking them takes longer than many a convolution.
struct Plan {
  static constexpr int kAlgorithms = 8;
  template <typename Performance>
  struct Algorithms {
    Performance found[kAlgorithms];
    int count = 0;
  };

  cudnnTensorDescriptor_t x{}, y{}, bias{};
  cudnnFilterDescriptor_t kernel{};
  cudnnConvolutionDescriptor_t conv{};
  AxisPadding h, w;
  std::int64_t in_h, in_w;  // of x, padded in memory
  Algorithms<cudnnConvolutionFwdAlgoPerf_t> forward;
  Algorithms<cudnnConvolutionBwdDataAlgoPerf_t> backward_data;
  Algorithms<cudnnConvolutionBwdFilterAlgoPerf_t> backward_kernel;
  const DataType type;
  bool usable = true;  // until cuDNN says that it cannot compute it with this type

  // Asks for all three directions at once: a plan of a training layer needs them all.
  Plan(const ConvTile& v, DataType type, Precision precision)
      : h(v.h),
        w(v.w),
        in_h(v.h.in + h.before + h.after),
        in_w(v.w.in + w.before + w.after),
        type(type),
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
    cudnnDestroyTensorDescriptor(bias);
    cudnnDestroyFilterDescriptor(kernel);
    cudnnDestroyConvolutionDescriptor(conv);
  }

  bool pads_in_memory() const { return h.in_memory() || w.in_memory(); }

  // False if cuDNN lacks that for a narrow type, of which it has less than of floats: GPUs without
  // it, some shapes. Other failures are thrown.
  bool accepted(cudnnStatus_t status) const {
    // Statuses of one kind follow each other: all that cuDNN does not support lie below the next
    // category.
    const bool lacks = status >= CUDNN_STATUS_NOT_SUPPORTED && status < kNextCategory;
    if (is_narrow(type) && (lacks || status == CUDNN_STATUS_BAD_PARAM)) return false;
    check(status);
    return true;
  }

  // The best algorithm whose workspace fits into the scratch memory that is left; `conv` computes
  // as it does from now on. Of a narrow type, null if there is none.
  template <typename Performance>
  const Performance* choose(const Algorithms<Performance>& algorithms) const {
    for (int i = 0; i < algorithms.count; ++i) {
      const Performance& one = algorithms.found[i];
      if (one.status != CUDNN_STATUS_SUCCESS ||
          // A little more than it asks for, because slots are rounded up.
          static_cast<std::int64_t>(one.memory) + 1024 > scratch_left()) {
        continue;
      }
      // Single precision stays that.
      const bool rounds = is_narrow(type) || precision_ != Precision::fp32;
      if (rounds) check(cudnnSetConvolutionMathType(conv, one.mathType));
      return &one;
    }
    if (is_narrow(type)) return nullptr;
    throw std::runtime_error("cuDNN has no algorithm for a convolution in the scratch memory left");
  }

  // Whether the next function is worth a call.
  bool fuses() const { return fuses_; }
  // y = x * kernel + bias, with a ReLU or without. False if cuDNN has none for this shape and type;
  // then it is not asked again.
  bool run_fused(const void* in, const void* weights, const void* its_bias, bool relu, void* out) {
    const auto* const best = choose(forward);
    if (best == nullptr) return false;
    // Without an activation, cuDNN has this one algorithm.
    const auto algorithm = relu ? best->algo : CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    std::size_t bytes = 0;
    const auto done = [&](cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS; };
    fuses_ = done(cudnnGetConvolutionForwardWorkspaceSize(dnn(), x, kernel, conv, y, algorithm,
                                                          &bytes)) &&
             static_cast<std::int64_t>(bytes) + 1024 <= scratch_left() &&
             done(cudnnConvolutionBiasActivationForward(
                 dnn(), &kOne, x, in, kernel, weights, conv, algorithm, workspace(bytes), bytes,
                 &kZero, y, out, bias, its_bias, activation_of(relu), y, out));
    return fuses_;
  }

 private:
  static constexpr int kNextCategory = CUDNN_STATUS_NOT_SUPPORTED + 1000;

  void describe(const ConvTile& v) {
    const auto its = cudnn_type(type);
    const auto i = [](std::int64_t n) { return static_cast<int>(n); };
    check(cudnnCreateTensorDescriptor(&x));
    check(cudnnCreateTensorDescriptor(&y));
    check(cudnnCreateTensorDescriptor(&bias));
    check(cudnnCreateFilterDescriptor(&kernel));
    check(cudnnCreateConvolutionDescriptor(&conv));
    check(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, its, i(v.samples), i(v.channels),
                                     i(in_h), i(in_w)));
    check(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, its, i(v.samples), i(v.filters),
                                     i(v.h.out), i(v.w.out)));
    check(cudnnSetTensor4dDescriptor(bias, CUDNN_TENSOR_NHWC, its, 1, i(v.filters), 1, 1));
    check(cudnnSetFilter4dDescriptor(kernel, its, CUDNN_TENSOR_NHWC, i(v.filters),
                                     i(v.channels / v.groups), i(v.h.kernel), i(v.w.kernel)));
    check(cudnnSetConvolution2dDescriptor(conv, i(h.both), i(w.both), i(v.h.stride), i(v.w.stride),
                                          i(v.h.dilation), i(v.w.dilation), CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT));
    check(cudnnSetConvolutionGroupCount(conv, i(v.groups)));
    check(cudnnSetConvolutionMathType(conv, is_narrow(type)                 ? CUDNN_TENSOR_OP_MATH
                                            : precision_ == Precision::fp32 ? CUDNN_FMA_MATH
                                                                            : CUDNN_DEFAULT_MATH));
  }

  // NaNs are passed on, so that training that diverges shows it.
  static cudnnActivationDescriptor_t activation_of(bool relu) {
    thread_local cudnnActivationDescriptor_t descriptors[2] = {};
    cudnnActivationDescriptor_t& descriptor = descriptors[relu ? 1 : 0];
    if (descriptor == nullptr) {
      check(cudnnCreateActivationDescriptor(&descriptor));
      check(cudnnSetActivationDescriptor(descriptor,
                                         relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
                                         CUDNN_PROPAGATE_NAN, 0.0));
    }
    return descriptor;
  }

  Precision precision_;
  bool fuses_ = true;
};

// A thread is one device's, so its plans are, too.
Plan& plan_of(const ConvTile& v, DataType type, Precision p) {
  // All that the descriptors hold; strategies with a few shapes a layer make few of them.
  using Key = std::array<std::int64_t, 20>;
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
                static_cast<std::int64_t>(type),
                static_cast<std::int64_t>(p)};
  std::unique_ptr<Plan>& plan = plans[key];
  if (plan == nullptr) plan = std::make_unique<Plan>(v, type, p);
  return *plan;
}

// The elements of x inside its padded copy.
TensorView interior_of(void* padded, const ConvTile& v, const Plan& plan) {
  const Rect all = Rect::of_shape({v.samples, plan.in_h, plan.in_w, v.channels});
  const TensorView whole = dense_view(padded, all, {}, plan.type);
  const std::int64_t top = plan.h.before, left = plan.w.before;
  return narrowed(narrowed(whole, 1, top, top + v.h.in), 2, left, left + v.w.in);
}

TensorView dense_input(const Reals& x, const ConvTile& v) {
  return dense_view(x.data(), Rect::of_shape({v.samples, v.h.in, v.w.in, v.channels}), {},
                    x.type());
}

std::int64_t padded_volume(const ConvTile& v, const Plan& plan) {
  return v.samples * plan.in_h * plan.in_w * v.channels;
}

// n elements as cuDNN takes them.
Reals buffer(const Plan& plan, int slot, std::int64_t n) {
  return {scratch(slot, floats_for(n, plan.type)), plan.type};
}

// Conversions do not look at shapes, so operands are one row of numbers.
TensorView row_of(const Reals& values, std::int64_t n) {
  return dense_view(values.data(), Rect::of_shape({n}), {n}, values.type());
}

// What cuDNN reads: the numbers themselves, or a copy of them in its type.
const void* operand(const Plan& plan, int slot, const Reals& values, std::int64_t n) {
  if (values.type() == plan.type) return values.data();
  const Reals copy = buffer(plan, slot, n);
  gpu::copy_view(row_of(copy, n), row_of(values, n));
  return copy.data();
}

// x as cuDNN reads it: padded in memory if the two ends differ, else in its type, else as it is.
const void* padded_input(const ConvTile& v, const Plan& plan, const Reals& x) {
  const std::int64_t n = padded_volume(v, plan);
  if (!plan.pads_in_memory()) return operand(plan, kInputSlot, x, n);
  const Reals padded = buffer(plan, kPaddedSlot, n);
  const auto bytes = static_cast<std::size_t>(n * element_bytes(plan.type));
  check(cudaMemsetAsync(padded.data(), 0, bytes, stream()));
  gpu::copy_view(interior_of(padded.data(), v, plan), dense_input(x, v));
  return padded.data();
}

// Where cuDNN writes n elements, and how these become the result. Results of another type are
// computed in scratch memory, and converted afterwards.
class Result {
 public:
  Result(const Plan& plan, int slot, const Reals& values, std::int64_t n)
      : values_(values), n_(n), its_(values.type() == plan.type ? values : buffer(plan, slot, n)) {}
  void* data() const { return its_.data(); }
  void commit() const {
    if (its_.data() != values_.data()) gpu::copy_view(row_of(values_, n_), row_of(its_, n_));
  }

 private:
  Reals values_;
  std::int64_t n_;
  Reals its_;
};

// Whether rounded copies of all operands leave room for as much again.
bool rounded_fits(const ConvTile& v, const Plan& plan) {
  return 4 * (2 * padded_volume(v, plan) + kernels(v) + outputs(v)) < scratch_left();
}

// body(plan) computes, or returns false if cuDNN cannot with that type. Tensors stored narrow are
// taken as they are; in bf16, rounded; and where cuDNN cannot, as floats.
template <typename Body>
void compute(const ConvTile& v, DataType stored, const Body& body) {
  const bool rounds = !is_narrow(stored) && precision() == Precision::bf16;
  const DataType type = rounds ? DataType::bfloat16 : stored;
  if (is_narrow(type)) {
    Plan& plan = plan_of(v, type, Precision::fp32);
    if (plan.usable && (!rounds || rounded_fits(v, plan))) {
      plan.usable = body(plan);
      if (plan.usable) return;
    }
  }
  const bool exact = precision() == Precision::fp32 && !is_narrow(stored);
  body(plan_of(v, DataType::float32, exact ? Precision::fp32 : Precision::tf32));
}

}  // namespace

void convolve(const ConvTile& conv, const Reals& x, const Reals& kernel, const Reals& bias,
              Activation activation, const Reals& y) {
  const bool relu = activation == Activation::relu, plain = activation == Activation::none;
  const std::int64_t rows = outputs(conv) / std::max<std::int64_t>(1, conv.filters);
  compute(conv, x.type(), [&](Plan& plan) {
    const void* const in = padded_input(conv, plan, x);
    const void* const weights = operand(plan, kKernelSlot, kernel, kernels(conv));
    const Result out(plan, kOutputSlot, y, outputs(conv));
    if (plan.fuses() && bias.present() && (relu || plain) &&
        plan.run_fused(in, weights, operand(plan, kBiasSlot, bias, conv.filters), relu,
                       out.data())) {
      out.commit();
      return true;
    }
    // Not fused: the convolution, then bias and activation in a pass of their own.
    const auto* const best = plan.choose(plan.forward);
    if (best == nullptr ||
        !plan.accepted(cudnnConvolutionForward(dnn(), &kOne, plan.x, in, plan.kernel, weights,
                                               plan.conv, best->algo, workspace(best->memory),
                                               best->memory, &kZero, plan.y, out.data()))) {
      return false;
    }
    out.commit();
    if (bias.present() || !plain) {
      add_bias_and_activate(y, y, bias, rows, conv.filters, activation);
    }
    return true;
  });
}

void convolve_backward_data(const ConvTile& conv, const Reals& kernel, const Reals& dy,
                            const Reals& dx) {
  compute(conv, dy.type(), [&](const Plan& plan) {
    const bool pads = plan.pads_in_memory();
    const std::int64_t volume = padded_volume(conv, plan);
    const Reals all = pads ? buffer(plan, kPaddedSlot, volume) : dx;
    const void* const weights = operand(plan, kKernelSlot, kernel, kernels(conv));
    const void* const in = operand(plan, kOutputSlot, dy, outputs(conv));
    const Result out(plan, kInputSlot, all, volume);
    const auto* const best = plan.choose(plan.backward_data);
    if (best == nullptr ||
        !plan.accepted(cudnnConvolutionBackwardData(dnn(), &kOne, plan.kernel, weights, plan.y, in,
                                                    plan.conv, best->algo, workspace(best->memory),
                                                    best->memory, &kZero, plan.x, out.data()))) {
      return false;
    }
    out.commit();
    // What cuDNN computed for the padding belongs to no element, and is left behind.
    if (pads) gpu::copy_view(dense_input(dx, conv), interior_of(all.data(), conv, plan));
    return true;
  });
}

void convolve_backward_kernel(const ConvTile& conv, const Reals& x, const Reals& dy,
                              const Reals& dkernel) {
  compute(conv, x.type(), [&](const Plan& plan) {
    const void* const in = padded_input(conv, plan, x);
    const void* const gradient = operand(plan, kOutputSlot, dy, outputs(conv));
    const Result out(plan, kKernelSlot, dkernel, kernels(conv));
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
