// conv2d over (n, h, w, c), by oneDNN, in groups of channels.
//
// The user's kernel is (o, kh, kw, i / groups). oneDNN is asked which layout it likes best: with a
// layout imposed it falls back to reference loops, a hundred times slower. Kernels are small beside
// activations, so reordering one at each call costs little.
#include <algorithm>

#include "ops/onednn_support.h"
#include "ops/window.h"

namespace flexlegion {
namespace {

using dnnl::memory;
using onednn::f32_desc;
using onednn::Prepared;

// What a convolution works on. Forwards only x, kernel, bias and y are there.
struct ConvViews {
  TensorView x, kernel, bias, y;
  TensorView dx, dkernel, dbias, dy;
  bool adds_dx = false, adds_dkernel = false, adds_dbias = false;
  std::int64_t groups = 1;

  explicit ConvViews(const KernelTask& task) {
    const auto at = [](const std::vector<TensorView>& views, std::size_t i) {
      return i < views.size() ? views[i] : TensorView();
    };
    x = task.inputs[0];
    kernel = task.weights[0];
    bias = at(task.weights, 1);
    y = at(task.outputs, 0);
    dx = at(task.input_grads, 0);
    dkernel = at(task.weight_grads, 0);
    dbias = at(task.weight_grads, 1);
    dy = at(task.output_grads, 0);
    adds_dx = task.adds_to_input_grad(0);
    adds_dkernel = task.adds_to_weight_grad(0);
    adds_dbias = task.adds_to_weight_grad(1);
  }

  // The part that computes filters [lo, hi) from channels [first, last).
  ConvViews part(std::int64_t lo, std::int64_t hi, std::int64_t first, std::int64_t last) const {
    ConvViews result = *this;
    const auto narrow = [](TensorView& view, int d, std::int64_t from, std::int64_t to) {
      if (view.present()) view = narrowed(view, d, from, to);
    };
    for (TensorView* view : {&result.x, &result.dx}) narrow(*view, 3, first, last);
    for (TensorView* view : {&result.y, &result.dy}) narrow(*view, 3, lo, hi);
    for (TensorView* view : {&result.kernel, &result.dkernel, &result.bias, &result.dbias}) {
      narrow(*view, 0, lo, hi);
    }
    return result;
  }
};

// The shapes of one task's convolution: all that its primitives depend on.
struct ConvTile {
  std::int64_t samples, channels, filters, groups;
  WindowTile h, w;

  ConvTile(const WindowAxis& axis_h, const WindowAxis& axis_w, const ConvViews& views,
           const TensorView& output)
      : samples(output.extent(0)),
        channels(views.x.extent(3)),
        filters(output.extent(3)),
        groups(views.groups),
        h(axis_h, views.x, output, 1),
        w(axis_w, views.x, output, 2) {}

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
  explicit Conv2d(const Attributes& attributes)
      : h_(attributes, "h"),
        w_(attributes, "w"),
        groups_(attributes.integer("groups")),
        activation_(activation_of(attributes)),
        use_bias_(attributes.integer("use_bias") != 0) {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    for (const ConvViews& part : parts_of(ConvViews(task), task.outputs[0])) forward_part(part);
  }

  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (dy.tile.empty()) return;
    const std::vector<ConvViews> parts = parts_of(ConvViews(task), dy);
    if (task.wants_input_grad(0) && !task.adds_to_input_grad(0)) {
      // Channels of groups that are none of this task's.
      const TensorView& dx = task.input_grads[0];
      zero_view(narrowed(dx, 3, dx.tile.lo[3], parts.front().x.tile.lo[3]));
      zero_view(narrowed(dx, 3, parts.back().x.tile.hi[3], dx.tile.hi[3]));
    }
    for (const ConvViews& part : parts) backward_part(part);
  }

 private:
  enum Primitive { kForward, kBackwardData, kBackwardWeights, kReorder = 10, kAdd = 20 };
  // Where kernels and their gradients lie in oneDNN's layout.
  static constexpr int kLikedSlot = 4;

