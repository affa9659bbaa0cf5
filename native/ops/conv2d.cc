// conv2d over (n, h, w, c), by oneDNN, in groups of channels.
//
// The user's kernel is (o, kh, kw, i / groups). oneDNN is asked which layout it likes best: with a
// layout imposed it falls back to reference loops, a hundred times slower. Kernels are small beside
// activations, so reordering one at each call costs little.
#include "ops/conv2d.h"

#include "ops/onednn_support.h"

namespace flexlegion {
namespace {

using dnnl::memory;
using onednn::f32_desc;
using onednn::Prepared;

// A convolution as oneDNN is told of it.
struct OnednnTile : ConvTile {
  explicit OnednnTile(const ConvTile& tile) : ConvTile(tile) {}

  onednn::Cache::Key key(std::int64_t primitive) const {
    return {primitive, samples, channels, filters, groups,   h.in,   h.out,
            h.before,  h.after, w.in,     w.out,   w.before, w.after};
  }

  memory::desc input() const {
    return f32_desc({samples, channels, h.in, w.in}, memory::format_tag::nhwc);
  }
  memory::desc output() const {
    return f32_desc({samples, filters, h.out, w.out}, memory::format_tag::nhwc);
  }
  // As it lies in the user's tensor.
  memory::desc kernel() const {
    const std::int64_t i = channels / groups, row = h_w_size() * i;
    const memory::dims strides{filters / groups * row, row, 1, w.kernel * i, i};
    const auto skipped = groups > 1 ? 0 : 1;
    return f32_desc(kernel_dims(), memory::dims(strides.begin() + skipped, strides.end()));
  }
  // As the primitive likes it.
  memory::desc any_kernel() const { return f32_desc(kernel_dims(), memory::format_tag::any); }
  memory::desc bias() const { return f32_desc({filters}, memory::format_tag::a); }
  memory::dims strides() const { return {h.stride, w.stride}; }
  memory::dims dilates() const {
    return {h.dilation - 1, w.dilation - 1};
  }  // elements between taps
  memory::dims padding_before() const { return {h.before, w.before}; }
  memory::dims padding_after() const { return {h.after, w.after}; }

 private:
  std::int64_t h_w_size() const { return h.kernel * w.kernel; }
  memory::dims kernel_dims() const {
    if (groups == 1) return {filters, channels, h.kernel, w.kernel};
    return {groups, filters / groups, channels / groups, h.kernel, w.kernel};
  }
};

class Conv2d : public Kernel {
 public:
  explicit Conv2d(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    for (const ConvViews& part : layer_.parts_of(ConvViews(task), task.outputs[0])) {
      forward_part(part);
    }
  }

  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (dy.tile.empty()) return;
    const std::vector<ConvViews> parts = layer_.parts_of(ConvViews(task), dy);
    if (task.wants_input_grad(0) && !task.adds_to_input_grad(0)) {
      for (const TensorView& unread : unread_channels(task.input_grads[0], parts)) {
        zero_view(unread);
      }
    }
    for (const ConvViews& part : parts) backward_part(part);
  }

 private:
  enum Primitive {
    kForward,
    kBackwardData,
    kBackwardWeights,
    kReorder = 10,
    kAdd = 20,
    kWithoutBias = 30  // of a layer that has one, for tasks that leave it to another
  };
  // Where kernels and their gradients lie in oneDNN's layout.
  static constexpr int kLikedSlot = 4;

