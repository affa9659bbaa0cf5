// The gradient of a table by what was looked up in it (plan.h): zero but in the rows that tokens
// name, and never written down as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "ops/tensor_view.h"

namespace flexlegion {

// The attribute "padding" of an embedding all of whose tokens train their rows.
constexpr std::int64_t kNoPadding = -1;

// Tokens (sample, ...), and the gradient of the rows that were read for them (sample, ..., column),
// in the columns of the table's shard.
struct Lookup {
  TensorView tokens, gradient;
  std::int64_t padding = kNoPadding;  // a token whose row has no gradient
};

// Instead of a table's number of rows: it does not matter which there are.
constexpr std::int64_t kAnyRow = std::numeric_limits<std::int64_t>::max();

// A shard's rows [lo, hi), of a table that has `all`.
struct TableRows {
  std::int64_t lo = 0, hi = 0, all = kAnyRow;

  static TableRows of(const TensorView& shard) {
    return {shard.tile.lo[0], shard.tile.hi[0], shard.shape[0]};
  }
  std::int64_t count() const { return hi - lo; }
};

// Rows [lo, hi) of a shard's gradient, counted from its first; dense.
using RowBlock = std::function<void(std::int64_t lo, std::int64_t hi, const TensorView& gradient)>;

// Calls `body` for blocks of the shard's rows, in their order; if `only_touched`, for rows that
// tokens name alone, one by one. Gradients of a row add up in the order of `lookups`, of samples
// and of steps. Throws std::invalid_argument for a token that is no row of the table.
void for_each_row_block(const std::vector<Lookup>& lookups, const TableRows& rows,
                        std::int64_t columns, bool only_touched, const RowBlock& body);

}  // namespace flexlegion