  // One convolution of whole groups, and one for each group of which the task has some filters
  // only.
  std::vector<ConvViews> parts_of(const ConvViews& views, const TensorView& output) const {
    if (groups_ == 1) return {views};
    const std::int64_t filters = output.shape[3] / groups_, channels = views.x.shape[3] / groups_;
    const std::int64_t end = output.tile.hi[3];
    std::vector<ConvViews> parts;
    for (std::int64_t lo = output.tile.lo[3], hi = 0; lo < end; lo = hi) {
      const std::int64_t group = lo / filters;
      const std::int64_t count =
          lo % filters == 0 ? std::max<std::int64_t>(1, (end - lo) / filters) : 1;
      hi = std::min(end, (group + count) * filters);
      parts.push_back(views.part(lo, hi, group * channels, (group + count) * channels));
      parts.back().groups = count;
    }
    return parts;
  }

  void forward_part(const ConvViews& views) {
    const ConvTile tile(h_, w_, views, views.y);
    const DenseInput x(views.x, 0), kernel(views.kernel, 1);
    const DenseOutput y(views.y, 2);
    const Prepared& convolution =
        cache_.get(tile.key(kForward), [&] { return describe_forward(tile, activation_); });
    float* const w = liked_layout(tile, kForward, convolution, kernel.data());
    if (use_bias_) {
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
    const ConvTile tile(h_, w_, views, views.dy);
    const TensorView dy = before_activation(views);
    if (views.dx.present()) backward_data(tile, dy.f32(), views);
    if (views.dkernel.present()) backward_weights(tile, dy.f32(), views);
  }

  // The gradient with respect to what the activation was applied to: dense (scratch slot 0).
  TensorView before_activation(const ConvViews& views) const {
    const TensorView& dy = views.dy;
    if (activation_ == Activation::none && dy.dense()) return dy;
    const TensorView result = dense_view(scratch(0, dy.volume()), dy.tile, dy.shape);
    activation_backward(activation_, dy, views.y, result);
    return result;
  }

  void backward_data(const ConvTile& tile, const float* dy, const ConvViews& views) {
    const DenseInput kernel(views.kernel, 2);
    const DenseOutput dx(views.dx, 3, views.adds_dx);
    const Prepared& convolution = cache_.get(tile.key(kBackwardData), [&] {
      return dnnl::convolution_backward_data::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(), tile.any_kernel(),
          tile.output(), tile.strides(), tile.padding_before(), tile.padding_after(),
          describe_forward(tile, Activation::none), onednn::attributes());
    });
    float* const w = liked_layout(tile, kBackwardData, convolution, kernel.data());
    convolution.execute({{DNNL_ARG_DIFF_DST, const_cast<float*>(dy)},
                         {DNNL_ARG_WEIGHTS, w},
                         {DNNL_ARG_DIFF_SRC, dx.data()}});
    dx.commit();
  }

  void backward_weights(const ConvTile& tile, const float* dy, const ConvViews& views) {
    const Prepared& convolution = cache_.get(tile.key(kBackwardWeights), [&] {
      const auto bias = use_bias_ ? tile.bias() : memory::desc();
      return dnnl::convolution_backward_weights::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(), tile.any_kernel(),
          bias, tile.output(), tile.strides(), tile.padding_before(), tile.padding_after(),
          describe_forward(tile, Activation::none), onednn::attributes());
    });
    const auto liked = convolution.layout(DNNL_ARG_DIFF_WEIGHTS), ours = tile.kernel();
    const DenseInput x(views.x, 2);
    // The reorder can add as well as write.
    const bool reorders = liked != ours;
    const bool reorder_adds = reorders && views.adds_dkernel && views.dkernel.dense();
    const DenseOutput dw(views.dkernel, 3, views.adds_dkernel && !reorder_adds);
    float* const dw_liked = reorders ? liked_memory(liked) : dw.data();
    if (use_bias_) {
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
      const int direction = kBackwardWeights + (reorder_adds ? kAdd : kReorder);
      reorder(tile.key(direction), liked, dw_liked, ours, dw.data(), reorder_adds);
    }
    dw.commit();
  }

  dnnl::convolution_forward::primitive_desc describe_forward(const ConvTile& tile,
                                                             Activation activation) const {
    const auto bias = use_bias_ ? tile.bias() : memory::desc();
    return {onednn::engine(),
            dnnl::prop_kind::forward_training,
            dnnl::algorithm::convolution_direct,
            tile.input(),
            tile.any_kernel(),
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

  WindowAxis h_, w_;
  std::int64_t groups_;
  Activation activation_;
  bool use_bias_;
  onednn::Cache cache_;
};

const RegisterKernel registered("conv2d",
                                [](const Attributes& a) { return std::make_unique<Conv2d>(a); });

}  // namespace
}  // namespace flexlegion
