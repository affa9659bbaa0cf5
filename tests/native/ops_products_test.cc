// Matrix products: every combination of layouts and options against plain loops.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/panels.h"
#include "ops/products.h"
#include "ops/team.h"
#include "ops_harness.h"

namespace flexlegion::testing {
namespace {

// Random matrices of some batch, transposed or not, with gaps after each row and matrix.
struct Factor {
  Tensor memory;
  Matrix matrix;

  Factor(std::int64_t batch, std::int64_t rows, std::int64_t cols, bool transposed, unsigned seed)
      : memory(Tensor::random(
            {batch, (transposed ? cols : rows) + 1, (transposed ? rows : cols) + 3}, seed)) {
    const auto [r, c] = transposed ? std::pair{cols, rows} : std::pair{rows, cols};
    matrix = Matrix::row_major(memory.data.data(), r, c, c + 3);
    matrix.batch = batch;
    matrix.batch_stride = (r + 1) * (c + 3);
    if (transposed) matrix = matrix.transposed();
  }
};

float& at(const Matrix& m, std::int64_t b, std::int64_t r, std::int64_t c) {
  return m.f32()[(m.batch == 1 ? 0 : b) * m.batch_stride + r * m.row + c * m.col];
}

// Writes what the product should be over c.
void reference(const Matrix& a, const Matrix& b, const Matrix& c, const ProductOptions& options) {
  for (std::int64_t n = 0; n < c.batch; ++n) {
    for (std::int64_t i = 0; i < c.rows; ++i) {
      for (std::int64_t j = 0; j < c.cols; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < a.cols; ++k) sum += double{at(a, n, i, k)} * at(b, n, k, j);
        sum *= options.scale;
        if (options.adds) sum += at(c, n, i, j);
        if (options.bias != nullptr) sum += options.bias[j];
        if (options.activation == Activation::tanh) sum = std::tanh(sum);
        at(c, n, i, j) = static_cast<float>(sum);
      }
    }
  }
}

// Number `which`, of kOptions; the last two have a bias.
constexpr int kOptions = 6;
ProductOptions options_of(int which, Tensor& bias) {
  ProductOptions options;
  options.scale = which == 1 || which == 3 ? 0.3f : 1.0f;
  options.adds = which == 2 || which == 3;
  if (which >= 4) options.bias = bias.data.data();
  if (which == 5) options.activation = Activation::tanh;
  return options;
}

void check_product(std::int64_t batch, std::int64_t rows, std::int64_t inner, std::int64_t cols,
                   int layout, bool packed) {
  CAPTURE(batch);
  CAPTURE(rows);
  CAPTURE(inner);
  CAPTURE(cols);
  CAPTURE(layout);
  CAPTURE(packed);
  Products products;
  const bool a_for_all = !packed && layout / 8 == 1, b_for_all = !packed && layout / 8 == 2;
  const Factor a(a_for_all ? 1 : batch, rows, inner, layout % 2 == 1, 1);
  const Factor b(b_for_all ? 1 : batch, inner, cols, layout / 2 % 2 == 1, 2);
  Tensor bias = Tensor::random({cols}, 3);
  float* memory = nullptr;
  if (packed) {
    memory = scratch(0, products.packed_size(b.matrix, rows));
    products.pack(b.matrix, rows, memory);
  }
  const bool transposed = layout / 4 % 2 == 1;
  for (int which = 0; which < (transposed ? kOptions - 2 : kOptions); ++which) {
    if (packed && which != 0 && which != 2) continue;  // such products write or add, no more
    CAPTURE(which);
    const ProductOptions options = options_of(which, bias);
    Factor expected(batch, rows, cols, transposed, 4), result(batch, rows, cols, transposed, 4);
    reference(a.matrix, b.matrix, expected.matrix, options);
    if (packed) {
      products.multiply_packed(a.matrix, b.matrix, memory, result.matrix, options.adds);
    } else {
      products.multiply(a.matrix, b.matrix, result.matrix, options);
    }
    CHECK(largest_difference(result.memory, expected.memory) < kTolerance);  // and the gaps stay
  }
}

}  // namespace

TEST_CASE("products: layouts, batches and options") {
  for (int layout = 0; layout < 24; ++layout) {
    check_product(3, 5, 7, 9, layout, false);
    check_product(1, 33, 20, 70, layout, false);
    check_product(2, 1, 16, 1, layout, false);
  }
}

