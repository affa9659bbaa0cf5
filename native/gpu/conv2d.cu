// conv2d over (n, h, w, c), with a bias and an activation of the output.
//
// A convolution is cuDNN's (convolution.h), over dense copies of tiles that are not dense, once for
// each run of whole groups that the task has. Backwards: the gradient before the activation, then
// dx, the kernel's gradient and the bias's, each only if it is wanted.
#include "gpu/activation.h"
#include "gpu/convolution.h"

namespace flexlegion::gpu {
namespace {

class Conv2d : public Kernel {
 public:
  explicit Conv2d(const Attributes& attributes) : layer_(attributes) {}

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& output = task.outputs[0];
    if (output.tile.empty()) return;
    for (const ConvViews& part : layer_.parts_of(ConvViews(task), output)) forward_part(part);
  }

  // Groups of channels that no filter of this task reads have a gradient of zero here; other tasks
  // have theirs.
  void backward(KernelTask& task) override {
    const TensorView& dy = task.output_grads[0];
    if (dy.tile.empty()) return;
    const std::vector<ConvViews> parts = layer_.parts_of(ConvViews(task), dy);
    if (task.wants_input_grad(0) && !task.adds_to_input_grad(0)) {
      for (const TensorView& unread : unread_channels(task.input_grads[0], parts)) {
        gpu::zero_view(unread);
      }
    }
    for (const ConvViews& part : parts) backward_part(part);
  }

 private:
  // Scratch memory; the convolutions take more.
  enum Slot { kOutputGrad, kInput, kKernel, kBias, kOutput, kInputGrad, kKernelGrad, kSums };

  // A tile as cuDNN takes it: dense, in the type of the layer.
  static Reals dense(const TensorView& view, Slot slot, DataType type) {
    return {DenseInput(view, slot, type).memory(), type};
  }

  // Of one run of whole groups: what the task's filters read, and what they write.
  void forward_part(const ConvViews& views) const {
    const ConvTile tile = layer_.tile(views, views.y);
    const DataType type = views.y.type;
    const DenseOutput y(views.y, kOutput, false, type);
    const Reals result(y.memory(), type);
    const Reals bias = layer_.use_bias ? dense(views.bias, kBias, DataType::float32) : Reals();
    convolve(tile, dense(views.x, kInput, type), dense(views.kernel, kKernel, views.kernel.type),
             bias, layer_.activation, result);
    y.commit();
  }

  // The gradient before the activation is made once, in scratch memory, for all three products.
  void backward_part(const ConvViews& views) const {
    const ConvTile tile = layer_.tile(views, views.dy);
    const TensorView dy = before_activation(views);
    const DataType type = dy.type;
    const Reals grad(dy.data, type);
    if (views.dx.present()) {
      const DenseOutput dx(views.dx, kInputGrad, views.adds_dx, type);
      convolve_backward_data(tile, dense(views.kernel, kKernel, views.kernel.type), grad,
                             {dx.memory(), type});
      dx.commit();
    }
    if (views.dkernel.present()) {
      const DenseOutput dkernel(views.dkernel, kKernelGrad, views.adds_dkernel);
      convolve_backward_kernel(tile, dense(views.x, kInput, type), grad,
                               {dkernel.memory(), DataType::float32});
      dkernel.commit();
    }
    if (layer_.use_bias && views.dbias.present()) {
      const std::int64_t rows = dy.volume() / tile.filters;
      bias_gradient(Matrix::row_major(dy.data, rows, tile.filters, tile.filters, type), views.dbias,
                    kSums, views.adds_dbias);
    }
  }

  // The gradient with respect to what the activation was applied to: dense.
  TensorView before_activation(const ConvViews& views) const {
    const TensorView& dy = views.dy;
    if (layer_.activation == Activation::none && dy.dense()) return dy;
    const TensorView result = gpu::scratch_view(kOutputGrad, dy, dy.type);
    gpu::activation_backward(layer_.activation, dy, views.y, result);
    return result;
  }

  ConvLayer layer_;
};

const RegisterKernel registered(
    "conv2d", [](const Attributes& a) { return std::make_unique<Conv2d>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
