// resize2d over (n, h, w, c), as ops/resize2d.h describes it.
//
// Each output is a mean of at most four inputs, two rows by two columns, so both passes walk the
// outputs and move whole vectors of channels: forwards from inputs to outputs, backwards the same
// shares from outputs to inputs. A share of 0 is skipped: nearest neighbours then cost one copy.
#include "ops/resize2d.h"

#include "ops/simd.h"

namespace flexlegion {
namespace {

// to += factor * from, of the channels of one pixel.
FLEXLEGION_SIMD void add_scaled(const float* from, float factor, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// Forwards and backwards walk the same parts, in opposite directions.
class Resize2d : public Kernel {
 public:
  explicit Resize2d(const Attributes& attributes) : h_(attributes, "h"), w_(attributes, "w") {}

  bool accumulates() const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const DenseInput x(task.inputs[0], 0);
    const DenseOutput y(output, 1);
    // Up to four parts are added to each pixel.
    std::fill_n(y.data(), output.volume(), 0.0f);
    const std::int64_t c = output.extent(3);
    for_each_part(task.inputs[0], output, [&](std::int64_t in, std::int64_t out, float share) {
      add_scaled(x.data() + in, share, y.data() + out, c);
    });
    y.commit();
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    const TensorView &input_grad = task.input_grads[0], &output_grad = task.output_grads[0];
    const DenseOutput dx(input_grad, 0, task.adds_to_input_grad(0));
    // Neighbouring outputs share inputs, so shares are added up.
    std::fill_n(dx.data(), input_grad.volume(), 0.0f);
    if (!output_grad.tile.empty()) {
      const DenseInput dy(output_grad, 1);
      const std::int64_t c = output_grad.extent(3);
      for_each_part(input_grad, output_grad, [&](std::int64_t in, std::int64_t out, float share) {
        add_scaled(dy.data() + out, share, dx.data() + in, c);
      });
    }
    dx.commit();
  }

 private:
  // body(offset of the input's channels, of the output's, share of the one in the other)
  template <typename Body>
  void for_each_part(const TensorView& x, const TensorView& y, const Body& body) const {
    const ResizeAxis h = h_.between(x, y, 1), w = w_.between(x, y, 2);
    const std::int64_t c = y.extent(3);
    for (std::int64_t n = 0, out = 0; n < y.extent(0); ++n) {
      for (std::int64_t oh = 0; oh < h.out; ++oh) {
        const ResizeTaps row = h.taps(oh);
        for (std::int64_t ow = 0; ow < w.out; ++ow, out += c) {
          const ResizeTaps column = w.taps(ow);
          const std::int64_t rows[] = {row.first, row.second};
          const std::int64_t columns[] = {column.first, column.second};
          const float row_shares[] = {1.0f - row.share, row.share};
          const float column_shares[] = {1.0f - column.share, column.share};
          for (int i = 0; i < 2; ++i) {
            for (int j = 0; j < 2; ++j) {
              const float share = row_shares[i] * column_shares[j];
              if (share != 0.0f) {
                body(((n * h.in + rows[i]) * w.in + columns[j]) * c, out, share);
              }
            }
          }
        }
      }
    }
  }

  ResizeAxis h_, w_;
};

const RegisterKernel registered("resize2d",
                                [](const Attributes& a) { return std::make_unique<Resize2d>(a); });

}  // namespace
}  // namespace flexlegion