// Shapes of which each way of computing them gets some: few rows with a large factor as it lies or
// transposed, the sum of a few outer products, and oneDNN's two.
TEST_CASE("products: few rows, and many") {
  for (int layout = 0; layout < 8; ++layout) {
    check_product(1, 16, 300, 132, layout, false);
    check_product(1, 16, 300, 130, layout, false);
    check_product(1, 3, 20, 50, layout, false);
    check_product(1, 40, 21, 1030, layout, false);
    check_product(1, 64, 8, 36, layout, false);
    check_product(1, 70, 80, 90, layout, false);
    check_product(1, 1, 48, 64, layout, false);
    check_product(1, 64, 1, 48, layout, false);
  }
}

TEST_CASE("products of few rows, shared out to a team") {
  const Team team(3, 1);
  for (int layout = 0; layout < 8; ++layout) {
    check_product(1, 16, 300, 196, layout, false);
    check_product(1, 3, 200, 1100, layout, false);
    check_product(1, 300, 5, 40, layout, false);
  }
}

TEST_CASE("products with packed right factors") {
  for (int layout = 0; layout < 8; ++layout) {
    check_product(1, 5, 7, 9, layout, true);
    check_product(1, 16, 70, 100, layout, true);
    check_product(1, 33, 600, 36, layout, true);
    check_product(1, 260, 20, 36, layout, true);
    const Team team(3, 1);
    check_product(1, 16, 300, 100, layout, true);
  }
}

// Where there are no wider vectors than AVX2's, Products copies row-major factors into panels.
TEST_CASE("products of which some go by way of panels") {
  for (int layout = 0; layout < 8; ++layout) {
    check_product(1, 25, 300, 300, layout, false);
    check_product(1, 9, 1025, 1030, layout, false);
    const Team team(3, 1);
    check_product(1, 100, 20, 196, layout, false);
  }
}

// Themselves, on every machine.
TEST_CASE("panels: whole and partial ones, by block or packed") {
  struct Shape {
    std::int64_t rows, inner, cols;
  };
  for (const Shape& s : {Shape{1, 5, 7}, {7, 300, 130}, {25, 600, 300}, {9, 1025, 1030}}) {
    CAPTURE(s.cols);
    for (const int threads : {1, 3}) {
      const Team team(threads, 1);
      for (const bool adds : {false, true}) {
        for (const bool transposed : {false, true}) {
          const Factor a(1, s.rows, s.inner, false, 1), b(1, s.inner, s.cols, transposed, 2);
          Factor expected(1, s.rows, s.cols, false, 4), result(1, s.rows, s.cols, false, 4);
          reference(a.matrix, b.matrix, expected.matrix, adding(adds));
          Factor packed(1, s.rows, s.cols, false, 4);
          float* const memory = scratch(0, panels::packed_size(b.matrix));
          panels::pack(b.matrix, memory);
          panels::multiply_packed(a.matrix, b.matrix, memory, packed.matrix, adds);
          CHECK(largest_difference(packed.memory, expected.memory) < kTolerance);
          if (transposed) continue;
          panels::multiply(a.matrix, b.matrix, result.matrix, adds);
          CHECK(largest_difference(result.memory, expected.memory) < kTolerance);
        }
      }
    }
  }
}

TEST_CASE("products that do not fit are refused") {
  Products products;
  const Factor a(1, 2, 3, false, 1), b(1, 4, 2, false, 2), c(1, 2, 2, false, 3);
  CHECK_THROWS_AS(products.multiply(a.matrix, b.matrix, c.matrix), std::invalid_argument);
  ProductOptions options;
  options.adds = true;
  options.activation = Activation::relu;
  CHECK_THROWS_AS(products.multiply(c.matrix, c.matrix, c.matrix, options), std::invalid_argument);
  options = ProductOptions();
  options.bias = c.matrix.f32();
  options.scale = 2;
  CHECK_THROWS_AS(products.multiply(c.matrix, c.matrix, c.matrix, options), std::invalid_argument);
  options.scale = 1;
  CHECK_THROWS_AS(products.multiply(c.matrix, c.matrix, c.matrix.transposed(), options),
                  std::invalid_argument);
}

}  // namespace flexlegion::testing
