// flatten: (n, d1, d2, ...) -> (n, d1 * d2 * ...), row-major. A tile [lo, hi) of the flat dimension
// comes from the whole rows of d1 that it touches, of which the first and last may be shared with
// the neighbouring tiles.
#include "ops/kernel.h"

namespace flexlegion {
namespace {

// Where the flat tile lies in one sample's part of the unflattened tile.
struct Slice {
  std::int64_t samples, sample_size, begin, length;
};

Slice slice_of(const TensorView& unflat, const TensorView& flat) {
  Slice s{flat.extent(0), 1, flat.tile.lo[1], flat.extent(1)};
  std::int64_t row = 1;
  for (int d = 2; d < unflat.rank(); ++d) row *= unflat.extent(d);
  s.sample_size = unflat.extent(1) * row;
  s.begin -= unflat.tile.lo[1] * row;
  return s;
}

class Flatten : public Kernel {
 public:
  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    if (y.tile.empty()) return;
    const Slice s = slice_of(task.inputs[0], y);
    const DenseInput x(task.inputs[0], 0);
    const DenseOutput out(y, 1);
    for (std::int64_t n = 0; n < s.samples; ++n) {
      std::copy_n(x.data() + n * s.sample_size + s.begin, s.length, out.data() + n * s.length);
    }
    out.commit();
  }

  void backward(KernelTask& task) override {
    if (task.input_grads.empty() || !task.input_grads[0].present()) return;
    const Slice s = slice_of(task.input_grads[0], task.output_grads[0]);
    const DenseInput dy(task.output_grads[0], 0);
    const DenseOutput dx(task.input_grads[0], 1);
    for (std::int64_t n = 0; n < s.samples; ++n) {
      float* const sample = dx.data() + n * s.sample_size;
      float* const end =
          std::copy_n(dy.data() + n * s.length, s.length, std::fill_n(sample, s.begin, 0.0f));
      std::fill(end, sample + s.sample_size, 0.0f);  // the rest belongs to other tasks
    }
    dx.commit();
  }
};

const RegisterKernel registered("flatten",
                                [](const Attributes&) { return std::make_unique<Flatten>(); });

}  // namespace
}  // namespace flexlegion
