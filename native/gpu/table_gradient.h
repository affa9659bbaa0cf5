// The gradient of a table by what was looked up in it (ops/table_gradient.h), on the GPU. A token
// that is no row of the table has no gradient there.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/table_gradient.h"

namespace flexlegion::gpu {

// Adds what was looked up to some rows of a table's gradient, [tile.lo[0], tile.hi[0]) of all; in
// no particular order.
void add_looked_up(const std::vector<Lookup>& lookups, const TensorView& rows);

// Calls `body` for blocks of all of a shard's rows, in their order. Takes scratch slot `slot`.
void for_each_dense_block(const std::vector<Lookup>& lookups, const TableRows& rows,
                          std::int64_t columns, int slot, const RowBlock& body);

// The shard's rows that tokens name, one a token. How many differ is known on the device alone: of
// tokens that name the same row the first has all of its gradient, the others, and those that name
// no row of the shard, have zeros. For an optimizer that is lazy, and states as for the value:
//   const TouchedRows touched(lookups, TableRows::of(value), value.extent(1), slot);
//   const TensorView rows = touched.gathered(value, slot + 3);
//   kernel.update(rows, touched.gradient(), states, run);
//   touched.scatter(rows, value);
class TouchedRows {
 public:
  // Takes scratch slots `slot` to `slot` + 2.
  TouchedRows(const std::vector<Lookup>& lookups, const TableRows& rows, std::int64_t columns,
              int slot);

  // (token, column), dense.
  const TensorView& gradient() const { return gradient_; }

  // The table's rows in the same order, those without a gradient as zeros; in scratch slot `slot`.
  TensorView gathered(const TensorView& table, int slot) const;
  // The counterpart: writes the rows that have a gradient back.
  void scatter(const TensorView& rows, const TensorView& table) const;

 private:
  const std::int32_t* tokens_ = nullptr;  // of all lookups, on the device
  std::int64_t begin_ = 0;                // the shard's first row
  const std::int32_t* first_ = nullptr;   // the first token that names the same row; -1: no row
  TensorView gradient_;
};

}  // namespace flexlegion::gpu
