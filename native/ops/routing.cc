// top_k and capacity: they keep some of their input's values, and make the others 0. The gradients
// of the same ones are kept.
//
// top_k works within a row: a value is kept if fewer than k rank before it. Counting these for each
// value takes n^2 comparisons for n experts, which are few. capacity works within a column, over
// all rows of the batch in their order, and so counts how many each column has kept; its task has
// all rows.
//
// Backward recomputes which values were kept from the input: cheaper than saving a mask.
#include <vector>

#include "ops/kernel.h"
#include "ops/strided_loop.h"
#include "ops/top_k.h"

namespace flexlegion {
namespace {

// to = from, or to += from, in the columns that `kept`(row of x, column) says, else 0. The rows
// come in their order, each row's columns too.
template <typename Kept>
void keep(const TensorView& x, const TensorView& from, const TensorView& to, bool adds,
          Kept&& kept) {
  if (x.tile.empty()) return;
  const std::int64_t n = x.extent(x.rank() - 1);
  for_each_row<3>({&x, &from, &to}, [&](const Offsets<3>& at) {
    const float* const row = x.f32() + at[0];
    for (std::int64_t c = 0; c < n; ++c) {
      const float value = kept(row, c) ? from.f32()[at[1] + c] : 0.0f;
      float& result = to.f32()[at[2] + c];
      result = adds ? result + value : value;
    }
  });
}

class TopK : public Kernel {
 public:
  explicit TopK(const Attributes& attributes) : k_(attributes.integer("k")) {}
  bool accumulates() const override { return true; }
  void forward(KernelTask& task) override {
    keep_largest(task.inputs[0], task.inputs[0], task.outputs[0], false);
  }
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    keep_largest(task.inputs[0], task.output_grads[0], task.input_grads[0],
                 task.adds_to_input_grad(0));
  }

 private:
  void keep_largest(const TensorView& x, const TensorView& from, const TensorView& to,
                    bool adds) const {
    const std::int64_t n = x.extent(x.rank() - 1);
    keep(x, from, to, adds,
         [&](const float* row, std::int64_t c) { return among_largest(row, 1, n, c, k_); });
  }

  std::int64_t k_;
};

class Capacity : public Kernel {
 public:
  explicit Capacity(const Attributes& attributes) : most_(attributes.integer("most")) {}
  bool accumulates() const override { return true; }
  void forward(KernelTask& task) override {
    keep_first(task.inputs[0], task.inputs[0], task.outputs[0], false);
  }
  void backward(KernelTask& task) override {
    if (!task.wants_input_grad(0)) return;
    keep_first(task.inputs[0], task.output_grads[0], task.input_grads[0],
               task.adds_to_input_grad(0));
  }

 private:
  void keep_first(const TensorView& x, const TensorView& from, const TensorView& to,
                  bool adds) const {
    std::vector<std::int64_t> taken(static_cast<std::size_t>(x.extent(x.rank() - 1)));
    keep(x, from, to, adds, [&](const float* row, std::int64_t c) {
      return row[c] != 0 && taken[static_cast<std::size_t>(c)]++ < most_;
    });
  }

  std::int64_t most_;
};

const RegisterKernel top_k("top_k", [](const Attributes& a) { return std::make_unique<TopK>(a); });
const RegisterKernel capacity("capacity",
                              [](const Attributes& a) { return std::make_unique<Capacity>(a); });

}  // namespace
}  // namespace flexlegion
