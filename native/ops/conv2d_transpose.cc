// conv2d_transpose over (n, h, w, c), as ops/conv2d_transpose.h describes it. The products have
// factors of the tiles' type; what falls on an output element is summed in floats.
//
// Forwards: the output starts as the bias; columns = x kernel^T for some samples; each tap's
// filters are added to the output element that they fall on. Backwards the same columns are
// gathered from dy, and two products with them give dx and dkernel.
//
// The columns have kh kw o elements for each input pixel, kh kw times the output of a layer without
// stride. So they exist for a few samples at a time, as many as stay in a core's own cache between
// the product and the sums. The obvious alternative, a convolution of a dilated input, multiplies
// with zeros: stride^2 times the work.
#include "ops/conv2d_transpose.h"

#include <cstring>

#include "ops/products.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

constexpr std::int64_t kAtOnce = 1 << 19;  // elements of columns: about a core's own cache

enum Slot { kInput, kKernel, kBias, kOutput, kColumns, kInputGrad, kKernelGrad, kSums };

FLEXLEGION_SIMD void add_row(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// body(columns of a tap, the output's row of filters that it falls on, or -1) for one sample.
template <typename Body>
void for_each_tap(const TransposedConvTile& t, const Body& body) {
  std::int64_t at = 0;
  for (std::int64_t ih = 0; ih < t.h.in; ++ih) {
    for (std::int64_t iw = 0; iw < t.w.in; ++iw) {
      for (std::int64_t kh = 0; kh < t.h.taps; ++kh) {
        const std::int64_t oh = t.h.falls_on(ih, kh);
        for (std::int64_t kw = 0; kw < t.w.taps; ++kw, at += t.filters) {
          const std::int64_t ow = oh < 0 ? -1 : t.w.falls_on(iw, kw);
          body(at, ow < 0 ? -1 : (oh * t.w.out + ow) * t.filters);
        }
      }
    }
  }
}

class Conv2dTranspose : public Kernel {
 public:
  explicit Conv2dTranspose(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool shares_out() const override { return true; }
  bool takes(DataType type) const override { return type == DataType::bfloat16; }

  // Some samples at a time, while their columns stay in the cache.
  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    const TransposedConvTile t = layer_.tile(task.inputs[0], output, task.weights[0]);
    const DataType type = output.type;
    const DenseInput x(task.inputs[0], kInput, type), kernel(task.weights[0], kKernel, type);
    const DenseOutput y(output, kOutput);
    const bool biased = layer_.use_bias && task.weights[1].present();
    const float* const bias = biased ? DenseInput(task.weights[1], kBias).data() : nullptr;
    // Outputs on which nothing falls are the bias.
    for (std::int64_t i = 0; i < output.volume(); i += t.filters) {
      bias != nullptr ? std::copy_n(bias, t.filters, y.data() + i)
                      : std::fill_n(y.data() + i, t.filters, 0.0f);
    }
    blocks(t, [&](std::int64_t first, std::int64_t count, float* columns) {
      products_.multiply(t.rows_of(x.memory(), type, first, count),
                         t.matrix_of(kernel.memory(), type).transposed(),
                         t.columns_of(columns, DataType::float32, count));
      for (std::int64_t n = 0; n < count; ++n) {
        const float* const from = columns + n * t.sample() * t.row();
        float* const to = y.data() + (first + n) * t.outputs();
        for_each_tap(t, [&](std::int64_t at, std::int64_t falls_on) {
          if (falls_on >= 0) add_row(from + at, to + falls_on, t.filters);
        });
      }
    });
    y.commit();
  }

  // The columns' gradients of some samples, and both products with them.
  void backward(KernelTask& task) override {
    const TensorView& output_grad = task.output_grads[0];
    if (output_grad.tile.empty()) return;
    const bool wants_x = task.wants_input_grad(0), wants_kernel = task.wants_weight_grad(0);
    const TransposedConvTile t = layer_.tile(task.inputs[0], output_grad, task.weights[0]);
    const DataType type = output_grad.type;
    void* const dy = DenseInput(output_grad, kOutput, type).memory();
    const Matrix grads =
        Matrix::row_major(dy, output_grad.volume() / std::max<std::int64_t>(1, t.filters),
                          t.filters, t.filters, type);
    if (layer_.use_bias && task.wants_weight_grad(1)) bias_gradient(task, grads);
    if (!wants_x && !wants_kernel) return;
    if (t.sample() == 0) {  // outputs on which nothing falls
      if (wants_kernel && !task.adds_to_weight_grad(0)) zero_view(task.weight_grads[0]);
      return;
    }
    const DenseInput x(task.inputs[0], kInput, type), kernel(task.weights[0], kKernel, type);
    const TensorView none;
    const DenseOutput dx(wants_x ? task.input_grads[0] : none, kInputGrad,
                         task.adds_to_input_grad(0), type);
    const DenseOutput dkernel(wants_kernel ? task.weight_grads[0] : none, kKernelGrad,
                              task.adds_to_weight_grad(0));
    ProductOptions adds;
    blocks(t, [&](std::int64_t first, std::int64_t count, float* columns) {
      const Matrix gradients = t.columns_of(columns, type, count);
      const auto bytes = static_cast<std::size_t>(t.filters * element_bytes(type));
      for (std::int64_t n = 0; n < count; ++n) {
        // Each column takes the gradient of the element that it fell on. What fell beside the tile
        // has none.
        const std::int64_t to = n * t.sample() * t.row(), from = (first + n) * t.outputs();
        for_each_tap(t, [&](std::int64_t at, std::int64_t falls_on) {
          void* const column = gradients.at(to + at);
          falls_on >= 0 ? std::memcpy(column, grads.at(from + falls_on), bytes)
                        : std::memset(column, 0, bytes);
        });
      }
      if (wants_x) {
        products_.multiply(gradients, t.matrix_of(kernel.memory(), type),
                           t.rows_of(dx.memory(), type, first, count));
      }
      if (wants_kernel) {
        products_.multiply(gradients.transposed(), t.rows_of(x.memory(), type, first, count),
                           t.matrix_of(dkernel.memory(), DataType::float32), adds);
        // The first block writes: a gradient that is added to is scratch memory until commit().
        adds.adds = true;  // from the second block on
      }
    });
    if (wants_x) dx.commit();
    if (wants_kernel) dkernel.commit();
  }

 private:
  template <typename Body>
  static void blocks(const TransposedConvTile& t, const Body& body) {
    const auto memory = [](std::int64_t elements) { return scratch(kColumns, elements); };
    for_each_block(t, kAtOnce, memory, body);
  }

  // The sum over all pixels of the batch.
  static void bias_gradient(KernelTask& task, const Matrix& grads) {
    const TensorView& gradient = task.weight_grads[1];
    float* const sums = scratch(kSums, grads.cols);
    std::fill_n(sums, grads.cols, 0.0f);
    add_rows(grads, sums);
    write_or_add_view(gradient, dense_view(sums, gradient.tile, gradient.shape),
                      task.adds_to_weight_grad(1));
  }

  TransposedConvLayer layer_;
  Products products_;
};

const RegisterKernel registered("conv2d_transpose", [](const Attributes& a) {
  return std::make_unique<Conv2dTranspose>(a);
});

}  // namespace
}  // namespace flexlegion
