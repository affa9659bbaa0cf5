// The table of passes is complete, and the order of issue has each of them once.
#include "plan/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace flexlegion;

TEST_CASE("every pass is a complete row, of its own name") {
  REQUIRE(all_passes().size() == kPasses);
  for (const PassRow& row : all_passes()) {
    CAPTURE(row.name);
    CHECK(&row_of(row.pass) == &row);
    CHECK((row.wanted && row.runs && row.uses && row.place));
    CHECK(row_of(row.priced_as).price == row.price);
    CHECK(row_of(row.priced_as).priced_as == row.priced_as);
    CHECK(std::count_if(all_passes().begin(), all_passes().end(), [&row](const PassRow& other) {
            return std::string(row.name) == other.name;
          }) == 1);
  }
}

TEST_CASE("every pass stands in one stretch, with others of its kind, behind what it follows") {
  for (const PassRow& row : all_passes()) {
    CAPTURE(row.name);
    int times = 0;
    for (const Stretch& stretch : schedule()) {
      for (const auto* passes : {&stretch.passes, &stretch.gathering, &stretch.again}) {
        times += static_cast<int>(std::count(passes->begin(), passes->end(), row.pass));
      }
    }
    CHECK(times == 1);
    const Stretch& its = schedule()[static_cast<std::size_t>(stretch_of(row.pass))];
    CHECK(row_of(its.passes.front()).of == row.of);
    for (Pass followed : row.follows) CHECK(stretch_of(followed) <= stretch_of(row.pass));
  }
}
