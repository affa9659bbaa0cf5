// Reductions over tiles: outputs, and what becomes of their gradients.
#include <cmath>

#include "ops_harness.h"

using namespace flexlegion;
using namespace flexlegion::testing;

namespace {

// Over dimensions 1 and 3 of (3, 4, 5, 6); few different values, so that maxima are not alone.
Case reduce_case(const std::string& kind, bool keeps_dims) {
  Case c;
  c.type = "reduce";
  c.attributes = {{"kind", kind}, {"axes", "1,3"}, {"keepdims", keeps_dims ? "1" : "0"}};
  c.inputs = {Tensor::random({3, 4, 5, 6}, 1)};
  if (kind == "max") {
    for (float& v : c.inputs[0].data) v = std::floor(v * 3);
  }
  c.output_shape = keeps_dims ? Shape{3, 1, 5, 1} : Shape{3, 5};
  c.reads_input = c.reads_output = kind == "max";
  c.input_tile = [keeps_dims](const Rect& tile, int) {
    Rect r = Rect::of_shape({3, 4, 5, 6});
    r.lo[0] = tile.lo[0];
    r.hi[0] = tile.hi[0];
    r.lo[2] = tile.lo[keeps_dims ? 2 : 1];
    r.hi[2] = tile.hi[keeps_dims ? 2 : 1];
    return r;
  };
  return c;
}

Results expected(Case& c, const std::string& kind, const Tensor& dy) {
  Results results{Tensor(c.output_shape), {Tensor(c.inputs[0].shape)}, {}};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) {
      const auto at = static_cast<std::size_t>(5 * i + j);
      double sum = 0;
      float most = -INFINITY;
      for (int k = 0; k < 24; ++k) {
        const float value = c.inputs[0].at(i, k / 6, j, k % 6);
        sum += value;
        most = std::max(most, value);
      }
      const double factor = kind == "mean" ? 1.0 / 24 : 1.0;
      results.output.data[at] = kind == "max" ? most : static_cast<float>(factor * sum);
      bool taken = false;
      for (int k = 0; k < 24; ++k) {
        const bool wins = !taken && c.inputs[0].at(i, k / 6, j, k % 6) == most;
        taken = taken || wins;
        const double share = kind == "max" ? (wins ? 1.0 : 0.0) : factor;
        results.input_grads[0].at(i, k / 6, j, k % 6) = static_cast<float>(share * dy.data[at]);
      }
    }
  }
  return results;
}

}  // namespace

TEST_CASE("reduce over dimensions that are not neighbours") {
  for (const char* kind : {"mean", "sum", "max"}) {
    for (bool keeps_dims : {false, true}) {
      Case c = reduce_case(kind, keeps_dims);
      const Tensor dy = Tensor::random(c.output_shape, 7);
      const Results reference = expected(c, kind, dy);
      for (unsigned seed = 0; seed < 8; ++seed) {
        std::vector<int> parts(c.output_shape.size(), 3);
        const Results results = run_tiles(c, random_tiles(c.output_shape, parts, seed), dy);
        CHECK(largest_difference(results.output, reference.output) < kTolerance);
        CHECK(largest_difference(results.input_grads[0], reference.input_grads[0]) < kTolerance);
      }
    }
  }
  CHECK_THROWS_AS(
      make_kernel("reduce", Attributes({{"kind", "min"}, {"axes", "1"}, {"keepdims", "0"}}),
                  kTested),
      std::invalid_argument);
}

TEST_CASE("the gradient of a maximum that is NaN goes to the first NaN") {
  Case c = reduce_case("max", false);
  c.inputs[0].at(1, 0, 2, 3) = kNan;
  c.inputs[0].at(1, 1, 2, 5) = kNan;
  const Tensor dy = Tensor::random(c.output_shape, 7);
  Results results = run_tiles(c, random_tiles(c.output_shape, {3, 3}, 0), dy);
  CHECK(std::isnan(results.output.data[5 * 1 + 2]));
  for (int k = 0; k < 24; ++k) {
    const float expected = k == 3 ? dy.data[5 * 1 + 2] : 0.0f;
    CHECK(results.input_grads[0].at(1, k / 6, 2, k % 6) == expected);
  }
}
