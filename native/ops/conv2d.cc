// conv2d over (n, h, w, c), by oneDNN, in groups of channels; with a channel each, by our own
// loops.
//
// The user's kernel is (o, kh, kw, i / groups). oneDNN is asked which layout it likes best: with a
// layout imposed it falls back to reference loops, a hundred times slower. Kernels are small beside
// activations, so reordering one at each call costs little.
//
// A task has a tile of output pixels and filters, and the input tile under it. Padding is what lies
// beside the tensor: a tile inside it has none, and its input is read as far as its windows reach
// (ops/window.h). So each task is a complete convolution of its own shape, and oneDNN prepares a
// primitive for each shape that occurs, once.
//
// Ways, by pass and shape:
// - Depthwise layers of at least 16 channels: loops of our own (depthwise.h), forwards and
//   backwards.
// - The kernel's gradient in floats without AVX-512: a product of panels (kernel_gradient.h).
// - The input's gradient of 1 x 1 filters with a stride, without AVX-512: a dense convolution of
//   the elements under the taps (backward_data_of_some).
// - All else: oneDNN's direct convolution.
#include "ops/conv2d.h"

#include <optional>

#include "ops/depthwise.h"
#include "ops/kernel_gradient.h"
#include "ops/matrix.h"
#include "ops/onednn_support.h"
#include "ops/products.h"
#include "ops/register_tiles.h"

namespace flexlegion {
namespace {

using dnnl::memory;
using onednn::f32_desc;
using onednn::Prepared;

// A convolution as oneDNN is told of it: of activations of that type, and of a kernel of it; the
// user's kernel may be of another. The kernel's gradient and biases are floats.
struct OnednnTile : ConvTile {
  DataType type;

  // oneDNN 3.2's gradients of kernels are wrong for bfloat16 where an image is smaller than they
  // are.
  OnednnTile(const ConvTile& tile, DataType stored)
      : ConvTile(tile), type(is_small(h) || is_small(w) ? DataType::float32 : stored) {}

  // Strides, dilations and kernels are the layer's and do not change from call to call, so they
  // need not distinguish primitives of one layer.
  onednn::Cache::Key key(std::int64_t primitive) const {
    return {primitive, static_cast<std::int64_t>(type),
            samples,   channels,
            filters,   groups,
            h.in,      h.out,
            h.before,  h.after,
            w.in,      w.out,
            w.before,  w.after};
  }

  memory::desc input() const {
    return onednn::desc(type, {samples, channels, h.in, w.in}, memory::format_tag::nhwc);
  }
  memory::desc output() const {
    return onednn::desc(type, {samples, filters, h.out, w.out}, memory::format_tag::nhwc);
  }
  // As it lies in the user's tensor.
  memory::desc kernel(DataType stored) const {
    const std::int64_t i = channels / groups, row = h_w_size() * i;
    const memory::dims strides{filters / groups * row, row, 1, w.kernel * i, i};
    const auto skipped = groups > 1 ? 0 : 1;
    return onednn::desc(stored, kernel_dims(),
                        memory::dims(strides.begin() + skipped, strides.end()));
  }
  // As the primitive likes it.
  memory::desc any_kernel() const {
    return onednn::desc(type, kernel_dims(), memory::format_tag::any);
  }
  memory::desc any_gradient() const { return f32_desc(kernel_dims(), memory::format_tag::any); }
  memory::desc bias() const { return f32_desc({filters}, memory::format_tag::a); }
  memory::dims strides() const { return {h.stride, w.stride}; }
  memory::dims dilates() const {
    return {h.dilation - 1, w.dilation - 1};
  }  // elements between taps
  memory::dims padding_before() const { return {h.before, w.before}; }
  memory::dims padding_after() const { return {h.after, w.after}; }

 private:
  static bool is_small(const WindowTile& axis) {
    return axis.in < (axis.kernel - 1) * axis.dilation + 1;
  }
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
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  void forward(KernelTask& task) override {
    if (task.outputs[0].tile.empty()) return;
    for (const ConvViews& part : layer_.parts_of(ConvViews(task), task.outputs[0])) {
      forward_part(part);
    }
  }

  // Groups of channels that no filter of this task reads have a gradient of zero here. Other tasks
  // compute theirs, and the runtime adds the partial values up.
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
  // The first number of a primitive's key. Reorders of a primitive's kernel are numbered kReorder
  // and kAdd above it.
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

