// cuDNN's convolutions, as far as our kernels call them.
#include <cudnn.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

#include "driver.h"
#include "gpu/real.h"
#include "rounding.h"

namespace {

constexpr std::size_t kWorkspace = 1000, kTooMuch = std::size_t{1} << 40;

struct Handle {
  soft_gpu::Stream* stream = nullptr;
};

// Of a tensor (n, c, h, w) or a filter (k, c, h, w), stored with c innermost.
struct Block {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0, c = 0, h = 0, w = 0;

  std::int64_t at(int n_, int h_, int w_, int c_) const {
    return ((static_cast<std::int64_t>(n_) * h + h_) * w + w_) * c + c_;
  }
  std::int64_t volume() const { return at(n, 0, 0, 0); }
  bool narrow() const { return type != CUDNN_DATA_FLOAT; }
  // Its elements.
  flexlegion::gpu::Reals in(const void* data) const {
    using flexlegion::DataType;
    return {const_cast<void*>(data), type == CUDNN_DATA_BFLOAT16 ? DataType::bfloat16
                                     : type == CUDNN_DATA_HALF   ? DataType::float16
                                                                 : DataType::float32};
  }
};

struct Convolution {
  int pad_h = 0, pad_w = 0, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1, groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

template <typename Struct, typename Descriptor>
Struct& of(Descriptor descriptor) {
  return *reinterpret_cast<Struct*>(const_cast<void*>(static_cast<const void*>(descriptor)));
}
template <typename Struct, typename Descriptor>
cudnnStatus_t make(Descriptor* descriptor) {
  *descriptor = reinterpret_cast<Descriptor>(new Struct);
  return CUDNN_STATUS_SUCCESS;
}
template <typename Struct, typename Descriptor>
cudnnStatus_t destroy(Descriptor descriptor) {
  delete &of<Struct>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

struct Problem {
  Block x, w, y;
  Convolution conv;

  Problem(cudnnTensorDescriptor_t x_, cudnnFilterDescriptor_t w_, cudnnTensorDescriptor_t y_,
          cudnnConvolutionDescriptor_t conv_)
      : x(of<Block>(x_)), w(of<Block>(w_)), y(of<Block>(y_)), conv(of<Convolution>(conv_)) {}

  cudnnStatus_t valid() const {
    const auto extent = [](int in, int pad, int kernel, int stride, int dilation) {
      return 1 + (in + 2 * pad - (kernel - 1) * dilation - 1) / stride;
    };
    const bool fits = x.n == y.n && w.n == y.c && w.c * conv.groups == x.c &&
                      w.n % conv.groups == 0 &&
                      y.h == extent(x.h, conv.pad_h, w.h, conv.stride_h, conv.dilation_h) &&
                      y.w == extent(x.w, conv.pad_w, w.w, conv.stride_w, conv.dilation_w) &&
                      x.type == w.type && x.type == y.type;
    if (!fits || x.volume() <= 0 || y.volume() <= 0) return CUDNN_STATUS_BAD_PARAM;
    // Tensor cores take channels by eight.
    if (x.narrow() && (x.c % 8 != 0 || y.c % 8 != 0)) return CUDNN_STATUS_NOT_SUPPORTED;
    return CUDNN_STATUS_SUCCESS;
  }

  float kept(float value) const {
    return conv.math == CUDNN_FMA_MATH ? value : soft_gpu::rounded_to(value, 10);
  }

  // body(place in x, in w, in y) for each run of w.c products of the sums: along the first two, the
  // places follow each other.
  template <typename Body>
  void for_each(const Body& body) const {
    const int of_group = y.c / conv.groups;
    for (int n = 0; n < y.n; ++n) {
      for (int oh = 0; oh < y.h; ++oh) {
        for (int ow = 0; ow < y.w; ++ow) {
          for (int kh = 0; kh < w.h; ++kh) {
            for (int kw = 0; kw < w.w; ++kw) {
              const int ih = oh * conv.stride_h - conv.pad_h + kh * conv.dilation_h;
              const int iw = ow * conv.stride_w - conv.pad_w + kw * conv.dilation_w;
              if (ih < 0 || ih >= x.h || iw < 0 || iw >= x.w) continue;
              for (int o = 0; o < y.c; ++o) {
                const std::int64_t from = x.at(n, ih, iw, o / of_group * w.c);
                const std::int64_t filter = w.at(o, kh, kw, 0), to = y.at(n, oh, ow, o);
                body(from, filter, to);
              }
            }
          }
        }
      }
    }
  }
};

// sums[target] += a[i] b[j], into `out`.
enum class Target { x, w, y };

// What happens to sums before they are rounded.
struct Ending {
  const void* bias = nullptr;  // one a channel, of the result's type
  bool relu = false;
};

cudnnStatus_t convolve(cudnnHandle_t handle, const Problem& problem, Target target, const void* x,
                       const void* w, const void* y, void* out, void* workspace,
                       std::size_t workspace_bytes, Ending ending = {}) {
  const cudnnStatus_t valid = problem.valid();
  if (valid != CUDNN_STATUS_SUCCESS) return valid;
  if (workspace == nullptr || workspace_bytes < kWorkspace) return CUDNN_STATUS_BAD_PARAM;
  of<Handle>(handle).stream->issue(soft_gpu::By::device, [=] {
    const Problem p = problem;
    std::memset(workspace, 0xff, kWorkspace);
    const Block& block = target == Target::x ? p.x : target == Target::w ? p.w : p.y;
    const auto n = static_cast<std::size_t>(block.volume());
    const std::unique_ptr<double[]> sums(new double[n]());
    const auto values_of = [&](const Block& of_block, const void* data) {
      const auto volume = static_cast<std::size_t>(data == nullptr ? 0 : of_block.volume());
      std::unique_ptr<float[]> values(new float[volume]);
      for (std::size_t i = 0; i < volume; ++i) {
        values[i] = p.kept(of_block.in(data)[static_cast<std::int64_t>(i)]);
      }
      return values;
    };
    const auto xs = values_of(p.x, x), ws = values_of(p.w, w), ys = values_of(p.y, y);
    p.for_each([&](std::int64_t i, std::int64_t k, std::int64_t o) {
      const int run = p.w.c;
      if (target == Target::y) {
        double sum = 0;
        for (int c = 0; c < run; ++c) sum += static_cast<double>(xs[i + c]) * ws[k + c];
        sums[o] += sum;
        return;
      }
      const double dy = ys[o];
      const float* const factors = target == Target::x ? &ws[k] : &xs[i];
      double* const to = target == Target::x ? &sums[i] : &sums[k];
      for (int c = 0; c < run; ++c) to[c] += dy * factors[c];
    });
    for (std::size_t i = 0; i < n; ++i) {
      double sum = sums[i];
      if (ending.bias != nullptr) {
        sum += block.in(ending.bias)[static_cast<std::int64_t>(i) % block.c];
      }
      if (ending.relu && sum < 0) sum = 0;
      block.in(out)[static_cast<std::int64_t>(i)] = static_cast<float>(sum);
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

// The fastest wants more memory than there is, the second one works.
template <typename Performance, typename Algorithm>
cudnnStatus_t algorithms(const Problem& problem, Algorithm first, int asked, int* count,
                         Performance* found) {
  const cudnnStatus_t valid = problem.valid();
  if (valid != CUDNN_STATUS_SUCCESS) return valid;
  *count = asked < 2 ? asked : 2;
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].algo = first;
    found[i].status = CUDNN_STATUS_SUCCESS;
    found[i].memory = i == 0 ? kTooMuch : kWorkspace;
    found[i].mathType = problem.conv.math;
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS     ? "success"
         : status == CUDNN_STATUS_BAD_PARAM ? "a bad parameter"
                                            : "an error of the software GPU";
}
cudnnStatus_t cudnnGetProperty(libraryPropertyType, int* value) {
  *value = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return make<Handle>(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  of<Handle>(handle).stream = reinterpret_cast<soft_gpu::Stream*>(stream);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) { return make<Block>(d); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return destroy<Block>(d); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  of<Block>(d) = {type, n, c, h, w};
  return format == CUDNN_TENSOR_NHWC ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* d) { return make<Block>(d); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return destroy<Block>(d); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  of<Block>(d) = {type, k, c, h, w};
  return format == CUDNN_TENSOR_NHWC ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* d) {
  return make<Convolution>(d);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) {
  return destroy<Convolution>(d);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t) {
  Convolution& conv = of<Convolution>(d);
  conv.pad_h = pad_h;
  conv.pad_w = pad_w;
  conv.stride_h = stride_h;
  conv.stride_w = stride_w;
  conv.dilation_h = dilation_h;
  conv.dilation_w = dilation_w;
  return mode == CUDNN_CROSS_CORRELATION ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  of<Convolution>(d).groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  of<Convolution>(d).math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y, int asked,
                                                     int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* found) {
  return algorithms(Problem(x, w, y, conv), CUDNN_CONVOLUTION_FWD_ALGO_GEMM, asked, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t x, int asked, int* count,
    cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return algorithms(Problem(x, w, y, conv), CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, asked, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t w, int asked, int* count,
    cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return algorithms(Problem(x, w, y, conv), CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, asked, count,
                    found);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void*,
                                      const cudnnTensorDescriptor_t x_, const void* x,
                                      const cudnnFilterDescriptor_t w_, const void* w,
                                      const cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t, void* workspace, std::size_t bytes,
                                      const void*, const cudnnTensorDescriptor_t y_, void* y) {
  return convolve(handle, Problem(x_, w_, y_, conv), Target::y, x, w, nullptr, y, workspace, bytes);
}
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* d) {
  return make<cudnnActivationMode_t>(d);
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t d,
                                           cudnnActivationMode_t mode, cudnnNanPropagation_t,
                                           double) {
  of<cudnnActivationMode_t>(d) = mode;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                      const cudnnFilterDescriptor_t,
                                                      const cudnnConvolutionDescriptor_t,
                                                      const cudnnTensorDescriptor_t,
                                                      cudnnConvolutionFwdAlgo_t,
                                                      std::size_t* bytes) {
  *bytes = kWorkspace;
  return CUDNN_STATUS_SUCCESS;
}
// None for an odd number of channels, so that the way without it is taken, too.
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_, const void* x,
    const cudnnFilterDescriptor_t w_, const void* w, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, std::size_t bytes, const void*,
    const cudnnTensorDescriptor_t, const void* z, const cudnnTensorDescriptor_t bias_,
    const void* bias, const cudnnActivationDescriptor_t activation_,
    const cudnnTensorDescriptor_t y_, void* y) {
  const Problem problem(x_, w_, y_, conv);
  const Block& its = of<Block>(bias_);
  if (z != y || its.c != problem.y.c || its.n != 1 || its.type != problem.y.type) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const auto activation = of<cudnnActivationMode_t>(activation_);
  if (problem.y.c % 2 != 0 || (activation == CUDNN_ACTIVATION_IDENTITY &&
                               algorithm != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  return convolve(handle, problem, Target::y, x, w, nullptr, y, workspace, bytes,
                  {bias, activation == CUDNN_ACTIVATION_RELU});
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void*,
                                           const cudnnFilterDescriptor_t w_, const void* w,
                                           const cudnnTensorDescriptor_t y_, const void* dy,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t, void* workspace,
                                           std::size_t bytes, const void*,
                                           const cudnnTensorDescriptor_t x_, void* dx) {
  return convolve(handle, Problem(x_, w_, y_, conv), Target::x, nullptr, w, dy, dx, workspace,
                  bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void*,
                                             const cudnnTensorDescriptor_t x_, const void* x,
                                             const cudnnTensorDescriptor_t y_, const void* dy,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t, void* workspace,
                                             std::size_t bytes, const void*,
                                             const cudnnFilterDescriptor_t w_, void* dw) {
  return convolve(handle, Problem(x_, w_, y_, conv), Target::w, x, nullptr, dy, dw, workspace,
                  bytes);
}
}
