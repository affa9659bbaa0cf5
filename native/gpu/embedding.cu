// embedding: output(n, ..., :) = table(tokens(n, ...), :), of some of the table's columns and rows;
// zeros for a token whose row is not among them.
//
// Forwards, a thread copies 16 or 32 bytes of a row; threads of the same row read the same token.
// Backwards, gradients are added atomically, in no particular order: rows that many tokens name
// would otherwise need a sort. A token that is no row of the whole table reads zeros here, for a
// kernel cannot throw.
#include "gpu/rows.h"
#include "gpu/table_gradient.h"
#include "ops/kernel.h"

namespace flexlegion::gpu {
namespace {

class Embedding : public Kernel {
 public:
  explicit Embedding(const Attributes& attributes)
      : padding_(attributes.integer("padding", kNoPadding)) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }

  void forward(KernelTask& task) override {
    const Strided tokens(task.inputs[0]), table(task.weights[0]);
    const std::int64_t units = task.outputs[0].extent(task.outputs[0].rank() - 1);
    const std::int64_t first = task.weights[0].tile.lo[0];
    const Rows rows(task.outputs[0]), of(task.weights[0]);
    for_each_in_rows(task.outputs[0].volume() / std::max<std::int64_t>(1, units), units,
                     all_aligned({rows, of}),
                     [=] FL_BODY(auto width, std::int64_t i, std::int64_t c) {
                       const std::int64_t row = tokens.integer(i) - first;
                       const bool is_here = row >= 0 && row < table.extent[0];
                       Lanes<width.value> values{};
                       if (is_here) values = of.load(width, row, c);
                       rows.put(i, c, values);
                     });
  }

  void backward(KernelTask& task) override {
    if (!task.wants_weight_grad(0)) return;
    if (!task.adds_to_weight_grad(0)) gpu::zero_view(task.weight_grads[0]);
    add_looked_up({{task.inputs[0], task.output_grads[0], padding_}}, task.weight_grads[0]);
  }

 private:
  std::int64_t padding_;
};

const RegisterKernel registered(
    "embedding", [](const Attributes& a) { return std::make_unique<Embedding>(a); },
    DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
