// resize2d over (n, h, w, c), as ops/resize2d.h describes it. Gradients are gathered: each input
// looks at the outputs that it is a part of, so that sums have one order.
//
// A thread for each element. Forwards it reads at most four inputs; backwards the outputs that may
// have it, about the product of both factors times four, most of them from the caches. Scattering
// would need atomic additions, whose order varies.
#include "ops/resize2d.h"

#include "gpu/view.h"

namespace flexlegion::gpu {
namespace {

class Resize2d : public Kernel {
 public:
  explicit Resize2d(const Attributes& attributes) : h_(attributes, "h"), w_(attributes, "w") {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const ResizeAxis h = h_.between(task.inputs[0], output, 1);
    const ResizeAxis w = w_.between(task.inputs[0], output, 2);
    const Strided x(task.inputs[0]), y(output);
    for_each(output.volume(), [=] FL_BODY(std::int64_t i) {
      const std::int64_t c = i % y.extent[3], place = i / y.extent[3];
      // Two rows and two columns, and the share of the second of each.
      const ResizeTaps row = h.taps(place / w.out % h.out), column = w.taps(place % w.out);
      const Reals plane = x.data + (place / w.out / h.out * x.stride[0] + c * x.stride[3]);
      const auto at = [&](std::int64_t r, std::int64_t q) {
        return static_cast<float>(plane[r * x.stride[1] + q * x.stride[2]]);
      };
      const float above = (1.0f - column.share) * at(row.first, column.first) +
                          column.share * at(row.first, column.second);
      const float below = (1.0f - column.share) * at(row.second, column.first) +
                          column.share * at(row.second, column.second);
      y[i] = (1.0f - row.share) * above + row.share * below;
    });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    const bool adds = task.adds_to_input_grad(0);
    if (output_grad.tile.empty()) {
      if (!adds) gpu::zero_view(input_grad);
      return;
    }
    const ResizeAxis h = h_.between(input_grad, output_grad, 1);
    const ResizeAxis w = w_.between(input_grad, output_grad, 2);
    const Strided dx(input_grad), dy(output_grad);
    for_each(input_grad.volume(), [=] FL_BODY(std::int64_t i) {
      const std::int64_t c = i % dx.extent[3], place = i / dx.extent[3];
      const std::int64_t iw = place % w.in, ih = place / w.in % h.in;
      const Reals plane = dy.data + (place / w.in / h.in * dy.stride[0] + c * dy.stride[3]);
      float sum = 0;
      for (std::int64_t oh = h.first_of(ih); oh < h.end_of(ih); ++oh) {
        // The share of this input in that output: 0 for most of the outputs that are looked at.
        const float row = h.taps(oh).weight_of(ih);
        if (row == 0.0f) continue;
        for (std::int64_t ow = w.first_of(iw); ow < w.end_of(iw); ++ow) {
          sum += row * w.taps(ow).weight_of(iw) * plane[oh * dy.stride[1] + ow * dy.stride[2]];
        }
      }
      put(dx[i], sum, adds);
    });
  }

 private:
  ResizeAxis h_, w_;
};

const RegisterKernel registered(
    "resize2d", [](const Attributes& a) { return std::make_unique<Resize2d>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
