// top_k and capacity: they keep some of their input's values, and make the others 0. The gradients
// of the same ones are kept.
//
// top_k counts, for each value, how many of its row rank before it: n^2 comparisons for n experts,
// which are few, and no sort. capacity has to go through the rows in their order, so there are as
// many threads as columns; the tensor is small beside those of the experts.
#include "gpu/rows.h"
#include "ops/kernel.h"
#include "ops/top_k.h"

namespace flexlegion::gpu {
namespace {

// Of `grads`, the elements that are where the k largest of each row of `values` are. A thread for
// each value.
void keep_largest(std::int64_t k, const TensorView& values, const TensorView& grads,
                  const TensorView& results, bool adds) {
  const Rows x(values), from(grads), to(results);
  const std::int64_t n = values.extent(values.rank() - 1);
  for_each(values.volume(), [=] FL_BODY(std::int64_t i) {
    const std::int64_t row = i / n, c = i % n;
    const bool kept = among_largest(x.outer.data + x.outer.offset_of(row), x.step, n, c, k);
    put(to(row, c), kept ? from(row, c) : 0.0f, adds);
  });
}

// Of `grads`, the elements that are where the first values of each column that are not 0 are, at
// most so many. A thread for each column, which goes through all rows.
void keep_first(std::int64_t most, const TensorView& values, const TensorView& grads,
                const TensorView& results, bool adds) {
  if (values.tile.empty()) return;
  const Rows x(values), from(grads), to(results);
  const std::int64_t columns = values.extent(values.rank() - 1);
  const std::int64_t rows = values.volume() / columns;
  for_each(columns, [=] FL_BODY(std::int64_t c) {
    std::int64_t taken = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool kept = x(row, c) != 0 && taken++ < most;
      put(to(row, c), kept ? from(row, c) : 0.0f, adds);
    }
  });
}

class TopK : public Kernel {
 public:
  explicit TopK(const Attributes& attributes) : k_(attributes.integer("k")) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }
  void forward(KernelTask& task) override {
    keep_largest(k_, task.inputs[0], task.inputs[0], task.outputs[0], false);
  }
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    keep_largest(k_, task.inputs[0], task.output_grads[0], task.input_grads[0],
                 task.adds_to_input_grad(0));
  }

 private:
  std::int64_t k_;
};

class Capacity : public Kernel {
 public:
  explicit Capacity(const Attributes& attributes) : most_(attributes.integer("most")) {}
  bool accumulates() const override { return true; }
  bool takes(DataType) const override { return true; }
  void forward(KernelTask& task) override {
    keep_first(most_, task.inputs[0], task.inputs[0], task.outputs[0], false);
  }
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    keep_first(most_, task.inputs[0], task.output_grads[0], task.input_grads[0],
               task.adds_to_input_grad(0));
  }

 private:
  std::int64_t most_;
};

const RegisterKernel top_k(
    "top_k", [](const Attributes& a) { return std::make_unique<TopK>(a); }, DeviceKind::gpu);
const RegisterKernel capacity(
    "capacity", [](const Attributes& a) { return std::make_unique<Capacity>(a); }, DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
