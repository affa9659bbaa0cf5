// position_embedding: output(n, t, c) = input(n, t, c) + table(t, c).
//
// The table's gradient sums dy over the samples: a table of samples by elements, down whose columns
// is added (column_sums.h).
#include "gpu/column_sums.h"
#include "gpu/view.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

// The table's tile as one of `batch`'s extents: the same for every sample.
TensorView repeated(const TensorView& table, const TensorView& batch) {
  TensorView view = batch;
  view.data = table.data;
  view.type = table.type;
  view.stride = {0, table.stride[0], table.stride[1]};
  return view;
}

class PositionEmbedding : public Kernel {
 public:
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const TensorView& y = task.outputs[0];
    const TensorView table = repeated(task.weights[0], y);
    const Tiles<3> tiles({&task.inputs[0], &table, &y});
    for_each(y.volume(), [=] FL_BODY(std::int64_t i) {
      const auto e = tiles(i);
      e[2] = e[0] + e[1];
    });
  }

  void backward(KernelTask& task) override {
    const TensorView& grad = task.output_grads[0];
    if (task.wants_input_grad(0)) {
      gpu::write_or_add_view(task.input_grads[0], grad, task.adds_to_input_grad(0));
    }
    if (!task.wants_weight_grad(0)) return;
    const Strided dy(grad), dtable(task.weight_grads[0]);
    const std::int64_t columns = task.weight_grads[0].volume();
    const bool adds = task.adds_to_weight_grad(0);
    // One column an element of the table, one row a sample.
    sum_columns<1>(
        grad.extent(0), columns, 0,
        [=] FL_BODY(std::int64_t n, std::int64_t c) { return Sums<1>{{dy[n * columns + c]}}; },
        [=] FL_BODY(std::int64_t c, const Sums<1>& total) {
          put(dtable[c], static_cast<float>(total.of[0]), adds);
        });
  }
};

const RegisterKernel registered(
    "position_embedding", [](const Attributes&) { return std::make_unique<PositionEmbedding>(); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
