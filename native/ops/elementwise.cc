// relu, sigmoid, tanh (their gradients follow from the output) and gelu (from the input).
//
// The functions themselves are oneDNN's, whose vectorised exp and erf are much faster than the C
// library's; relu is a loop of our own, which needs no packing of strided tiles.
//
// oneDNN takes dense memory, so a strided tile is packed, and a result is unpacked, through scratch
// memory. A primitive is prepared once for each number of elements and type.
#include "ops/floats.h"
#include "ops/onednn_support.h"
#include "ops/simd.h"

namespace flexlegion {
namespace {

using dnnl::algorithm;
using dnnl::memory;

// Applies oneDNN's `function`, or its derivative, to dense memory, of floats or bfloat16. A key
// holds the pass, the number of elements and the type: the shape does not matter to an element-wise
// function.
class OneDnnEltwise {
 public:
  explicit OneDnnEltwise(algorithm function) : function_(function) {}

  void forward(const TensorView& x, const TensorView& y) {
    const DataType type = y.type;
    const DenseInput in(x, 0, type);
    const DenseOutput out(y, 1, false, type);
    const memory::desc elements = desc_of(x.volume(), type);
    const onednn::Prepared& primitive = cache_.get({0, x.volume(), type == DataType::float32}, [&] {
      return forward_desc(elements, dnnl::prop_kind::forward);
    });
    primitive.execute({{DNNL_ARG_SRC, in.memory()}, {DNNL_ARG_DST, out.memory()}});
    out.commit();
  }

  // oneDNN's derivative needs x. Those of relu, sigmoid and tanh are found from the output instead,
  // which is saved anyway (activation_backward).
  void backward(const TensorView& x, const TensorView& dy, const TensorView& dx, bool adds) {
    const DataType type = dx.type;
    const DenseInput in(x, 0, type), grad(dy, 1, type);
    const DenseOutput out(dx, 2, adds, type);
    const memory::desc elements = desc_of(x.volume(), type);
    const onednn::Prepared& primitive = cache_.get({1, x.volume(), type == DataType::float32}, [&] {
      return dnnl::eltwise_backward::primitive_desc(
          onednn::engine(), function_, elements, elements, elements, 0.0f, 0.0f,
          forward_desc(elements, dnnl::prop_kind::forward_training), onednn::attributes());
    });
    primitive.execute({{DNNL_ARG_SRC, in.memory()},
                       {DNNL_ARG_DIFF_DST, grad.memory()},
                       {DNNL_ARG_DIFF_SRC, out.memory()}});
    out.commit();
  }

 private:
  static memory::desc desc_of(std::int64_t elements, DataType type) {
    return onednn::desc(type, {elements}, memory::format_tag::a);
  }
  dnnl::eltwise_forward::primitive_desc forward_desc(const memory::desc& elements,
                                                     dnnl::prop_kind kind) const {
    return {onednn::engine(), kind, function_, elements,
            elements,         0.0f, 0.0f,      onednn::attributes()};
  }

  algorithm function_;
  onednn::Cache cache_;
};

FLEXLEGION_SIMD void relu(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = relu_of(x[i]);
}

class ElementWise : public Kernel {
 public:
  bool accumulates() const override { return true; }
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0) || task.input_grads[0].tile.empty()) return;
    differentiate(task, task.adds_to_input_grad(0));
  }

 private:
  virtual void differentiate(const KernelTask& task, bool adds) = 0;
};

// A loop of our own: strided tiles need no packing, and any type is widened on the way.
class Relu : public ElementWise {
 public:
  bool takes(DataType) const override { return true; }
  void forward(KernelTask& task) override {
    const TensorView &x = task.inputs[0], &y = task.outputs[0];
    share_floats<1, 0, 2>({&y, &x},
                          [](const Pointers<2>& at, std::int64_t n) { relu(at[1], at[0], n); });
  }

 private:
  void differentiate(const KernelTask& task, bool adds) override {
    activation_backward(Activation::relu, task.output_grads[0], task.outputs[0],
                        task.input_grads[0], adds);
  }
};

// sigmoid and tanh.
class Squashing : public ElementWise {
 public:
  Squashing(algorithm function, Activation activation)
      : function_(function), activation_(activation) {}
  bool takes(DataType type) const override { return type == DataType::bfloat16; }
  void forward(KernelTask& task) override {
    if (!task.outputs[0].tile.empty()) function_.forward(task.inputs[0], task.outputs[0]);
  }

 private:
  void differentiate(const KernelTask& task, bool adds) override {
    activation_backward(activation_, task.output_grads[0], task.outputs[0], task.input_grads[0],
                        adds);
  }

  OneDnnEltwise function_;
  Activation activation_;
};

// gelu(x) = x Phi(x), with Phi by the error function as PyTorch's default has it. Its gradient
// needs x, for two values of x can have the same gelu.
class Gelu : public ElementWise {
 public:
  bool takes(DataType type) const override { return type == DataType::bfloat16; }
  void forward(KernelTask& task) override {
    if (!task.outputs[0].tile.empty()) function_.forward(task.inputs[0], task.outputs[0]);
  }

 private:
  void differentiate(const KernelTask& task, bool adds) override {
    function_.backward(task.inputs[0], task.output_grads[0], task.input_grads[0], adds);
  }

  OneDnnEltwise function_{algorithm::eltwise_gelu_erf};
};

const RegisterKernel registered_relu("relu",
                                     [](const Attributes&) { return std::make_unique<Relu>(); });
const RegisterKernel registered_sigmoid("sigmoid", [](const Attributes&) {
  return std::make_unique<Squashing>(algorithm::eltwise_logistic, Activation::sigmoid);
});
const RegisterKernel registered_tanh("tanh", [](const Attributes&) {
  return std::make_unique<Squashing>(algorithm::eltwise_tanh, Activation::tanh);
});
const RegisterKernel registered_gelu("gelu",
                                     [](const Attributes&) { return std::make_unique<Gelu>(); });

}  // namespace
}  // namespace flexlegion
