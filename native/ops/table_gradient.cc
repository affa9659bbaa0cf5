// The gradient of a table, row by row: what several tokens gave to one row is summed, and rows that
// nothing gave to are zeros or left out.
//
// All pairs (row, gradient) are listed and sorted by row. The sort is stable, so a row's gradients
// are added in the order of lookups, samples and steps, and the sum's bits do not depend on how the
// table is split. Then rows are summed into a small block of scratch memory, which the caller uses
// while it is in the cache. Costs: t log t for t tokens, and one pass over their gradients; for an
// optimizer that must touch all rows, one pass over the table.
#include "ops/table_gradient.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {
namespace {

constexpr int kRowsSlot = 0;
constexpr std::int64_t kBlockElements = 1 << 15;  // that stay in the cache

// A row of the shard, and the gradient by one of the tokens that name it.
using Touched = std::pair<std::int64_t, const float*>;

FLEXLEGION_SIMD void add_row(float* sum, const float* row, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += row[i];
}

// All tokens that name the shard's rows, by row, in their order within a row.
std::vector<Touched> touched_rows(const std::vector<Lookup>& lookups, const TableRows& rows) {
  std::vector<Touched> touched;
  for (const Lookup& lookup : lookups) {
    const TensorView &tokens = lookup.tokens, &gradient = lookup.gradient;
    const int last = gradient.rank() - 1;
    if (gradient.extent(last) > 1 && gradient.stride[last] != 1) {
      throw std::invalid_argument("a table's gradient whose rows are not contiguous");
    }
    for_each_index<2>({&tokens, &gradient}, tokens.rank(), [&](const Offsets<2>& at) {
      const std::int64_t token = tokens.i32()[at[0]];
      if (token < 0 || token >= rows.all) {
        throw std::invalid_argument("token " + std::to_string(token) + " is no row of a table of " +
                                    std::to_string(rows.all) + " rows");
      }
      if (token < rows.lo || token >= rows.hi || token == lookup.padding) return;
      touched.emplace_back(token - rows.lo, gradient.f32() + at[1]);
    });
  }
  std::stable_sort(touched.begin(), touched.end(),
                   [](const Touched& a, const Touched& b) { return a.first < b.first; });
  return touched;
}

}  // namespace

void for_each_row_block(const std::vector<Lookup>& lookups, const TableRows& rows,
                        std::int64_t columns, bool only_touched, const RowBlock& body) {
  const std::vector<Touched> touched = touched_rows(lookups, rows);
  // If only touched rows count, blocks are of one row each, and `lo` jumps from one to the next.
  const std::int64_t block = only_touched ? 1 : std::max<std::int64_t>(1, kBlockElements / columns);
  auto next = touched.begin();
  for (std::int64_t lo = 0; lo < rows.count(); lo += block) {
    if (only_touched) {
      if (next == touched.end()) return;
      lo = next->first;
    }
    const std::int64_t hi = std::min(rows.count(), lo + block);
    Rect tile = Rect::of_shape({hi - lo, columns});
    tile.lo[0] += rows.lo + lo;
    tile.hi[0] += rows.lo + lo;
    float* const sums = scratch(kRowsSlot, tile.volume());
    std::fill_n(sums, tile.volume(), 0.0f);
    for (; next != touched.end() && next->first < hi; ++next) {
      add_row(sums + (next->first - lo) * columns, next->second, columns);
    }
    body(lo, hi, dense_view(sums, tile, {rows.all, columns}));
  }
}

}  // namespace flexlegion
