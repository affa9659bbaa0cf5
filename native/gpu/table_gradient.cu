// The gradient of a table whose rows tokens look up, summed on the device without a tensor of the
// table's size.
//
// Two ways, by what the optimizer needs:
// - All rows (states that decay, momentum): blocks of rows, 64 MiB at a time, start as zeros; for
//   each block all tokens are gone through, and those in it add their gradients atomically. Costs:
//   a pass over the table, and one over the tokens' gradients for each block.
// - Touched rows alone (plain SGD, lazy Adam): one row a token. The first token of each row
//   collects the gradients of the others, so its row is updated once. To find it, every token is
//   compared with all before it: t^2 / 2 comparisons, but no sort, and no memory for each row of
//   the table. The rows, and those of states, are gathered, updated as dense matrices, and those of
//   first tokens are written back.
//
// How many rows differ is never known to the host, so it never waits.
#include "gpu/table_gradient.h"

#include <algorithm>

#include "gpu/view.h"

namespace flexlegion::gpu {

namespace {

constexpr std::int64_t kBlockElements = 1 << 24;  // of for_each_dense_block(): 64 MiB

std::int32_t* scratch_integers(int slot, std::int64_t elements) {
  return reinterpret_cast<std::int32_t*>(scratch(slot, elements));
}

TensorView matrix_view(void* data, std::int64_t rows, std::int64_t columns) {
  return dense_view(data, Rect::of_shape({rows, columns}), {rows, columns});
}

std::int64_t tokens_in(const std::vector<Lookup>& lookups) {
  std::int64_t count = 0;
  for (const Lookup& lookup : lookups) count += lookup.tokens.volume();
  return count;
}

// first[k] = the first of the tokens that equal token k. Each is compared with all before it: that
// takes no memory a row of the table, and no sorting.
void find_first(const std::int32_t* tokens, std::int64_t count, const TableRows& rows,
                std::int32_t* first) {
  for_each_team(count, count, [=] FL_BODY(const Team& team, std::int64_t k) {
    const std::int32_t token = tokens[k];
    std::int64_t found = k;
    for (std::int64_t j = team.rank; j < found; j += team.size) {
      if (tokens[j] == token) found = j;
    }
    const double earliest = -team.maximum(-static_cast<double>(found));
    if (team.rank != 0) return;
    const bool is_here = token >= rows.lo && token < rows.hi;
    first[k] = is_here ? static_cast<std::int32_t>(earliest) : -1;
  });
}

// sums(first[k]) += the gradient of token k, of the lookup whose first token is number `begin`.
void add_to_first(const Lookup& lookup, std::int64_t begin, const std::int32_t* first,
                  const TensorView& sums) {
  const Strided gradient(lookup.gradient);
  float* const data = sums.f32();
  const std::int64_t columns = sums.extent(1);
  for_each(lookup.gradient.volume(), [=] FL_BODY(std::int64_t i) {
    const std::int32_t row = first[begin + i / columns];
    if (row >= 0) add_atomically(&data[row * columns + i % columns], gradient[i]);
  });
}

// Of a look-up's tokens, makes the padding tokens no row of any shard.
void leave_out(std::int32_t* tokens, const Lookup& lookup) {
  const auto padding = static_cast<std::int32_t>(lookup.padding);
  for_each(lookup.tokens.volume(), [=] FL_BODY(std::int64_t i) {
    if (tokens[i] == padding) tokens[i] = static_cast<std::int32_t>(kNoPadding);
  });
}

}  // namespace

void add_looked_up(const std::vector<Lookup>& lookups, const TensorView& rows) {
  float* const table = rows.f32();
  const std::int64_t begin = rows.tile.lo[0], count = rows.extent(0), columns = rows.extent(1);
  const std::int64_t row_step = rows.stride[0], step = rows.stride[1];
  for (const Lookup& lookup : lookups) {
    const Strided tokens(lookup.tokens), gradient(lookup.gradient);
    const std::int64_t no_gradient = lookup.padding - begin;
    for_each(lookup.gradient.volume(), [=] FL_BODY(std::int64_t i) {
      const std::int64_t row = tokens.integer(i / columns) - begin;
      if (row < 0 || row >= count || row == no_gradient) return;
      add_atomically(&table[row * row_step + i % columns * step], gradient[i]);
    });
  }
}

void for_each_dense_block(const std::vector<Lookup>& lookups, const TableRows& rows,
                          std::int64_t columns, int slot, const RowBlock& body) {
  const std::int64_t block =
      std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, columns));
  for (std::int64_t lo = 0; lo < rows.count(); lo += block) {
    const std::int64_t hi = std::min(rows.count(), lo + block);
    Rect tile = Rect::of_shape({rows.lo + hi, columns});
    tile.lo[0] = rows.lo + lo;
    const TensorView sums = dense_view(scratch(slot, tile.volume()), tile, {rows.all, columns});
    gpu::zero_view(sums);
    add_looked_up(lookups, sums);
    body(lo, hi, sums);
  }
}

TouchedRows::TouchedRows(const std::vector<Lookup>& lookups, const TableRows& rows,
                         std::int64_t columns, int slot)
    : begin_(rows.lo) {
  const std::int64_t count = tokens_in(lookups);
  std::int32_t* const tokens = scratch_integers(slot, count);
  std::int32_t* const first = scratch_integers(slot + 1, count);
  gradient_ = matrix_view(scratch(slot + 2, count * columns), count, columns);
  tokens_ = tokens;
  first_ = first;
  std::int64_t begin = 0;
  for (const Lookup& lookup : lookups) {
    gpu::copy_view(dense_view(tokens + begin, lookup.tokens.tile, lookup.tokens.shape),
                   lookup.tokens);
    if (lookup.padding != kNoPadding) leave_out(tokens + begin, lookup);
    begin += lookup.tokens.volume();
  }
  find_first(tokens, count, rows, first);
  gpu::zero_view(gradient_);
  begin = 0;
  for (const Lookup& lookup : lookups) {
    add_to_first(lookup, begin, first, gradient_);
    begin += lookup.tokens.volume();
  }
}

TensorView TouchedRows::gathered(const TensorView& table, int slot) const {
  const TensorView rows =
      matrix_view(scratch(slot, gradient_.volume()), gradient_.extent(0), gradient_.extent(1));
  const Strided from(table);
  float* const to = rows.f32();
  const std::int64_t columns = rows.extent(1);
  for_each(
      rows.volume(), [=, tokens = tokens_, begin = begin_, first = first_] FL_BODY(std::int64_t i) {
        const std::int64_t k = i / columns;
        to[i] = first[k] == k ? from.row(tokens[k] - begin)[i % columns * from.stride[1]] : 0.0f;
      });
  return rows;
}

void TouchedRows::scatter(const TensorView& rows, const TensorView& table) const {
  const Strided to(table);
  const float* const from = rows.f32();
  const std::int64_t columns = rows.extent(1);
  for_each(rows.volume(),
           [=, tokens = tokens_, begin = begin_, first = first_] FL_BODY(std::int64_t i) {
             const std::int64_t k = i / columns;
             if (first[k] == k) to.row(tokens[k] - begin)[i % columns * to.stride[1]] = from[i];
           });
}

}  // namespace flexlegion::gpu