  // One convolution over whole groups: the tile, the primitive for its shape, the kernel in the
  // layout that the primitive likes, and the call.
  void forward_part(const ConvViews& views) {
    const ConvTile shapes = layer_.tile(views, views.y);
    if (depthwise::suits(shapes, layer_.activation)) return forward_depthwise(shapes, views);
    const OnednnTile tile(shapes, views.y.type);
    const DenseInput x(views.x, 0, tile.type);
    const DenseOutput y(views.y, 2, false, tile.type);
    const bool biased = layer_.use_bias && views.bias.present();
    const std::int64_t which = primitive(kForward, biased);
    const Prepared& convolution = cache_.get(
        tile.key(which), [&] { return describe_forward(tile, layer_.activation, biased); });
    // The primitive may want the kernel in blocks of 16 filters, say. The copy is made at each
    // call, for the kernel changes with every iteration.
    void* const w = liked_layout(tile, which, convolution, views.kernel, 1);
    if (biased) {
      const DenseInput bias(views.bias, 3);
      convolution.execute({{DNNL_ARG_SRC, x.memory()},
                           {DNNL_ARG_WEIGHTS, w},
                           {DNNL_ARG_BIAS, bias.data()},
                           {DNNL_ARG_DST, y.memory()}});
    } else {
      convolution.execute(
          {{DNNL_ARG_SRC, x.memory()}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y.memory()}});
    }
    y.commit();
  }

  // dy before the activation once, for the gradients of x, the kernel and the bias.
  void backward_part(const ConvViews& views) {
    const ConvTile shapes = layer_.tile(views, views.dy);
    if (depthwise::suits(shapes, layer_.activation)) return backward_depthwise(shapes, views);
    const OnednnTile tile(shapes, views.dy.type);
    const TensorView dy = before_activation(views, tile.type);
    if (views.dx.present()) backward_data(tile, dy.data, views);
    if (!views.dkernel.present()) return;
    if (tile.type == DataType::float32 && kernel_gradient::suits(tile)) {
      backward_weights_by_panels(tile, dy, views);
    } else {
      backward_weights(tile, dy.data, views);
    }
  }

  void forward_depthwise(const ConvTile& tile, const ConvViews& views) const {
    const DataType type = views.y.type;
    const DenseInput x(views.x, 0, type), kernel(views.kernel, 1), bias(views.bias, 3);
    const DenseOutput y(views.y, 2, false, type);
    depthwise::forward(tile, type, x.memory(), kernel.data(), bias.data(), layer_.activation,
                       y.memory());
    y.commit();
  }

  // The kernel's and the bias's gradients are sums over the same pixels, so one function makes
  // both.
  void backward_depthwise(const ConvTile& tile, const ConvViews& views) const {
    const DataType type = views.dy.type;
    const TensorView dy = before_activation(views, type);
    if (views.dx.present()) {
      const DenseInput kernel(views.kernel, 2);
      const DenseOutput dx(views.dx, 3, views.adds_dx, type);
      depthwise::backward_data(tile, type, dy.data, kernel.data(), dx.memory());
      dx.commit();
    }
    if (!views.dkernel.present()) return;
    const DenseInput x(views.x, 2, type);
    const DenseOutput dkernel(views.dkernel, 3, views.adds_dkernel);
    const bool biased = layer_.use_bias && views.dbias.present();
    std::optional<DenseOutput> dbias;
    if (biased) dbias.emplace(views.dbias, 5, views.adds_dbias);
    depthwise::backward_weights(tile, type, x.memory(), dy.data, dkernel.data(),
                                biased ? dbias->data() : nullptr);
    dkernel.commit();
    if (biased) dbias->commit();
  }

  // The gradient with respect to what the activation was applied to: dense (scratch slot 0).
  TensorView before_activation(const ConvViews& views, DataType type) const {
    const TensorView& dy = views.dy;
    if (layer_.activation == Activation::none && dy.dense() && dy.fits(type)) return dy;
    const TensorView result = scratch_view(0, dy, type);
    activation_backward(layer_.activation, dy, views.y, result);
    return result;
  }

  // Filters of one tap that step over some of x: the gradient of what lies under them, as if there
  // were nothing else. oneDNN's own such convolution reaches a quarter of the speed on AVX2.
  void backward_data_of_some(OnednnTile tile, void* dy, ConvViews views) {
    if (!views.adds_dx) zero_view(views.dx);
    for (const int d : {1, 2}) {
      WindowTile& axis = d == 1 ? tile.h : tile.w;
      views.dx.data = views.dx.at(axis.under(0, 0) * views.dx.stride[d]);
      views.dx.stride[d] *= axis.stride;
      views.dx.tile.hi[d] = views.dx.tile.lo[d] + axis.out;
      axis.in = axis.out;
      axis.before = axis.after = 0;
      axis.stride = 1;
    }
    backward_data(tile, dy, views);
  }

