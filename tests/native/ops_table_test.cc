// The gradient of a table, row by row, against a sum over all tokens.
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "gpu/table_gradient.h"
#include "gpu/view.h"
#include "ops/table_gradient.h"
#include "ops_harness.h"

using namespace flexlegion;
using namespace flexlegion::testing;

namespace {

constexpr std::int64_t kRows = 9, kColumns = 5;
constexpr TableRows kWhole{0, kRows, kRows};

// Tokens (2, 3) of which some repeat, and the gradient of columns 1 to 4 of what they read.
struct LookedUp {
  Array<std::int32_t> tokens{7, 2, 7, 0, 2, 8};
  Tensor gradient = Tensor::random({2, 3, kColumns}, 3);
  Rect columns = gradient.whole();
  std::int64_t padding = kNoPadding;

  LookedUp() {
    columns.lo[2] = 1;
    columns.hi[2] = 4;
  }

  Lookup lookup() {
    return {dense_view(tokens.data(), Rect::of_shape({2, 3}), {2, 3}), gradient.view(columns),
            padding};
  }

  void add_to(Tensor& sum) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == padding) continue;
      for (std::int64_t c = 1; c < 4; ++c) {
        sum.at(std::int64_t{tokens[i]}, c - 1) +=
            gradient.at(static_cast<std::int64_t>(i / 3), static_cast<std::int64_t>(i % 3), c);
      }
    }
  }
};

}  // namespace

TEST_CASE("a table's gradient sums what was looked up in each row") {
  LookedUp a, b;
  b.tokens = {1, 1, 1, 1, 1, 1};
  a.padding = 2;
  Tensor expected({kRows, 3});
  a.add_to(expected);
  b.add_to(expected);
  for (const bool only_touched : {false, true}) {
    CAPTURE(only_touched);
    Tensor sum({kRows, 3});
    std::vector<std::int64_t> rows;
    for_each_row_block({a.lookup(), b.lookup()}, kWhole, 3, only_touched,
                       [&](std::int64_t lo, std::int64_t hi, const TensorView& gradient) {
                         for (std::int64_t r = lo; r < hi; ++r) rows.push_back(r);
                         add_view(sum.view(gradient.tile), gradient);
                       });
    CHECK(largest_difference(sum, expected) < kTolerance);
    if (only_touched) {
      CHECK(rows == std::vector<std::int64_t>{0, 1, 7, 8});
    } else {
      CHECK(rows.size() == kRows);
    }
  }
}

TEST_CASE("shards of a table's rows have the gradients of their own rows") {
  LookedUp a;
  Tensor expected({kRows, 3});
  a.add_to(expected);
  for (const bool only_touched : {false, true}) {
    Tensor sum({kRows, 3});
    std::vector<std::int64_t> rows;
    for (const TableRows& shard : {TableRows{0, 2, kRows}, {2, 8, kRows}, {8, kRows, kRows}}) {
      for_each_row_block({a.lookup()}, shard, 3, only_touched,
                         [&](std::int64_t lo, std::int64_t hi, const TensorView& gradient) {
                           CHECK(gradient.tile.lo[0] == shard.lo + lo);
                           CHECK(gradient.tile.hi[0] == shard.lo + hi);
                           for (std::int64_t r = lo; r < hi; ++r) rows.push_back(shard.lo + r);
                           add_view(sum.view(gradient.tile), gradient);
                         });
    }
    CHECK(largest_difference(sum, expected) < kTolerance);
    if (only_touched) CHECK(rows == std::vector<std::int64_t>{0, 2, 7, 8});
  }
}

TEST_CASE("a token that is no row of the table is refused") {
  LookedUp a;
  a.tokens[4] = 9;
  const auto nothing = [](std::int64_t, std::int64_t, const TensorView&) {};
  CHECK_THROWS_AS(for_each_row_block({a.lookup()}, kWhole, 3, true, nothing),
                  std::invalid_argument);
  a.tokens[4] = -1;
  CHECK_THROWS_AS(for_each_row_block({a.lookup()}, {0, 4, kRows}, 3, false, nothing),
                  std::invalid_argument);
}

namespace {

constexpr int kSlot = 100;

// The gradient of the rows [lo, hi), of tokens some of which are no rows.
struct TwoLookups {
  LookedUp a, b;
  std::vector<Lookup> both;
  Tensor expected{{kRows, 3}};

  TwoLookups() {
    b.tokens = {1, 7, 1, 1, 8, 1};
    a.padding = 7;  // whose row has the other look-up's gradient
    a.add_to(expected);
    b.add_to(expected);
    a.tokens[1] = -1;
    b.tokens[4] = kRows;
    for (std::int64_t c = 0; c < 3; ++c) {
      expected.at(2, c) -= a.gradient.at(0, 1, c + 1);
      expected.at(8, c) -= b.gradient.at(1, 1, c + 1);
    }
    both = {a.lookup(), b.lookup()};
  }
};

}  // namespace

TEST_CASE("on a GPU: a table's gradient as a whole, and of some of its rows") {
  TwoLookups looked_up;
  Tensor sum({kRows, 3}, 1.0f), blocks({kRows, 3}), expected({kRows, 3}, 1.0f);
  Rect rows = sum.whole();
  rows.lo[0] = 2;
  rows.hi[0] = 8;
  add_view(expected.view(rows), looked_up.expected.view(rows));
  on_device([&] {
    gpu::add_looked_up(looked_up.both, sum.view(rows));
    gpu::for_each_dense_block(looked_up.both, kWhole, 3, kSlot,
                              [&](std::int64_t lo, std::int64_t hi, const TensorView& gradient) {
                                CHECK(gradient.dense());
                                CHECK(gradient.tile.lo[0] == lo);
                                CHECK(gradient.tile.hi[0] == hi);
                                gpu::copy_view(blocks.view(gradient.tile), gradient);
                              });
  });
  CHECK(largest_difference(sum, expected) < kTolerance);
  CHECK(largest_difference(blocks, looked_up.expected) < kTolerance);
}

TEST_CASE("on a GPU: the rows of a table that tokens name are updated alone") {
  TwoLookups looked_up;
  Tensor table = Tensor::random({kRows, 4}, 5), updated = table;
  double squares = 0, expected = 0;
  for (const auto& [lo, hi] : {std::pair{0, 2}, {2, 9}}) {
    Rect shard = table.whole();
    shard.lo[0] = lo;
    shard.hi = {hi, 3};
    Tensor sums({12, 3});
    on_device([&] {
      const TensorView value = updated.view(shard);
      const gpu::TouchedRows touched(looked_up.both, TableRows::of(value), 3, kSlot);
      const TensorView rows = touched.gathered(value, kSlot + 3);
      gpu::copy_view(sums.view(sums.whole()), touched.gradient());
      gpu::add_view(rows, touched.gradient());
      touched.scatter(rows, value);
    });
    for (const float x : sums.data) squares += static_cast<double>(x) * x;
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < 3; ++c) table.at(r, c) += looked_up.expected.at(r, c);
  }
  CHECK(largest_difference(updated, table) < kTolerance);
  for (const float x : looked_up.expected.data) expected += static_cast<double>(x) * x;
  CHECK(squares == doctest::Approx(expected).epsilon(1e-5));  // as for a gradient's norm
}
