// bfloat16 and float16 as numbers: what each stands for, and which is the nearest to a float.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ops/narrow.h"

using namespace flexlegion;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the bits of a float16 stand for, by the definition.
double value_of(Narrow bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 0x1f) return fraction == 0 ? sign * kInfinity : std::nan("");
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

}  // namespace

TEST_CASE("every float16 is the number that it stands for") {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<Narrow>(bits);
    const float wide = widened(DataType::float16, narrow);
    const double expected = value_of(narrow);
    if (std::isnan(expected)) {
      CHECK(std::isnan(wide));
      continue;
    }
    REQUIRE(wide == expected);
    REQUIRE(std::signbit(wide) == std::signbit(expected));
    REQUIRE(rounded(DataType::float16, wide) == narrow);
  }
}

TEST_CASE("floats round to the nearest float16, ties to the even one") {
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const auto lower = static_cast<Narrow>(bits), upper = static_cast<Narrow>(bits + 1);
    const auto middle = static_cast<float>((value_of(lower) + value_of(upper)) / 2);
    REQUIRE(rounded(DataType::float16, middle) == (bits % 2 == 0 ? lower : upper));
    REQUIRE(rounded(DataType::float16, std::nextafterf(middle, 0)) == lower);
    REQUIRE(rounded(DataType::float16, -std::nextafterf(middle, kInfinity)) == (upper | 0x8000));
  }
  CHECK(rounded(DataType::float16, 65519.0f) == 0x7bff);
  CHECK(rounded(DataType::float16, 65520.0f) == 0x7c00);
  CHECK(rounded(DataType::float16, -1e30f) == 0xfc00);
  CHECK(rounded(DataType::float16, kInfinity) == 0x7c00);
  CHECK(rounded(DataType::float16, 1e-30f) == 0);
  CHECK(std::isnan(widened(DataType::float16, rounded(DataType::float16, std::nanf("")))));
}

TEST_CASE("many at once are rounded and widened as one is") {
  std::mt19937 random(1);
  std::vector<float> values(1003);
  for (float& value : values) {
    const std::uint32_t bits = random();
    value = same_bits<float>(bits);
  }
  for (const DataType type : {DataType::bfloat16, DataType::float16}) {
    std::vector<Narrow> narrow(values.size());
    std::vector<float> wide(values.size());
    const auto n = static_cast<std::int64_t>(values.size());
    round_off(type, values.data(), narrow.data(), n);
    widen(type, narrow.data(), wide.data(), n);
    for (std::size_t i = 0; i < values.size(); ++i) {
      REQUIRE(narrow[i] == rounded(type, values[i]));
      const float one = widened(type, narrow[i]);
      REQUIRE(same_bits<std::uint32_t>(wide[i]) == same_bits<std::uint32_t>(one));
    }
  }
}
