// pool2d: the maximum or the average of each window, over (n, h, w, c).
//
// A gradient is gathered: each element of the input looks at the windows that it lies in. So
// windows that overlap need no atomic additions, and the sums have one order. Of a maximum, it has
// to know which element of a window won: that is found first, once a window, and kept in scratch
// memory.
//
// A thread has one place and as many channels as 16 bytes hold. Forwards it reads its window;
// overlapping windows find their elements in the caches. Backwards it reads the few windows over
// its element: with stride s and k taps, about (k / s)^2. A winner is a byte if the window has at
// most 256 elements.
#include "ops/pool2d.h"

#include "gpu/view.h"

namespace flexlegion::gpu {
namespace {

constexpr int kWinnersSlot = 0;

// The windows of a tile.
struct PoolTile {
  WindowTile h, w;
  bool count_padding;

  PoolTile(const PoolLayer& layer, const TensorView& input, const TensorView& output)
      : h(layer.h, input, output, 1),
        w(layer.w, input, output, 2),
        count_padding(layer.count_padding) {}

  // Which of its window's elements (h, w) is, counted from where the window begins inside the
  // tensor: padding is left out.
  FL_DEVICE std::int64_t number(std::int64_t oh, std::int64_t ow, std::int64_t row,
                                std::int64_t column) const {
    return (row - h.begin(oh)) * w.kernel + column - w.begin(ow);
  }
};

// A place in a tile of (n, h, w, c), and as many channels from there as its width says.
struct Place {
  std::int64_t n, h, w, c;

  FL_DEVICE Place(const Strided& tile, std::int64_t i, int width) {
    const std::int64_t groups = tile.extent[3] / width;
    c = i % groups * width;
    i /= groups;
    w = i % tile.extent[2];
    i /= tile.extent[2];
    h = i % tile.extent[1];
    n = i / tile.extent[1];
  }
  // In any tile of these samples and channels: where their plane of (h, w) begins.
  FL_DEVICE Reals plane(const Strided& tile) const {
    return tile.data + (n * tile.stride[0] + c * tile.stride[3]);
  }
  FL_DEVICE std::int64_t offset_in(const Strided& tile) const {
    return h * tile.stride[1] + w * tile.stride[2];
  }
};

// body(width, place) of all elements of a tile, as many of them as all tiles have aligned.
template <typename Body>
void for_each_place(const TensorView& of, const TensorView& other, const Body& body) {
  const auto aligned = [](const TensorView& view) {
    bool whole = view.stride[3] == 1 && begins_wide({view.data, view.type});
    for (int d = 0; d < 3; ++d) whole = whole && view.stride[d] % kWide == 0;
    return whole;
  };
  const Strided tile(of);
  if (of.extent(3) % kWide == 0 && aligned(of) && aligned(other)) {
    for_each(of.volume() / kWide,
             [=] FL_BODY(std::int64_t i) { body(Width<kWide>(), Place(tile, i, kWide)); });
  } else {
    for_each(of.volume(), [=] FL_BODY(std::int64_t i) { body(Width<1>(), Place(tile, i, 1)); });
  }
}

// The first largest elements of a window, and which of the window's these are. A thread keeps the
// best element so far of each of its channels, and the number of its place.
template <int W>
struct Winners {
  Lanes<W> values;
  std::int32_t numbers[W] = {};

  FL_DEVICE Winners(const PoolTile& t, const Strided& x, const Place& at) {
    const Reals plane = at.plane(x);
    const std::int64_t top = t.h.begin(at.h), left = t.w.begin(at.w);
    values = load(Width<W>(), plane, top * x.stride[1] + left * x.stride[2]);
    for (std::int64_t h = top; h < t.h.end(at.h); ++h) {
      for (std::int64_t w = left; w < t.w.end(at.w); ++w) {
        const auto its = load(Width<W>(), plane, h * x.stride[1] + w * x.stride[2]);
        const auto number = static_cast<std::int32_t>(t.number(at.h, at.w, h, w));
        for (int k = 0; k < W; ++k) {
          // NaN wins, as on CPUs; the first of equal ones stays.
          if (!(its[k] > values[k] || its[k] != its[k])) continue;
          values[k] = its[k];
          numbers[k] = number;
        }
      }
    }
  }
};

// The mean over a window's elements; whether padding counts among them is the layer's to say.
template <int W>
FL_DEVICE Lanes<W> averages(Width<W> width, const PoolTile& t, const Strided& x, const Place& at) {
  const Reals plane = at.plane(x);
  Lanes<W> sum{};
  for (std::int64_t h = t.h.begin(at.h); h < t.h.end(at.h); ++h) {
    for (std::int64_t w = t.w.begin(at.w); w < t.w.end(at.w); ++w) {
      const auto its = load(width, plane, h * x.stride[1] + w * x.stride[2]);
      for (int k = 0; k < W; ++k) sum[k] += its[k];
    }
  }
  const float weight = average_weight(t.h, t.w, at.h, at.w, t.count_padding);
  for (int k = 0; k < W; ++k) sum[k] *= weight;
  return sum;
}

// The sum of share(oh, ow, dy) over the windows that elements of the input lie in.
template <int W, typename Share>
FL_DEVICE Lanes<W> gathered(Width<W> width, const PoolTile& t, const Strided& dy, const Place& at,
                            const Share& share) {
  const Reals plane = at.plane(dy);
  Lanes<W> sum{};
  for (std::int64_t oh = t.h.first_over(at.h); oh < t.h.end_over(at.h); ++oh) {
    for (std::int64_t ow = t.w.first_over(at.w); ow < t.w.end_over(at.w); ++ow) {
      auto grads = load(width, plane, oh * dy.stride[1] + ow * dy.stride[2]);
      share(oh, ow, grads);
      for (int k = 0; k < W; ++k) sum[k] += grads[k];
    }
  }
  return sum;
}

// What of the gradients of a window's average an element of it has.
struct AverageShare {
  const PoolTile& tile;

