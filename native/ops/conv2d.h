// What a convolution's tiles mean, on any device: groups of channels, and the shapes of each part.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/activation.h"
#include "ops/window.h"

namespace flexlegion {

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

// The shapes of one task's convolution: all that a library prepares for.
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
};

// What a convolution's attributes say.
struct ConvLayer {
  WindowAxis h, w;
  std::int64_t groups;
  Activation activation;
  bool use_bias;

  explicit ConvLayer(const Attributes& attributes)
      : h(attributes, "h"),
        w(attributes, "w"),
        groups(attributes.integer("groups")),
        activation(activation_of(attributes)),
        use_bias(attributes.integer("use_bias") != 0) {}

  ConvTile tile(const ConvViews& views, const TensorView& output) const {
    return {h, w, views, output};
  }

  // One convolution of whole groups, and one for each group of which the task has some filters
  // only.
  std::vector<ConvViews> parts_of(const ConvViews& views, const TensorView& output) const {
    if (groups == 1) return {views};
    const std::int64_t filters = output.shape[3] / groups, channels = views.x.shape[3] / groups;
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
};

// The channels of `dx` that belong to none of the parts' groups: no filter of the task reads them.
inline std::vector<TensorView> unread_channels(const TensorView& dx,
                                               const std::vector<ConvViews>& parts) {
  return {narrowed(dx, 3, dx.tile.lo[3], parts.front().x.tile.lo[3]),
          narrowed(dx, 3, parts.back().x.tile.hi[3], dx.tile.hi[3])};
}

}  // namespace flexlegion
