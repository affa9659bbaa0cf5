// pool2d: the maximum or the average of each window, over (n, h, w, c).
//
// A gradient is gathered: each element of the input looks at the windows that it lies in. So
// windows that overlap need no atomic additions, and the sums have one order.
#include "ops/pool2d.h"

#include "gpu/view.h"

namespace flexlegion::gpu {
namespace {

// The windows of a tile.
struct PoolTile {
  WindowTile h, w;
  bool count_padding;

  PoolTile(const PoolLayer& layer, const TensorView& input, const TensorView& output)
      : h(layer.h, input, output, 1),
        w(layer.w, input, output, 2),
        count_padding(layer.count_padding) {}
};

// A place in a tile of (n, h, w, c).
struct Place {
  std::int64_t n, h, w, c;

  FL_DEVICE Place(const Strided& tile, std::int64_t i) {
    c = i % tile.extent[3];
    i /= tile.extent[3];
    w = i % tile.extent[2];
    i /= tile.extent[2];
    h = i % tile.extent[1];
    n = i / tile.extent[1];
  }
  // In any tile of these samples and channels: where their plane of (h, w) begins.
  FL_DEVICE Reals plane(const Strided& tile) const {
    return tile.data + (n * tile.stride[0] + c * tile.stride[3]);
  }
  FL_DEVICE Real in(const Strided& tile) const {
    return plane(tile)[h * tile.stride[1] + w * tile.stride[2]];
  }
};

FL_DEVICE inline float maximum_of(const PoolTile& t, const Strided& x, const Place& at) {
  const Reals plane = at.plane(x);
  float best = plane[t.h.begin(at.h) * x.stride[1] + t.w.begin(at.w) * x.stride[2]];
  for (std::int64_t h = t.h.begin(at.h); h < t.h.end(at.h); ++h) {
    for (std::int64_t w = t.w.begin(at.w); w < t.w.end(at.w); ++w) {
      const float value = plane[h * x.stride[1] + w * x.stride[2]];
      best = value > best ? value : best;
    }
  }
  return best;
}

FL_DEVICE inline float average_of(const PoolTile& t, const Strided& x, const Place& at) {
  const Reals plane = at.plane(x);
  float sum = 0;
  for (std::int64_t h = t.h.begin(at.h); h < t.h.end(at.h); ++h) {
    for (std::int64_t w = t.w.begin(at.w); w < t.w.end(at.w); ++w) {
      sum += plane[h * x.stride[1] + w * x.stride[2]];
    }
  }
  return sum * average_weight(t.h, t.w, at.h, at.w, t.count_padding);
}

// Whether the element is the first largest one, in row-major order, of window (oh, ow).
FL_DEVICE inline bool wins(const PoolTile& t, const Strided& x, const Place& at, std::int64_t oh,
                           std::int64_t ow) {
  const Reals plane = at.plane(x);
  const float mine = at.in(x);
  for (std::int64_t h = t.h.begin(oh); h < t.h.end(oh); ++h) {
    for (std::int64_t w = t.w.begin(ow); w < t.w.end(ow); ++w) {
      const float other = plane[h * x.stride[1] + w * x.stride[2]];
      const bool earlier = h < at.h || (h == at.h && w < at.w);
      if (earlier ? !(mine > other) : other > mine) return false;
    }
  }
  return true;
}

// The sum of share(oh, ow, dy) over the windows that an element of the input lies in.
template <typename Share>
FL_DEVICE float gathered(const PoolTile& t, const Strided& dy, const Place& at,
                         const Share& share) {
  const Reals plane = at.plane(dy);
  float sum = 0;
  for (std::int64_t oh = t.h.first_over(at.h); oh < t.h.end_over(at.h); ++oh) {
    for (std::int64_t ow = t.w.first_over(at.w); ow < t.w.end_over(at.w); ++ow) {
      sum += share(oh, ow, plane[oh * dy.stride[1] + ow * dy.stride[2]]);
    }
  }
  return sum;
}

struct WinnersShare {
  const PoolTile& tile;
  const Strided& x;
  const Place& at;
  FL_DEVICE float operator()(std::int64_t oh, std::int64_t ow, float dy) const {
    return wins(tile, x, at, oh, ow) ? dy : 0.0f;
  }
};

struct AverageShare {
  const PoolTile& tile;
  FL_DEVICE float operator()(std::int64_t oh, std::int64_t ow, float dy) const {
    return dy * average_weight(tile.h, tile.w, oh, ow, tile.count_padding);
  }
};

class Pool2d : public Kernel {
 public:
  explicit Pool2d(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const PoolTile tile(layer_, task.inputs[0], output);
    const Strided x(task.inputs[0]), y(output);
    if (layer_.maximum) {
      for_each(output.volume(), [=] FL_BODY(std::int64_t i) {
        const Place at(y, i);
        at.in(y) = maximum_of(tile, x, at);
      });
    } else {
      for_each(output.volume(), [=] FL_BODY(std::int64_t i) {
        const Place at(y, i);
        at.in(y) = average_of(tile, x, at);
      });
    }
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    if (output_grad.tile.empty()) {
      if (!adds) gpu::zero_view(input_grad);
      return;
    }
    const PoolTile tile(layer_, input_grad, output_grad);
    const Strided dx(input_grad), dy(output_grad);
    if (layer_.maximum) {
      const Strided x(task.inputs[0]);
      for_each(input_grad.volume(), [=] FL_BODY(std::int64_t i) {
        const Place at(dx, i);
        put(at.in(dx), gathered(tile, dy, at, WinnersShare{tile, x, at}), adds);
      });
    } else {
      for_each(input_grad.volume(), [=] FL_BODY(std::int64_t i) {
        const Place at(dx, i);
        put(at.in(dx), gathered(tile, dy, at, AverageShare{tile}), adds);
      });
    }
  }

 private:
  PoolLayer layer_;
};

const RegisterKernel registered(
    "pool2d", [](const Attributes& a) { return std::make_unique<Pool2d>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
