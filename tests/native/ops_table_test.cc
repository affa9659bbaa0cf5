// The gradient of a table, row by row, against a sum over all tokens.
#include <cmath>
#include <cstdint>
#include <set>
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

namespace {

// Adam's formula in double precision, with its defaults, in one element.
struct AdamElement {
  double w, m, v;

  void step(double g, int t) {
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const double m_hat = m / (1 - std::pow(0.9, t)), v_hat = v / (1 - std::pow(0.999, t));
    w -= 0.05 * m_hat / (std::sqrt(v_hat) + 1e-8);
  }
};

}  // namespace

// Rows 2 to 8 of a table's columns 1 to 3. Row 8 is looked up by a gradient of zeros, so that its
// moments decay; rows that are not looked up, or by padding alone, keep every bit.
TEST_CASE("lazy adam changes the looked-up rows of a table, and their moments, alone") {
  const Attributes attributes(
      {{"beta1", "0.9"}, {"beta2", "0.999"}, {"epsilon", "1e-8"}, {"weight_decay", "0"}});
  const auto kernel = make_update_kernel("lazy-adam", attributes, kTested);
  REQUIRE(kernel->lazy());
  LookedUp a, b;
  b.tokens = {3, 7, 3, 3, 5, 3};
  a.padding = 2;
  for (std::int64_t c = 0; c < kColumns; ++c) a.gradient.at(1, 2, c) = 0;
  const std::set<std::int64_t> looked_up = {3, 5, 7, 8};
  Tensor gradient({kRows, 3});
  a.add_to(gradient);
  b.add_to(gradient);
  Tensor w = Tensor::random({kRows, 5}, 5), m = Tensor::random({kRows, 5}, 6);
  Tensor v({kRows, 5}, 0.25f);
  const Tensor w0 = w, m0 = m, v0 = v;
  Rect shard = w.whole();
  shard.lo = {2, 1};
  shard.hi = {kRows, 4};
  RunState run;
  run.learning_rate = 0.05;
  constexpr int kSteps = 3;
  for (run.step = 0; run.step < kSteps; ++run.step) {
    WeightUpdate update{*kernel, w.view(shard), {m.view(shard), v.view(shard)}, {}, run, {}, 0, {}};
    update.gradient.of_table = true;
    update.gradient.rows = TableRows::of(update.value);
    update.gradient.lookups = {a.lookup(), b.lookup()};
    on_device([&] { device_functions(kTested)->update(update); });
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < 5; ++c) {
      const std::size_t i = static_cast<std::size_t>(r * 5 + c);
      AdamElement expected{w0.data[i], m0.data[i], v0.data[i]};
      if (looked_up.count(r) > 0 && 1 <= c && c < 4) {
        for (int t = 1; t <= kSteps; ++t) expected.step(gradient.at(r, c - 1), t);
        CHECK(w.data[i] != w0.data[i]);
        CHECK(w.data[i] == doctest::Approx(expected.w).epsilon(1e-5));
        CHECK(m.data[i] == doctest::Approx(expected.m).epsilon(1e-5));
        CHECK(v.data[i] == doctest::Approx(expected.v).epsilon(1e-5));
      } else {
        CHECK(w.data[i] == w0.data[i]);
        CHECK(m.data[i] == m0.data[i]);
        CHECK(v.data[i] == v0.data[i]);
      }
    }
  }
}
