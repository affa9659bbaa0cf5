// conv2d_transpose over (n, h, w, c), as ops/conv2d_transpose.h describes it. Each output element
// gathers its columns, so that sums have one order. The products have factors of the tiles' type;
// what falls on an output element is summed in floats.
//
// The columns of some samples, at most 64 MiB of them, are one product; then a thread for each
// output element adds the few that fall on it. The CPU's kernel goes the other way, from columns to
// outputs, which here would need atomic additions, whose order differs from run to run.
#include "gpu/activation.h"
#include "gpu/blas.h"
#include "ops/conv2d_transpose.h"

namespace flexlegion::gpu {
namespace {

constexpr std::int64_t kAtOnce = 1 << 24;  // elements of columns: 64 MiB

enum Slot { kInput, kKernel, kBias, kOutput, kColumns, kInputGrad, kKernelGrad, kSums };

// y (of some samples) = bias + what falls on it. Of the taps, only those count whose distance to
// the output element is a multiple of the stride (comes_from).
void gather(const TransposedConvTile& t, std::int64_t samples, const float* columns,
            const float* bias, const Reals& y) {
  for_each(samples * t.outputs(), [=] FL_BODY(std::int64_t at) {
    const std::int64_t o = at % t.filters, place = at / t.filters;
    const std::int64_t ow = place % t.w.out, oh = place / t.w.out % t.h.out;
    const std::int64_t n = place / t.w.out / t.h.out;
    float sum = bias == nullptr ? 0.0f : bias[o];
    for (std::int64_t kh = 0; kh < t.h.taps; ++kh) {
      const std::int64_t ih = t.h.comes_from(oh, kh);
      if (ih < 0) continue;
      for (std::int64_t kw = 0; kw < t.w.taps; ++kw) {
        const std::int64_t iw = t.w.comes_from(ow, kw);
        if (iw < 0) continue;
        const std::int64_t row = (n * t.h.in + ih) * t.w.in + iw;
        sum += columns[row * t.row() + (kh * t.w.taps + kw) * t.filters + o];
      }
    }
    y[at] = sum;
  });
}

// The gradients of columns: of each, that of the output element on which it fell.
void scatter_back(const TransposedConvTile& t, std::int64_t samples, const Reals& dy,
                  const Reals& columns) {
  for_each(samples * t.sample() * t.row(), [=] FL_BODY(std::int64_t at) {
    const std::int64_t o = at % t.filters, tap = at / t.filters % t.taps();
    const std::int64_t place = at / t.row();
    const std::int64_t iw = place % t.w.in, ih = place / t.w.in % t.h.in;
    const std::int64_t n = place / t.w.in / t.h.in;
    const std::int64_t oh = t.h.falls_on(ih, tap / t.w.taps);
    const std::int64_t ow = t.w.falls_on(iw, tap % t.w.taps);
    // What fell beside the tile has no gradient here.
    const bool beside = oh < 0 || ow < 0;
    const std::int64_t from = ((n * t.h.out + oh) * t.w.out + ow) * t.filters + o;
    columns[at] = beside ? 0.0f : static_cast<float>(dy[from]);
  });
}

class Conv2dTranspose : public Kernel {
 public:
  explicit Conv2dTranspose(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  // Some samples at a time: their columns by one product, then their outputs.
  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const TransposedConvTile t = layer_.tile(task.inputs[0], output, task.weights[0]);
    const DataType type = output.type;
    const DenseInput x(task.inputs[0], kInput, type), kernel(task.weights[0], kKernel, type);
    const DenseOutput out(output, kOutput, false, type);
    const Reals y(out.memory(), type);
    const bool biased = layer_.use_bias && task.weights[1].present();
    const float* const bias = biased ? DenseInput(task.weights[1], kBias).data() : nullptr;
    // Without input elements there are no blocks: outputs are the bias.
    if (t.sample() == 0) gather(t, t.samples, nullptr, bias, y);
    blocks(t, [&](std::int64_t first, std::int64_t count, float* columns) {
      multiply(t.rows_of(x.memory(), type, first, count),
               t.matrix_of(kernel.memory(), type).transposed(),
               t.columns_of(columns, DataType::float32, count));
      gather(t, count, columns, bias, y + first * t.outputs());
    });
    out.commit();
  }

  // The columns' gradients of some samples, then two products with them.
  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const bool wants_x = task.wants_input_grad(0), wants_kernel = task.wants_weight_grad(0);
    const TransposedConvTile t = layer_.tile(task.inputs[0], output_grad, task.weights[0]);
    const DataType type = output_grad.type;
    const Reals dy(DenseInput(output_grad, kOutput, type).memory(), type);
    if (layer_.use_bias && task.wants_weight_grad(1)) {
      const std::int64_t rows = output_grad.volume() / std::max<std::int64_t>(1, t.filters);
      bias_gradient(Matrix::row_major(dy.data(), rows, t.filters, t.filters, type),
                    task.weight_grads[1], kSums, task.adds_to_weight_grad(1));
    }
    if (!wants_x && !wants_kernel) return;
    if (t.sample() == 0) {  // outputs on which nothing falls
      if (wants_kernel && !task.adds_to_weight_grad(0)) gpu::zero_view(task.weight_grads[0]);
      return;
    }
    const DenseInput x(task.inputs[0], kInput, type), kernel(task.weights[0], kKernel, type);
    const TensorView none;
    const DenseOutput dx(wants_x ? task.input_grads[0] : none, kInputGrad,
                         task.adds_to_input_grad(0), type);
    const DenseOutput dkernel(wants_kernel ? task.weight_grads[0] : none, kKernelGrad,
                              task.adds_to_weight_grad(0));
    bool adds = false;
    blocks(t, [&](std::int64_t first, std::int64_t count, float* columns) {
      const Matrix gradients = t.columns_of(columns, type, count);
      scatter_back(t, count, dy + first * t.outputs(), reals(gradients));
      if (wants_x) {
        multiply(gradients, t.matrix_of(kernel.memory(), type),
                 t.rows_of(dx.memory(), type, first, count));
      }
      // The kernel's gradient is a sum over all samples, so blocks after the first add to it.
      if (wants_kernel) {
        multiply(gradients.transposed(), t.rows_of(x.memory(), type, first, count),
                 t.matrix_of(dkernel.memory(), DataType::float32), adds);
        adds = true;  // from the second block on
      }
    });
    if (wants_x) dx.commit();
    if (wants_kernel) dkernel.commit();
  }

 private:
  // As few blocks as memory allows: each is two or three launches, whatever its size.
  template <typename Body>
  static void blocks(const TransposedConvTile& t, const Body& body) {
    const auto memory = [](std::int64_t elements) { return scratch(kColumns, elements); };
    for_each_block(t, kAtOnce, memory, body);
  }

  TransposedConvLayer layer_;
};

const RegisterKernel registered(
    "conv2d_transpose", [](const Attributes& a) { return std::make_unique<Conv2dTranspose>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
