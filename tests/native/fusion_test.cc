// The rule of which launches are fused, case by case. Launches are numbered in the order of issue.
#include "plan/fusion.h"

#include <doctest/doctest.h>

#include <vector>

using flexlegion::FusionRule;
using flexlegion::kLongestRun;

namespace {

using Devices = std::vector<int>;

const Devices kBoth = {0, 1}, kFirst = {0}, kSecond = {1}, kTwice = {0, 0};

}  // namespace

TEST_CASE("launches on the same devices that hand on from task k to task k are fused") {
  FusionRule rule;
  rule.begin(4);
  rule.add(kBoth, true, false);
  for (int i = 1; i < 3; ++i) {
    rule.add(kBoth, true, false);
    for (int k = 0; k < 2; ++k) rule.wait(k, i - 1, k, true);
  }
  rule.add(kFirst, true, false);
  rule.end();
  CHECK_FALSE(rule.joins(0, 0));
  CHECK(rule.joins(1, 0));
  CHECK(rule.joins(2, 0));
  CHECK_FALSE(rule.joins(3, 0));  // on other devices
}

TEST_CASE("a run is no longer than it may be") {
  FusionRule rule;
  rule.begin(kLongestRun + 1);
  for (int i = 0; i <= kLongestRun; ++i) rule.add(kFirst, true, false);
  rule.end();
  CHECK(rule.joins(kLongestRun - 1, 0));
  CHECK_FALSE(rule.joins(kLongestRun, 0));
  CHECK(rule.joins(kLongestRun, 1));
  CHECK(rule.joins(2, 0, 3));
  CHECK_FALSE(rule.joins(3, 0, 3));
}

TEST_CASE("what cannot be fused is alone") {
  FusionRule rule;
  rule.begin(3);
  rule.add(kFirst, true, false);
  rule.add(kFirst, false, false);
  rule.add(kFirst, true, false);
  rule.end();
  CHECK_FALSE(rule.joins(1, 0));
  CHECK_FALSE(rule.joins(2, 1));
}

// Launch 1 waits for both devices, launch 0 for none; launch 2 waits for what launch 1 does.
TEST_CASE("launches that wait for other launches of other devices are apart") {
  FusionRule rule;
  rule.begin(3);
  rule.add(kBoth, true, false);
  rule.add(kBoth, true, true);  // so that it does not hurry
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 2; ++j) rule.wait(k, 0, j, true);
  }
  rule.add(kBoth, true, false);
  for (int k = 0; k < 2; ++k) rule.wait(k, 1, k, true);
  rule.end();
  CHECK_FALSE(rule.joins(1, 0));
  CHECK(rule.joins(2, 1));
}

// Launch 2, on the other device, needs what launches 0 and 1 computed.
TEST_CASE("none joins a launch whose results another device awaits") {
  for (const bool needs_both : {true, false}) {
    for (const bool closing : {true, false}) {
      for (const bool one_memory : {true, false}) {
        FusionRule rule;
        rule.begin(3);
        rule.add(kFirst, true, false);
        rule.add(kFirst, true, false);
        rule.add(kSecond, true, closing);
        rule.wait(0, 0, 0, one_memory);
        if (needs_both) rule.wait(0, 1, 0, one_memory);
        rule.end();
        // If it needs both, it waits for the second anyhow; in one memory, an update has time.
        CHECK(rule.joins(1, 0) == (needs_both || (closing && one_memory)));
      }
    }
  }
}

// Task 0 of launch 1 needs what task 1 of launch 0 computes on the same device.
TEST_CASE("a run has no task that needs another part of it") {
  FusionRule rule;
  rule.begin(3);
  rule.add(kTwice, true, false);
  rule.add(kTwice, true, false);
  rule.wait(0, 0, 1, true);
  rule.add(kTwice, true, false);
  rule.wait(0, 1, 0, true);
  rule.end();
  CHECK_FALSE(rule.joins(1, 0));
  CHECK(rule.joins(2, 1));
}

TEST_CASE("a rule forgets what it was told before") {
  FusionRule rule;
  rule.begin(2);
  rule.add(kBoth, true, false);
  rule.add(kBoth, false, false);
  rule.wait(0, 0, 1, true);
  rule.begin(2);
  rule.add(kBoth, true, false);
  rule.add(kBoth, true, false);
  rule.end();
  CHECK(rule.joins(1, 0));
}