  void forward_part(const ConvViews& views) {
    const OnednnTile tile(layer_.tile(views, views.y));
    const DenseInput x(views.x, 0), kernel(views.kernel, 1);
    const DenseOutput y(views.y, 2);
    const bool biased = layer_.use_bias && views.bias.present();
    const std::int64_t which = primitive(kForward, biased);
    const Prepared& convolution = cache_.get(
        tile.key(which), [&] { return describe_forward(tile, layer_.activation, biased); });
    float* const w = liked_layout(tile, which, convolution, kernel.data());
    if (biased) {
      const DenseInput bias(views.bias, 3);
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

  void backward_part(const ConvViews& views) {
    const OnednnTile tile(layer_.tile(views, views.dy));
    const TensorView dy = before_activation(views);
    if (views.dx.present()) backward_data(tile, dy.f32(), views);
    if (views.dkernel.present()) backward_weights(tile, dy.f32(), views);
  }

  // The gradient with respect to what the activation was applied to: dense (scratch slot 0).
  TensorView before_activation(const ConvViews& views) const {
    const TensorView& dy = views.dy;
    if (layer_.activation == Activation::none && dy.dense()) return dy;
    const TensorView result = dense_view(scratch(0, dy.volume()), dy.tile, dy.shape);
    activation_backward(layer_.activation, dy, views.y, result);
    return result;
  }

  void backward_data(const OnednnTile& tile, const float* dy, const ConvViews& views) {
    const DenseInput kernel(views.kernel, 2);
    const DenseOutput dx(views.dx, 3, views.adds_dx);
    const Prepared& convolution = cache_.get(tile.key(kBackwardData), [&] {
      return dnnl::convolution_backward_data::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(), tile.any_kernel(),
          tile.output(), tile.strides(), tile.dilates(), tile.padding_before(),
          tile.padding_after(), describe_forward(tile, Activation::none, layer_.use_bias),
          onednn::attributes());
    });
    float* const w = liked_layout(tile, kBackwardData, convolution, kernel.data());
    convolution.execute({{DNNL_ARG_DIFF_DST, const_cast<float*>(dy)},
                         {DNNL_ARG_WEIGHTS, w},
                         {DNNL_ARG_DIFF_SRC, dx.data()}});
    dx.commit();
  }

  void backward_weights(const OnednnTile& tile, const float* dy, const ConvViews& views) {
    const bool biased = layer_.use_bias && views.dbias.present();
    const std::int64_t which = primitive(kBackwardWeights, biased);
    const Prepared& convolution = cache_.get(tile.key(which), [&] {
      const auto bias = biased ? tile.bias() : memory::desc();
      return dnnl::convolution_backward_weights::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(), tile.any_kernel(),
          bias, tile.output(), tile.strides(), tile.dilates(), tile.padding_before(),
          tile.padding_after(), describe_forward(tile, Activation::none, biased),
          onednn::attributes());
    });
    const auto liked = convolution.layout(DNNL_ARG_DIFF_WEIGHTS), ours = tile.kernel();
    const DenseInput x(views.x, 2);
    // The reorder can add as well as write.
    const bool reorders = liked != ours;
    const bool reorder_adds = reorders && views.adds_dkernel && views.dkernel.dense();
    const DenseOutput dw(views.dkernel, 3, views.adds_dkernel && !reorder_adds);
    float* const dw_liked = reorders ? liked_memory(liked) : dw.data();
    if (biased) {
      const DenseOutput db(views.dbias, 5, views.adds_dbias);
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
    if (reorders) {
      const std::int64_t direction = which + (reorder_adds ? kAdd : kReorder);
      reorder(tile.key(direction), liked, dw_liked, ours, dw.data(), reorder_adds);
    }
    dw.commit();
  }

  std::int64_t primitive(Primitive which, bool biased) const {
    return which + (layer_.use_bias && !biased ? kWithoutBias : 0);
  }

  dnnl::convolution_forward::primitive_desc describe_forward(const OnednnTile& tile,
                                                             Activation activation,
                                                             bool biased) const {
    const auto bias = biased ? tile.bias() : memory::desc();
    return {onednn::engine(),
            dnnl::prop_kind::forward_training,
            dnnl::algorithm::convolution_direct,
            tile.input(),
            tile.any_kernel(),
            bias,
            tile.output(),
            tile.strides(),
            tile.dilates(),
            tile.padding_before(),
            tile.padding_after(),
            onednn::attributes(activation)};
  }

  static float* liked_memory(const memory::desc& desc) {
    return scratch(kLikedSlot, static_cast<std::int64_t>(desc.get_size() + 3) / 4);
  }

  // The kernel in the layout that this convolution likes.
  float* liked_layout(const OnednnTile& tile, std::int64_t direction, const Prepared& convolution,
                      float* kernel) {
    const auto liked = convolution.layout(DNNL_ARG_WEIGHTS), ours = tile.kernel();
    if (liked == ours) return kernel;
    float* const memory = liked_memory(liked);
    reorder(tile.key(kReorder + direction), ours, kernel, liked, memory, false);
    return memory;
  }

  void reorder(const onednn::Cache::Key& key, const memory::desc& from_desc, float* from,
               const memory::desc& to_desc, float* to, bool adds) {
    const Prepared& primitive =
        cache_.get(key, [&] { return onednn::reorder(from_desc, to_desc, adds); });
    primitive.execute({{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  ConvLayer layer_;
  onednn::Cache cache_;
};

const RegisterKernel registered("conv2d",
                                [](const Attributes& a) { return std::make_unique<Conv2d>(a); });

}  // namespace
}  // namespace flexlegion