  // dx = the transposed convolution of dy. oneDNN asks for the forward convolution as a hint.
  void backward_data(const OnednnTile& tile, void* dy, const ConvViews& views) {
    const bool one_tap = tile.h.kernel == 1 && tile.w.kernel == 1;
    if (one_tap && (tile.h.stride > 1 || tile.w.stride > 1) && narrow_vectors()) {
      return backward_data_of_some(tile, dy, views);
    }
    const DenseOutput dx(views.dx, 3, views.adds_dx, tile.type);
    const Prepared& convolution = cache_.get(tile.key(kBackwardData), [&] {
      return dnnl::convolution_backward_data::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(), tile.any_kernel(),
          tile.output(), tile.strides(), tile.dilates(), tile.padding_before(),
          tile.padding_after(), describe_forward(tile, Activation::none, layer_.use_bias),
          onednn::attributes());
    });
    void* const w = liked_layout(tile, kBackwardData, convolution, views.kernel, 2);
    convolution.execute(
        {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx.memory()}});
    dx.commit();
  }

  // The kernel's gradient by our own product, and the bias's as a sum of dy's rows.
  void backward_weights_by_panels(const OnednnTile& tile, const TensorView& dy,
                                  const ConvViews& views) {
    const DenseInput x(views.x, 2);
    const OutputTile dw(views.dkernel, 3, views.adds_dkernel, views.dkernel.dense());
    kernel_gradient::compute(tile, x.data(), dy.f32(), dw.view().f32(), dw.adds());
    dw.commit();
    if (!layer_.use_bias || !views.dbias.present()) return;
    float* const sums = scratch(5, tile.filters);
    std::fill_n(sums, tile.filters, 0.0f);
    const std::int64_t positions = dy.tile.volume() / tile.filters;
    add_rows(Matrix::row_major(dy.data, positions, tile.filters, tile.filters), sums);
    write_or_add_view(views.dbias, dense_view(sums, views.dbias.tile, views.dbias.shape),
                      views.adds_dbias);
  }

  // dkernel by oneDNN, in the layout that it likes, which is reordered into the user's afterwards.
  void backward_weights(const OnednnTile& tile, void* dy, const ConvViews& views) {
    const bool biased = layer_.use_bias && views.dbias.present();
    const std::int64_t which = primitive(kBackwardWeights, biased);
    const Prepared& convolution = cache_.get(tile.key(which), [&] {
      const auto bias = biased ? tile.bias() : memory::desc();
      return dnnl::convolution_backward_weights::primitive_desc(
          onednn::engine(), dnnl::algorithm::convolution_direct, tile.input(), tile.any_gradient(),
          bias, tile.output(), tile.strides(), tile.dilates(), tile.padding_before(),
          tile.padding_after(), describe_forward(tile, Activation::none, biased),
          onednn::attributes());
    });
    const auto liked = convolution.layout(DNNL_ARG_DIFF_WEIGHTS);
    const auto ours = tile.kernel(DataType::float32);
    const DenseInput x(views.x, 2, tile.type);
    // The reorder can add as well as write.
    const bool reorders = liked != ours;
    const bool reorder_adds = reorders && views.adds_dkernel && views.dkernel.dense();
    const DenseOutput dw(views.dkernel, 3, views.adds_dkernel && !reorder_adds);
    float* const dw_liked = reorders ? liked_memory(liked) : dw.data();
    if (biased) {
      const DenseOutput db(views.dbias, 5, views.adds_dbias);
      convolution.execute({{DNNL_ARG_SRC, x.memory()},
                           {DNNL_ARG_DIFF_DST, dy},
                           {DNNL_ARG_DIFF_WEIGHTS, dw_liked},
                           {DNNL_ARG_DIFF_BIAS, db.data()}});
      db.commit();
    } else {
      convolution.execute(
          {{DNNL_ARG_SRC, x.memory()}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, dw_liked}});
    }
    if (reorders) {
      const std::int64_t direction = which + (reorder_adds ? kAdd : kReorder);
      reorder(tile.key(direction), liked, dw_liked, ours, dw.data(), reorder_adds);
    }
    dw.commit();
  }

  // A primitive with a bias is another one than without.
  std::int64_t primitive(Primitive which, bool biased) const {
    return which + (layer_.use_bias && !biased ? kWithoutBias : 0);
  }

  // The kernel's layout is left open (any_kernel), so that oneDNN chooses.
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

  // In floats, rounded up: the layout may be of another type, and padded.
  static float* liked_memory(const memory::desc& desc) {
    return scratch(kLikedSlot, static_cast<std::int64_t>(desc.get_size() + 3) / 4);
  }

  // The kernel in the layout, and of the type, that this convolution likes.
  void* liked_layout(const OnednnTile& tile, std::int64_t direction, const Prepared& convolution,
                     const TensorView& kernel, int slot) {
    const auto liked = convolution.layout(DNNL_ARG_WEIGHTS), ours = tile.kernel(kernel.type);
    const DenseInput dense(kernel, slot, kernel.type);
    if (liked == ours) return dense.memory();
    float* const memory = liked_memory(liked);
    onednn::Cache::Key key = tile.key(kReorder + direction);
    key.push_back(kernel.narrow());
    reorder(key, ours, dense.memory(), liked, memory, false);
    return memory;
  }

  void reorder(const onednn::Cache::Key& key, const memory::desc& from_desc, void* from,
               const memory::desc& to_desc, void* to, bool adds) {
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
