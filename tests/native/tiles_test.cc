// Overlaps of tiles, against all pairs of rectangles.
#include "sim/tiles.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "../fuzz/random_graph.h"
#include "plan/graph.h"

using namespace flexlegion;

namespace {

constexpr int kRank = 3;

// What tasks touch of a tensor by an access map: whole, along a dimension, in a window, or before
// it.
std::vector<Rect> mapped(fuzz::Source& random) {
  const Rect whole = Rect::of_shape({12, 9, 10});
  Operand operand;
  std::vector<int> degrees;
  int tasks = 1;
  for (int d = 0; d < kRank; ++d) {
    DimMap map{random.between(-1, kRank - 1)};
    if (random.chance(0.5)) map.lo_offset = -random.upto(2);
    if (random.chance(0.5)) map.hi_offset = random.between(-2, 2);
    map.prefix = random.chance(0.2);
    operand.map.push_back(map);
    degrees.push_back(random.between(1, 4));
    tasks *= degrees.back();
  }
  Tensor tensor;
  tensor.shape = {12, 9, 10};
  std::vector<Rect> rects;
  for (int k = 0; k < tasks; ++k) {
    rects.push_back(accessed(operand, tensor, tile_of(whole, degrees, k)));
  }
  return rects;
}

std::vector<Rect> scattered(fuzz::Source& random) {
  std::vector<Rect> rects(static_cast<std::size_t>(random.between(1, 12)));
  for (Rect& rect : rects) {
    rect.rank = kRank;
    for (int d = 0; d < kRank; ++d) {
      rect.lo[static_cast<std::size_t>(d)] = random.upto(6);
      rect.hi[static_cast<std::size_t>(d)] = rect.lo[static_cast<std::size_t>(d)] + random.upto(4);
    }
  }
  return rects;
}

}  // namespace

TEST_CASE("overlaps of tiles are those of all pairs") {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    fuzz::Source random(seed);
    const auto make = [&] { return random.chance(0.8) ? mapped(random) : scattered(random); };
    const std::vector<Rect> mine = make(), its = make();
    const Tiles a(mine), b(its);
    const Overlaps overlaps(a, b);
    REQUIRE(overlaps.first.size() == a.parts.rects.size() + 1);
    for (std::size_t i = 0; i < a.parts.rects.size(); ++i) {
      std::vector<std::pair<int, std::int64_t>> expected, got;
      for (std::size_t j = 0; j < b.parts.rects.size(); ++j) {
        const std::int64_t volume = a.parts.rects[i].intersect(b.parts.rects[j]).volume();
        if (volume > 0) expected.emplace_back(static_cast<int>(j), volume);
      }
      for (int n = overlaps.first[i]; n < overlaps.first[i + 1]; ++n) {
        const auto& [rect, volume] = overlaps.items[static_cast<std::size_t>(n)];
        got.emplace_back(rect, volume);
      }
      CHECK(got == expected);
      found += static_cast<int>(got.size());
    }
  }
  CHECK(found > 10'000);
}
