// conv1d and pool1d: those of two dimensions, over images of one row.
//
// (n, l, c) is an image of one row, and the kernel has one row of taps, so views with one more
// dimension of extent 1 are all that is needed: no element is copied. The same class serves both
// kinds of devices.
#include "ops/kernel.h"

namespace flexlegion {
namespace {

// (n, l, c) as (n, 1, l, c); a convolution's kernel (o, k, i) as (o, 1, k, i).
TensorView with_row(const TensorView& view) {
  if (view.rank() != 3) return view;
  TensorView image = view;
  image.tile.rank = 4;
  for (int d = 3; d > 1; --d) {
    image.tile.lo[d] = view.tile.lo[d - 1];
    image.tile.hi[d] = view.tile.hi[d - 1];
    image.stride[d] = view.stride[d - 1];
    image.shape[d] = view.shape[d - 1];
  }
  image.tile.lo[1] = 0;
  image.tile.hi[1] = image.shape[1] = 1;
  image.stride[1] = image.extent(2) * image.stride[2];
  return image;
}

using Entries = std::vector<std::pair<std::string, std::string>>;

class Window1d : public Kernel {
 public:
  // `attributes` are those that both have.
  Window1d(const std::string& type_2d, const Attributes& of_1d, Entries attributes,
           DeviceKind kind) {
    // The added dimension is h: one tap, steps of one, no padding.
    for (const char* name : {"kernel", "stride", "padding"}) {
      const std::string prefix = std::string(name) + "_";
      attributes.emplace_back(prefix + "h", prefix == "padding_" ? "0" : "1");
      attributes.emplace_back(prefix + "w", of_1d.text(name));
    }
    kernel_ = make_kernel(type_2d, Attributes(std::move(attributes)), kind);
  }

  bool accumulates() const override { return kernel_->accumulates(); }
  bool takes(DataType type) const override { return kernel_->takes(type); }

  void forward(KernelTask& task) override {
    KernelTask image = images(task);
    kernel_->forward(image);
  }

  void backward(KernelTask& task) override {
    KernelTask image = images(task);
    kernel_->backward(image);
  }

 private:
  // The same task, its tiles seen with one more dimension. Biases have one dimension and stay as
  // they are.
  static KernelTask images(const KernelTask& task) {
    KernelTask image = task;
    for (auto* views : {&image.inputs, &image.weights, &image.outputs, &image.input_grads,
                        &image.weight_grads, &image.output_grads}) {
      for (TensorView& view : *views) view = with_row(view);
    }
    return image;
  }

  std::unique_ptr<Kernel> kernel_;
};

KernelFactory conv1d(DeviceKind kind) {
  return [kind](const Attributes& a) {
    return std::make_unique<Window1d>("conv2d", a,
                                      Entries{{"groups", "1"},
                                              {"use_bias", a.text("use_bias")},
                                              {"activation", a.text("activation")}},
                                      kind);
  };
}

KernelFactory pool1d(DeviceKind kind) {
  return [kind](const Attributes& a) {
    return std::make_unique<Window1d>(
        "pool2d", a,
        Entries{{"kind", a.text("kind")}, {"count_include_pad", a.text("count_include_pad")}},
        kind);
  };
}

const RegisterKernel conv1d_on_cpu("conv1d", conv1d(DeviceKind::cpu));
const RegisterKernel pool1d_on_cpu("pool1d", pool1d(DeviceKind::cpu));
const RegisterKernel conv1d_on_gpu("conv1d", conv1d(DeviceKind::gpu), DeviceKind::gpu);
const RegisterKernel pool1d_on_gpu("pool1d", pool1d(DeviceKind::gpu), DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion
