// Copies, as ops/moves.h describes them.
//
// Which element goes where is decided by ops/moves.h, as a copy between two views; here such a copy
// is one launch (view.cu). Copies keep bits, so tiles of any type are taken as they are; a gradient
// that adds goes through floats.
#include "gpu/view.h"
#include "ops/moves.h"

namespace flexlegion::gpu {
namespace {

// Neighbouring threads write neighbouring elements; what they read may be apart.
struct Mover {
  static bool takes(DataType) { return true; }
  void move(const TensorView& from, const TensorView& to, bool adds) const {
    gpu::write_or_add_view(to, from, adds);
  }
};

// What the operators of ops/moves.h need of a kind of device.
struct Gpu {
  using Input = DenseInput;
  using Output = DenseOutput;
  using Mover = gpu::Mover;
  static void write(const TensorView& to, const TensorView& from, bool adds) {
    gpu::write_or_add_view(to, from, adds);
  }
  static void zero(const TensorView& view) { gpu::zero_view(view); }
};

// Both passes go through what they write in its own order, and see what they read through permuted
// strides: forward by the permutation, backward by its inverse. So threads beside each other write
// beside each other.
class Transpose : public Kernel {
 public:
  explicit Transpose(const Attributes& attributes)
      : permutation_(permutation_of(attributes)), inverse_(permutation_.size()) {
    for (std::size_t d = 0; d < permutation_.size(); ++d) {
      inverse_[static_cast<std::size_t>(permutation_[d])] = static_cast<int>(d);
    }
  }

  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    Gpu::write(task.outputs[0], permuted(task.inputs[0], permutation_), false);
  }

  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    Gpu::write(task.input_grads[0], permuted(task.output_grads[0], inverse_),
               task.adds_to_input_grad(0));
  }

 private:
  std::vector<int> permutation_, inverse_;
};

const RegisterKernel flatten(
    "flatten", [](const Attributes&) { return std::make_unique<Reshape<Gpu>>(); }, DeviceKind::gpu);
const RegisterKernel reshape(
    "reshape", [](const Attributes&) { return std::make_unique<Reshape<Gpu>>(); }, DeviceKind::gpu);
const RegisterKernel rearrange(
    "rearrange", [](const Attributes& a) { return std::make_unique<Rearrange<Gpu>>(a); },
    DeviceKind::gpu);
const RegisterKernel slice(
    "slice", [](const Attributes& a) { return std::make_unique<Slice<Gpu>>(a); }, DeviceKind::gpu);
const RegisterKernel concat(
    "concat", [](const Attributes& a) { return std::make_unique<Concat<Gpu>>(a); },
    DeviceKind::gpu);
const RegisterKernel pad(
    "pad", [](const Attributes& a) { return std::make_unique<Pad<Gpu>>(a); }, DeviceKind::gpu);
const RegisterKernel roll(
    "roll", [](const Attributes& a) { return std::make_unique<Roll<Gpu>>(a); }, DeviceKind::gpu);
const RegisterKernel transpose(
    "transpose", [](const Attributes& a) { return std::make_unique<Transpose>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
