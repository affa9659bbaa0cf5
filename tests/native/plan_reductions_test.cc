// The plan of operators whose reductions are split, derived by hand before each test.
#include <doctest/doctest.h>

#include <stdexcept>

#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

// Channels in two halves on devices 0 and 1: each computes a partial value of all of y (4, 8), from
// its half of x and of w; the first adds the bias. The loss, on device 1, reads both, forward and
// backward, and sums them. Backward, both tasks read the whole gradient of y. w's halves have one
// user each, and so has the bias.
TEST_CASE("dense, split by its input; its readers sum") {
  const ReducedDense net;
  const Plan plan = plan_of(net.graph, {{{1, 1, 2}, {0, 1}}, {{1}, {1}}}, {net.y}, {1});
  CHECK(plan.values[net.y].slots == 2);
  CHECK(!plan.values[net.y].summed);
  CHECK(launch_of(plan, 0, Pass::sum) == nullptr);
  const Rect y = box({{0, 4}, {0, 8}});
  const Launch* forward = launch_of(plan, 0, Pass::forward);
  check(find(forward, net.x, Field::value), Privilege::read,
        {box({{0, 4}, {0, 3}}), box({{0, 4}, {3, 6}})});
  check(find(forward, net.w, Field::value), Privilege::read,
        {box({{0, 8}, {0, 3}}), box({{0, 8}, {3, 6}})});
  const Requirement* bias = find(forward, net.b, Field::value);
  CHECK(bias->rects[0] == box({{0, 8}}));
  CHECK(bias->rects[1].empty());
  check(find(forward, net.y, Field::partial), Privilege::write,
        {y.in_slots(0, 1), y.in_slots(1, 2)});
  CHECK(find(forward, net.y, Field::value) == nullptr);

  check(find(launch_of(plan, 1, Pass::forward), net.y, Field::partial), Privilege::read,
        {y.in_slots(0, 2)});
  check(find(launch_of(plan, 1, Pass::backward), net.y, Field::partial), Privilege::read,
        {y.in_slots(0, 2)});

  const Launch* backward = launch_of(plan, 0, Pass::backward);
  check(find(backward, net.y), Privilege::read, {y.in_slots(0, 1), y.in_slots(0, 1)});
  check(find(backward, net.w), Privilege::write,
        {box({{0, 1}, {0, 8}, {0, 3}}), box({{0, 1}, {0, 8}, {3, 6}})});
  CHECK(plan.gradients[net.w].slots == 1);
  CHECK(plan.gradients[net.b].slots == 1);

  const Launch* update = launch_of(plan, 0, Pass::update);
  CHECK(update->devices == Devices{0, 1});
  const Requirement* updated = find(update, net.b, Field::value);
  CHECK(updated->rects[0] == box({{0, 8}}));
  CHECK(updated->rects[1].empty());
}

// The same, but each of the devices sums half of the samples, before the loss reads the value.
// Both partial values lie on both devices' memories for a moment: device 0 has its own slot of all
// of y, and of the first samples both.
TEST_CASE("dense, split by its input; shards are summed where they were written") {
  const ReducedDense net;
  const Plan plan =
      plan_of(net.graph, {{{1, 1, 2}, {0, 1}, Sums::shards}, {{1}, {1}}}, {net.y}, {0});
  CHECK(plan.values[net.y].summed);
  const Rect top = box({{0, 2}, {0, 8}}), bottom = box({{2, 4}, {0, 8}});
  const Launch* sum = launch_of(plan, 0, Pass::sum);
  REQUIRE(sum != nullptr);
  CHECK(sum->devices == Devices{0, 1});
  CHECK(sum->runs == launch_of(plan, 0, Pass::forward)->runs);
  check(find(sum, net.y, Field::partial), Privilege::read,
        {top.in_slots(0, 2), bottom.in_slots(0, 2)});
  check(find(sum, net.y, Field::value), Privilege::write, {top, bottom});
  check(find(launch_of(plan, 1, Pass::forward), net.y, Field::value), Privilege::read,
        {box({{0, 4}, {0, 8}})});
  CHECK(find(launch_of(plan, 1, Pass::forward), net.y, Field::partial) == nullptr);
}

// 2 x 2: samples by channels. Task k computes part k % 2 of the samples k / 2.
TEST_CASE("partial values of tiles") {
  const ReducedDense net;
  const Plan plan = plan_of(net.graph, {{{2, 1, 2}, {0, 1, 2, 3}}, {{2}, {0, 2}}}, {}, {1, true});
  const Rect top = box({{0, 2}, {0, 8}}), bottom = box({{2, 4}, {0, 8}});
  check(find(launch_of(plan, 0, Pass::forward), net.y, Field::partial), Privilege::write,
        {top.in_slots(0, 1), top.in_slots(1, 2), bottom.in_slots(0, 1), bottom.in_slots(1, 2)});
  check(find(launch_of(plan, 1, Pass::forward), net.y, Field::partial), Privilege::read,
        {top.in_slots(0, 2), bottom.in_slots(0, 2)});
  check(find(launch_of(plan, 0, Pass::backward), net.y), Privilege::read,
        {top.in_slots(0, 1), top.in_slots(0, 1), bottom.in_slots(0, 1), bottom.in_slots(0, 1)});
  CHECK(plan.gradients[net.w].slots == 2);
  CHECK(plan.gradients[net.b].slots == 2);
}

// With one part there is nothing to sum, whoever should.
TEST_CASE("a reduction that is not split") {
  const ReducedDense net;
  const Plan plan =
      plan_of(net.graph, {{{2, 1, 1}, {0, 1}, Sums::shards}, {{2}, {0, 1}}}, {net.y}, {0});
  CHECK(plan.values[net.y].slots == 1);
  CHECK(launch_of(plan, 0, Pass::sum) == nullptr);
  CHECK(find(launch_of(plan, 0, Pass::forward), net.y, Field::partial) == nullptr);
}

TEST_CASE("what is no reduction is refused") {
  ReducedDense net;
  Operator& op = net.graph.operators.front();
  CHECK_THROWS_AS(check_config(net.graph, OpId(0), {{1, 1, 7}, Devices(7, 0)}),
                  std::invalid_argument);
  CHECK_THROWS_AS(check_config(net.graph, OpId(0), {{1, 1}, {0}}), std::invalid_argument);
  op.operands[3].map = {along(0), along(2)};
  CHECK_THROWS_AS(check_graph(net.graph), std::invalid_argument);
  op.operands[3].map = {along(0), along(1)};
  op.dims = {DimKind::reduction, DimKind::parameter, DimKind::reduction};
  CHECK_THROWS_AS(check_graph(net.graph), std::invalid_argument);
}
