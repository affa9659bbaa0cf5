// conv2d over (n, h, w, c), by oneDNN.
//
// The user's kernel is (o, kh, kw, i). oneDNN is asked which layout it likes best: with a layout
// imposed it falls back to reference loops, a hundred times slower. Kernels are small beside
// activations, so reordering one at each call costs little.
#include <algorithm>

#include "ops/onednn_support.h"
#include "ops/window.h"

namespace flexlegion {
namespace {

using dnnl::memory;
using onednn::f32_desc;
using onednn::Prepared;

// The shapes of one task's convolution: all that its primitives depend on.
struct ConvTile {
  std::int64_t samples, channels, filters;
  WindowTile h, w;

  ConvTile(const WindowAxis& axis_h, const WindowAxis& axis_w, const TensorView& input,
           const TensorView& output)
      : samples(output.extent(0)),
        channels(input.extent(3)),
        filters(output.extent(3)),
        h(axis_h, input, output, 1),
        w(axis_w, input, output, 2) {}

  onednn::Cache::Key key(std::int64_t primitive) const {
    return {primitive, samples, channels, filters, h.in,     h.out,
            h.before,  h.after, w.in,     w.out,   w.before, w.after};
  }

  memory::desc input() const {
    return f32_desc({samples, channels, h.in, w.in}, memory::format_tag::nhwc);
  }
  memory::desc output() const {
    return f32_desc({samples, filters, h.out, w.out}, memory::format_tag::nhwc);
  }
  memory::desc kernel(memory::format_tag layout) const {
    return f32_desc({filters, channels, h.kernel, w.kernel}, layout);
  }
  memory::desc bias() const { return f32_desc({filters}, memory::format_tag::a); }
  memory::dims strides() const { return {h.stride, w.stride}; }
  memory::dims padding_before() const { return {h.before, w.before}; }
  memory::dims padding_after() const { return {h.after, w.after}; }
};

class Conv2d : public Kernel {
 public:
  explicit Conv2d(const Attributes& attributes)
      : h_(attributes, "h"),
        w_(attributes, "w"),
        activation_(activation_of(attributes)),
        use_bias_(attributes.integer("use_bias") != 0) {}

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const ConvTile tile(h_, w_, task.inputs[0], output);
    const DenseInput x(task.inputs[0], 0), kernel(task.weights[0], 1);
    const DenseOutput y(output, 2);
    const Prepared& convolution =
        cache_.get(tile.key(kForward), [&] { return describe_forward(tile, activation_); });
    float* const w = liked_layout(tile, kForward, convolution, kernel.data());
    if (use_bias_) {
      const DenseInput bias(task.weights[1], 3);
      convolution.execute({{DNNL_ARG_SRC, x.data()},
                           {DNNL_ARG_WEIGHTS, w},
                           {DNNL_ARG_BIAS, bias.data()},
                           {DNNL_ARG_DST, y.data()}});
    } else {
      convolution.execute(
          {{DNNL_ARG_SRC, x.data()}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y.data()}});
    }
    y.commit();
  }

  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const ConvTile tile(h_, w_, task.inputs[0], output_grad);
    const TensorView dy = before_activation(task);
    if (!task.input_grads.empty() && task.input_grads[0].present()) {
      backward_data(tile, dy.f32(), task);
    }
    if (task.weight_grads[0].present()) backward_weights(tile, dy.f32(), task);
  }

 private:
  enum Primitive { kForward, kBackwardData, kBackwardWeights, kReorder = 10 };
  // Where kernels and their gradients lie in oneDNN's layout.
  static constexpr int kLikedSlot = 4;

  // The gradient with respect to what the activation was applied to: dense (scratch slot 0).
  TensorView before_activation(const KernelTask& task) const {
    const TensorView& dy = task.output_grads[0];
    if (activation_ == Activation::none && dy.dense()) return dy;
    const TensorView result = dense_view(scratch(0, dy.volume()), dy.tile, dy.shape);
    activation_backward(activation_, dy, task.outputs[0], result);
    return result;
  }

  void backward_data(const ConvTile& tile, const float* dy, KernelTask& task) {
    const DenseInput kernel(task.weights[0], 2);
    const DenseOutput dx(task.input_grads[0], 3);
    const Prepared& convolution = cache_.get(tile.key(kBackwardData), [&] {
      return dnnl::convolution_backward_data::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(),
          tile.kernel(memory::format_tag::any), tile.output(), tile.strides(),
          tile.padding_before(), tile.padding_after(), describe_forward(tile, Activation::none),
          onednn::attributes());
    });
    float* const w = liked_layout(tile, kBackwardData, convolution, kernel.data());
    convolution.execute({{DNNL_ARG_DIFF_DST, const_cast<float*>(dy)},
                         {DNNL_ARG_WEIGHTS, w},
                         {DNNL_ARG_DIFF_SRC, dx.data()}});
    dx.commit();
  }

  void backward_weights(const ConvTile& tile, const float* dy, KernelTask& task) {
    const DenseInput x(task.inputs[0], 2);
    const DenseOutput dw(task.weight_grads[0], 3);
    const Prepared& convolution = cache_.get(tile.key(kBackwardWeights), [&] {
      const auto bias = use_bias_ ? tile.bias() : memory::desc();
      return dnnl::convolution_backward_weights::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(),
          tile.kernel(memory::format_tag::any), bias, tile.output(), tile.strides(),
          tile.padding_before(), tile.padding_after(), describe_forward(tile, Activation::none),
          onednn::attributes());
    });
    const auto liked = convolution.layout(DNNL_ARG_DIFF_WEIGHTS);
    const auto ours = tile.kernel(memory::format_tag::ohwi);
    float* const dw_liked = liked == ours ? dw.data() : liked_memory(liked);
    if (use_bias_) {
      const DenseOutput db(task.weight_grads[1], 5);
      convolution.execute({{DNNL_ARG_SRC, x.data()},
                           {DNNL_ARG_DIFF_DST, const_cast<float*>(dy)},
                           {DNNL_ARG_DIFF_WEIGHTS, dw_liked},
                           {DNNL_ARG_DIFF_BIAS, db.data()}});
      db.commit();
    } else {
      convolution.execute({{DNNL_ARG_SRC, x.data()},
                           {DNNL_ARG_DIFF_DST, const_cast<float*>(dy)},
                           {DNNL_ARG_DIFF_WEIGHTS, dw_liked}});
    }
    if (liked != ours)
      reorder(tile.key(kReorder + kBackwardWeights), liked, dw_liked, ours, dw.data());
    dw.commit();
  }

  dnnl::convolution_forward::primitive_desc describe_forward(const ConvTile& tile,
                                                             Activation activation) const {
    const auto bias = use_bias_ ? tile.bias() : memory::desc();
    return {onednn::engine(),
            dnnl::prop_kind::forward_training,
            dnnl::algorithm::convolution_direct,
            tile.input(),
            tile.kernel(memory::format_tag::any),
            bias,
            tile.output(),
            tile.strides(),
            tile.padding_before(),
            tile.padding_after(),
            onednn::attributes(activation)};
  }

  static float* liked_memory(const memory::desc& desc) {
    return scratch(kLikedSlot, static_cast<std::int64_t>(desc.get_size() + 3) / 4);
  }

  // The kernel in the layout that this convolution likes.
  float* liked_layout(const ConvTile& tile, Primitive direction, const Prepared& convolution,
                      float* kernel) {
    const auto liked = convolution.layout(DNNL_ARG_WEIGHTS);
    const auto ours = tile.kernel(memory::format_tag::ohwi);
    if (liked == ours) return kernel;
    float* const memory = liked_memory(liked);
    reorder(tile.key(kReorder + direction), ours, kernel, liked, memory);
    return memory;
  }

  void reorder(const onednn::Cache::Key& key, const memory::desc& from_desc, float* from,
               const memory::desc& to_desc, float* to) {
    const Prepared& primitive = cache_.get(key, [&] {
      return dnnl::reorder::primitive_desc(onednn::engine(), from_desc, onednn::engine(), to_desc,
                                           onednn::attributes());
    });
    primitive.execute({{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  WindowAxis h_, w_;
  Activation activation_;
  bool use_bias_;
  onednn::Cache cache_;
};

const RegisterKernel registered("conv2d",
                                [](const Attributes& a) { return std::make_unique<Conv2d>(a); });

}  // namespace
}  // namespace flexlegion
