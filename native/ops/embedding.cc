// embedding: output(n, ..., :) = table(tokens(n, ...), :), of some of the table's columns, and of
// some of its rows: tokens that name others read zeros, which the sum over all parts leaves out.
//
// Forwards is a copy of a row for each token. Tasks that have some of the table's rows write zeros
// for other tokens; the sum of their partial values, of which one is the row, is then exact.
//
// Backwards is the gradient as a whole tensor, only where something needs it dense. Otherwise the
// update reads the tokens and the output's gradients themselves (table_gradient.h), and a table of
// millions of rows is never written for the few that a batch touches.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/kernel.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"
#include "ops/table_gradient.h"

namespace flexlegion {
namespace {

void require_rows(const TensorView& view) {
  if (!view.dense_from(view.rank() - 1)) {
    throw std::invalid_argument("a tile whose rows are not contiguous");
  }
}

constexpr std::int64_t kOtherRow = -1;

// Calls body(table row, output row), both as offsets, for every token; kOtherRow for one whose row
// is not in the tile.
template <typename Body>
void for_each_token(const TensorView& tokens, const TensorView& table, const TensorView& output,
                    Body&& body) {
  require_rows(table);
  require_rows(output);
  const std::int64_t vocabulary = table.shape[0], first = table.tile.lo[0];
  for_each_index<2>({&tokens, &output}, tokens.rank(), [&](const Offsets<2>& at) {
    const std::int64_t token = tokens.i32()[at[0]];
    if (token < 0 || token >= vocabulary) {
      // A token outside of the whole table is the user's mistake; one outside of this tile is
      // another task's.
      throw std::invalid_argument("token " + std::to_string(token) + " is not a row of 0 to " +
                                  std::to_string(vocabulary - 1));
    }
    const bool here = token >= first && token < table.tile.hi[0];
    body(here ? (token - first) * table.stride[0] : kOtherRow, at[1]);
  });
}

FLEXLEGION_SIMD void add_row(const float* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// The table's gradient as a whole; the padding token's row has none.
void dense_gradient(KernelTask& task, std::int64_t padding) {
  const TensorView &dtable = task.weight_grads[0], &dy = task.output_grads[0];
  if (!dtable.present()) return;
  if (task.adds_weight_grad.empty() || !task.adds_weight_grad[0]) zero_view(dtable);
  if (dy.tile.empty()) return;
  const std::int64_t no_gradient =
      padding < dtable.tile.lo[0] ? kOtherRow : (padding - dtable.tile.lo[0]) * dtable.stride[0];
  for_each_token(task.inputs[0], dtable, dy, [&](std::int64_t row, std::int64_t at) {
    if (row != kOtherRow && row != no_gradient)
      add_row(dy.f32() + at, dtable.f32() + row, dy.extent(dy.rank() - 1));
  });
}

class Embedding : public Kernel {
 public:
  explicit Embedding(const Attributes& attributes)
      : padding_(attributes.integer("padding", kNoPadding)) {}

  void forward(KernelTask& task) override {
    const TensorView &table = task.weights[0], &y = task.outputs[0];
    if (y.tile.empty()) return;
    const std::int64_t units = y.extent(y.rank() - 1);
    for_each_token(task.inputs[0], table, y, [&](std::int64_t row, std::int64_t at) {
      if (row == kOtherRow) {
        std::fill_n(y.f32() + at, units, 0.0f);
      } else {
        std::copy_n(table.f32() + row, units, y.f32() + at);
      }
    });
  }

  void backward(KernelTask& task) override { dense_gradient(task, padding_); }

  bool accumulates() const override { return true; }

 private:
  std::int64_t padding_;
};

const RegisterKernel registered("embedding",
                                [](const Attributes& a) { return std::make_unique<Embedding>(a); });

}  // namespace
}  // namespace flexlegion
