// given_weights: an operator whose weights are computed by others, as merged adapters are.
//
// Weights come as inputs behind the operator's own, each with a first dimension of extent 1, where
// other tensors have samples. Views without that dimension are all that the operator's kernel
// needs: no element is copied. The same class serves both kinds of devices.
#include "ops/kernel.h"

namespace flexlegion {
namespace {

class GivenWeights : public Kernel {
 public:
  GivenWeights(const Attributes& attributes, DeviceKind kind)
      : own_(static_cast<std::size_t>(attributes.integer("own_inputs"))),
        kernel_(make_kernel(attributes.text("operator"), attributes, kind)) {}

  bool accumulates() const override { return kernel_->accumulates(); }
  bool shares_out() const override { return kernel_->shares_out(); }
  bool repeats() const override { return kernel_->repeats(); }

  void forward(KernelTask& task) override {
    KernelTask inner = with_weights(task);
    kernel_->forward(inner);
  }

  void backward(KernelTask& task) override {
    KernelTask inner = with_weights(task);
    kernel_->backward(inner);
  }

 private:
  // The same task, with weights in their place.
  KernelTask with_weights(const KernelTask& task) const {
    KernelTask inner = task;
    move(inner.inputs, inner.weights);
    move(inner.input_grads, inner.weight_grads);
    for (auto* views : {&inner.weights, &inner.weight_grads}) {
      for (TensorView& view : *views) view = subview(view, 0);
    }
    move(inner.adds_input_grad, inner.adds_weight_grad);
    return inner;
  }

  // What stands behind the operator's own inputs; lists may be short.
  template <typename List>
  void move(List& from, List& to) const {
    if (from.size() <= own_) return;
    to.assign(from.begin() + static_cast<std::ptrdiff_t>(own_), from.end());
    from.resize(own_);
  }

  std::size_t own_;
  std::unique_ptr<Kernel> kernel_;
};

KernelFactory given_weights(DeviceKind kind) {
  return [kind](const Attributes& a) { return std::make_unique<GivenWeights>(a, kind); };
}

const RegisterKernel on_cpu("given_weights", given_weights(DeviceKind::cpu));
const RegisterKernel on_gpu("given_weights", given_weights(DeviceKind::gpu), DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion
