// The gradient of a table, row by row, against a sum over all tokens.
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "doctest/doctest.h"
#include "ops/table_gradient.h"
#include "ops_harness.h"

using namespace flexlegion;
using namespace flexlegion::testing;

namespace {

constexpr std::int64_t kRows = 9, kColumns = 5;

// Tokens (2, 3) of which some repeat, and the gradient of columns 1 to 4 of what they read.
struct LookedUp {
  std::vector<std::int32_t> tokens{7, 2, 7, 0, 2, 8};
  Tensor gradient = Tensor::random({2, 3, kColumns}, 3);
  Rect columns = gradient.whole();

  LookedUp() {
    columns.lo[2] = 1;
    columns.hi[2] = 4;
  }

  Lookup lookup() {
    return {dense_view(tokens.data(), Rect::of_shape({2, 3}), {2, 3}), gradient.view(columns)};
  }

  void add_to(Tensor& sum) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
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
  Tensor expected({kRows, 3});
  a.add_to(expected);
  b.add_to(expected);
  for (const bool only_touched : {false, true}) {
    CAPTURE(only_touched);
    Tensor sum({kRows, 3});
    std::vector<std::int64_t> rows;
    for_each_row_block({a.lookup(), b.lookup()}, kRows, 3, only_touched,
                       [&](std::int64_t lo, std::int64_t hi, const TensorView& gradient) {
                         for (std::int64_t r = lo; r < hi; ++r) rows.push_back(r);
                         add_view(sum.view(gradient.tile), gradient);
                       });
    CHECK(largest_difference(sum, expected) < kTolerance);
    if (only_touched) {
      CHECK(rows == std::vector<std::int64_t>{0, 1, 2, 7, 8});
    } else {
      CHECK(rows.size() == kRows);
    }
  }
}

TEST_CASE("a token that is no row of the table is refused") {
  LookedUp a;
  a.tokens[4] = 9;
  const auto nothing = [](std::int64_t, std::int64_t, const TensorView&) {};
  CHECK_THROWS_AS(for_each_row_block({a.lookup()}, kRows, 3, true, nothing), std::invalid_argument);
  a.tokens[4] = -1;
  CHECK_THROWS_AS(for_each_row_block({a.lookup()}, kRows, 3, false, nothing),
                  std::invalid_argument);
}
