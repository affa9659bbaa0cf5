// Tiles of tasks, and what they touch by access maps, derived by hand.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

// 7 rows in 3 parts: bounds floor(7k/3) = 0, 2, 4, 7; 3 columns in 2: 0, 1, 3. Row-major: the last
// dimension varies fastest, so task 2r + c has part r of the rows and part c of the columns.
TEST_CASE("tile_of: uneven extents, row-major numbers") {
  const Rect whole = Rect::of_shape({7, 3});
  const std::vector<int> degrees = {3, 2};
  CHECK(tile_of(whole, degrees, 0) == box({{0, 2}, {0, 1}}));
  CHECK(tile_of(whole, degrees, 1) == box({{0, 2}, {1, 3}}));
  CHECK(tile_of(whole, degrees, 2) == box({{2, 4}, {0, 1}}));
  CHECK(tile_of(whole, degrees, 3) == box({{2, 4}, {1, 3}}));
  CHECK(tile_of(whole, degrees, 5) == box({{4, 7}, {1, 3}}));
  // A rectangle that does not start at 0 keeps its origin.
  CHECK(tile_of(box({{10, 17}}), {3}, 0) == box({{10, 12}}));
  CHECK(tile_of(box({{10, 17}}), {3}, 2) == box({{14, 17}}));
  CHECK(tile_of(whole, {1, 1}, 0) == whole);
}

TEST_CASE("tile_of: tiles partition the extent and differ by at most one") {
  for (int extent = 1; extent <= 12; ++extent) {
    for (int degree = 1; degree <= extent; ++degree) {
      CAPTURE(extent);
      CAPTURE(degree);
      std::int64_t next = 0;
      for (int k = 0; k < degree; ++k) {
        const Rect tile = tile_of(Rect::of_shape({extent}), {degree}, k);
        CHECK(tile.lo[0] == next);
        CHECK((tile.extent(0) == extent / degree || tile.extent(0) == (extent - 1) / degree + 1));
        next = tile.hi[0];
      }
      CHECK(next == extent);
    }
  }
}

// Window of 3, stride 1, padding 1 over 8 rows: rows [0, 4) need [-1, 5), clamped to [0, 5), and
// rows [4, 8) need [3, 9), clamped to [3, 8).
// Stride 2 over 9 rows (5 positions): the window of position 2 starts at 2*2 - 1 = 3, that of
// position 4 ends at 4*2 - 1 + 3 = 10, clamped to 9.
TEST_CASE("accessed: a window's halo, clamped") {
  const Operand same{TensorId(0), Role::input, false, {window(0, 3, 1, 1)}};
  const Tensor rows{"rows", {8}, DataType::float32, TensorKind::input, false};
  CHECK(accessed(same, rows, box({{0, 4}})) == box({{0, 5}}));
  CHECK(accessed(same, rows, box({{4, 8}})) == box({{3, 8}}));
  CHECK(accessed(same, rows, box({{2, 3}})) == box({{1, 4}}));
  const Operand strided{TensorId(0), Role::input, false, {window(0, 3, 2, 1)}};
  const Tensor nine{"nine", {9}, DataType::float32, TensorKind::input, false};
  CHECK(accessed(strided, nine, box({{2, 5}})) == box({{3, 9}}));
  CHECK(accessed(strided, nine, box({{0, 2}})) == box({{0, 4}}));
}

// (2, 3, 4) flattened to (2, 12): elements [5, 9) lie in the bands floor(5/4) = 1 to ceil(9/4) = 3;
// element 11 in band 2; the innermost dimension is always whole.
TEST_CASE("accessed: divided and whole dimensions") {
  const Operand flatten{TensorId(0), Role::input, false, {along(0), divided(1, 4), kWhole}};
  const Tensor t{"t", {2, 3, 4}, DataType::float32, TensorKind::input, false};
  CHECK(accessed(flatten, t, box({{1, 2}, {5, 9}})) == box({{1, 2}, {1, 3}, {0, 4}}));
  CHECK(accessed(flatten, t, box({{0, 2}, {11, 12}})) == box({{0, 2}, {2, 3}, {0, 4}}));
  CHECK(accessed(flatten, t, box({{0, 1}, {0, 12}})) == box({{0, 1}, {0, 3}, {0, 4}}));
}