  template <int W>
  FL_DEVICE void operator()(std::int64_t oh, std::int64_t ow, Lanes<W>& grads) const {
    const float weight = average_weight(tile.h, tile.w, oh, ow, tile.count_padding);
    for (int k = 0; k < W; ++k) grads[k] *= weight;
  }
};

// Who won, of each element of a dense output (n, h, w, c).
template <typename Number>
struct WinnerTable {
  Number* data;
  std::int64_t heights, widths, channels;

  FL_DEVICE Number* at(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) const {
    return data + (((n * heights + h) * widths + w) * channels + c);
  }
};

// Of a window's maximum, its winner has all, and the others nothing.
template <typename Number>
struct WinnersShare {
  const PoolTile& tile;
  const WinnerTable<Number>& winners;
  const Place& at;

  template <int W>
  FL_DEVICE void operator()(std::int64_t oh, std::int64_t ow, Lanes<W>& grads) const {
    const Number* const its = winners.at(at.n, oh, ow, at.c);
    const std::int64_t mine = tile.number(oh, ow, at.h, at.w);
    for (int k = 0; k < W; ++k) {
      if (its[k] != mine) grads[k] = 0.0f;
    }
  }
};

// Two launches: who won each window, then for each input element the gradients of the windows that
// it won.
template <typename Number>
void maximum_backward(const KernelTask& task, const PoolTile& tile) {
  const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
  const bool adds = task.adds_to_input_grad(0);
  const Strided x(task.inputs[0]), dx(input_grad), dy(output_grad);
  const auto bytes = static_cast<std::int64_t>(sizeof(Number)) * output_grad.volume();
  auto* const memory = reinterpret_cast<Number*>(scratch(kWinnersSlot, bytes / 4 + 1));
  const WinnerTable<Number> winners{memory, dy.extent[1], dy.extent[2], dy.extent[3]};
  for_each_place(output_grad, task.inputs[0], [=] FL_BODY(auto width, const Place& at) {
    const Winners<width.value> its(tile, x, at);
    Number* const to = winners.at(at.n, at.h, at.w, at.c);
    for (int k = 0; k < width.value; ++k) to[k] = static_cast<Number>(its.numbers[k]);
  });
  for_each_place(input_grad, output_grad, [=] FL_BODY(auto width, const Place& at) {
    const WinnersShare<Number> share{tile, winners, at};
    put(at.plane(dx), at.offset_in(dx), gathered(width, tile, dy, at, share), adds);
  });
}

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
      for_each_place(output, task.inputs[0], [=] FL_BODY(auto width, const Place& at) {
        const Winners<width.value> winners(tile, x, at);
        store(at.plane(y), at.offset_in(y), winners.values);
      });
    } else {
      for_each_place(output, task.inputs[0], [=] FL_BODY(auto width, const Place& at) {
        store(at.plane(y), at.offset_in(y), averages(width, tile, x, at));
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
    if (!layer_.maximum) {
      for_each_place(input_grad, output_grad, [=] FL_BODY(auto width, const Place& at) {
        const AverageShare share{tile};
        put(at.plane(dx), at.offset_in(dx), gathered(width, tile, dy, at, share), adds);
      });
    } else if (tile.h.kernel * tile.w.kernel <= 1 << 8) {
      maximum_backward<std::uint8_t>(task, tile);
    } else {
      maximum_backward<std::int32_t>(task, tile);
    }
  }

 private:
  PoolLayer layer_;
};

const RegisterKernel registered(
    "pool2d", [](const Attributes& a) { return std::make_unique<Pool2d>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
