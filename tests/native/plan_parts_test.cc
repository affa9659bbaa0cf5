// The plan of operators that keep partial values of their inputs apart, derived by hand before each
// test.
#include <doctest/doctest.h>

#include <stdexcept>

#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

namespace {

// x (4, 6) -> dense of 8 units -> dense of 2 units with a bias, linear in the first one's output ->
// loss with labels (4).
struct TwoDense : Net {
  TensorId x, v, y, w, b, z, labels, losses;

  TwoDense() {
    x = tensor("x", {4, 6}, TensorKind::input);
    v = weight("v", {8, 6});
    y = tensor("y", {4, 8});
    w = weight("w", {2, 8});
    b = weight("b", {2});
    z = tensor("z", {4, 2});
    labels = tensor("labels", {4}, TensorKind::input, false, DataType::int32);
    losses = tensor("losses", {4});
    op("first", {{x, Role::input, true, {along(0), along(2)}},
                 {v, Role::weight, true, {along(1), along(2)}},
                 {y, Role::output, false, {along(0), along(1)}}});
    op("second", {{y, Role::input, true, {along(0), along(2)}},
                  {w, Role::weight, true, {along(1), along(2)}},
                  {b, Role::weight, false, {along(1)}, 0b1100},
                  {z, Role::output, false, {along(0), along(1)}}});
    loss(z, labels, losses);
    auto& ops = graph.operators;
    ops[OpId(0)].dims = {DimKind::sample, DimKind::parameter, DimKind::reduction};
    ops[OpId(0)].reductions = {6};
    ops[OpId(1)].dims = {DimKind::sample, DimKind::parameter, DimKind::reduction, DimKind::part};
    ops[OpId(1)].reductions = {8, 64};
    ops[OpId(1)].operands[0].linear = true;
    ops[OpId(2)].dims = {DimKind::sample};
    check_graph(graph);
  }

  Plan plan(const std::vector<int>& first, const std::vector<int>& second,
            Sums sums = Sums::readers) const {
    const auto config = [](const std::vector<int>& degrees, Sums how) {
      Devices devices;
      int tasks = 1;
      for (int degree : degrees) tasks *= degree;
      for (int k = 0; k < tasks; ++k) devices.push_back(k);
      return ParallelConfig{degrees, devices, how};
    };
    return plan_of(graph,
                   {config(first, sums), config(second, Sums::readers), config({1}, Sums::readers)},
                   {z}, {0});
  }
};

}  // namespace

TEST_CASE("the terms of a sum are shared out in ranges, the first part having one always") {
  const auto slots = [](int values, int parts) {
    std::vector<int> ends;
    for (int k = 0; k < parts; ++k) {
      CHECK(slots_of_part(values, parts, k).first == (k > 0 ? ends.back() : 0));
      ends.push_back(slots_of_part(values, parts, k).last);
    }
    return ends;
  };
  CHECK(slots(4, 1) == std::vector<int>{4});
  CHECK(slots(4, 2) == std::vector<int>{2, 4});
  CHECK(slots(4, 3) == std::vector<int>{2, 3, 4});
  CHECK(slots(2, 4) == std::vector<int>{1, 1, 2, 2});
  CHECK(slots(1, 3) == std::vector<int>{1, 1, 1});
}

// Device k has computed partial value k of y, and computes from it a partial value of z; the first
// adds the bias. Backward, both multiply the gradient of z, which is each one's, with their term of
// y: two partial values of w's gradient. The gradient of y, that of the sum, is the first one's.
TEST_CASE("partial values stay apart") {
  const TwoDense net;
  const Plan plan = net.plan({1, 1, 2}, {1, 1, 1, 2});
  const Rect y = box({{0, 4}, {0, 8}}), z = box({{0, 4}, {0, 2}});
  const Launch* forward = launch_of(plan, 1, Pass::forward);
  check(find(forward, net.y, Field::partial), Privilege::read,
        {y.in_slots(0, 1), y.in_slots(1, 2)});
  check(find(forward, net.w, Field::value), Privilege::read,
        {box({{0, 2}, {0, 8}}), box({{0, 2}, {0, 8}})});
  CHECK(find(forward, net.b, Field::value)->rects[1].empty());
  check(find(forward, net.z, Field::partial), Privilege::write,
        {z.in_slots(0, 1), z.in_slots(1, 2)});

  const Launch* backward = launch_of(plan, 1, Pass::backward);
  check(find(backward, net.y, Field::partial), Privilege::read,
        {y.in_slots(0, 1), y.in_slots(1, 2)});
  check(find(backward, net.z), Privilege::read, {z.in_slots(0, 1), z.in_slots(0, 1)});
  const Rect w = box({{0, 2}, {0, 8}});
  check(find(backward, net.w), Privilege::write, {w.in_slots(0, 1), w.in_slots(1, 2)});
  CHECK(find(backward, net.y)->rects[0] == y.in_slots(0, 1));
  CHECK(find(backward, net.y)->rects[1].empty());
  CHECK(plan.gradients[net.b].slots == 1);
}

// Four partial values in three parts; of none, or of shards that were summed, the first part reads
// all there is.
TEST_CASE("any configuration is a plan, whatever the input's is") {
  const TwoDense net;
  const Rect y = box({{0, 4}, {0, 8}});
  const Plan four = net.plan({1, 1, 4}, {1, 1, 1, 3});
  check(find(launch_of(four, 1, Pass::forward), net.y, Field::partial), Privilege::read,
        {y.in_slots(0, 2), y.in_slots(2, 3), y.in_slots(3, 4)});
  for (const Plan& plan :
       {net.plan({2, 1, 1}, {1, 1, 1, 2}), net.plan({1, 1, 2}, {1, 1, 1, 2}, Sums::shards)}) {
    const Requirement* read = find(launch_of(plan, 1, Pass::forward), net.y, Field::value);
    CHECK(read->rects[0] == y);
    CHECK(read->rects[1].empty());
  }
  // Together with a split of what it reduces: parts are the last dimension.
  const Plan both = net.plan({1, 1, 2}, {1, 1, 2, 2});
  const Rect left = box({{0, 4}, {0, 4}}), right = box({{0, 4}, {4, 8}});
  check(find(launch_of(both, 1, Pass::forward), net.y, Field::partial), Privilege::read,
        {left.in_slots(0, 1), left.in_slots(1, 2), right.in_slots(0, 1), right.in_slots(1, 2)});
  CHECK(both.values[net.z].slots == 4);
}

// Without a trained weight there is nothing to multiply, and the first part runs backward for all.
TEST_CASE("later parts that contribute nothing read nothing") {
  TwoDense net;
  net.graph.tensors[net.w].needs_gradient = false;
  const Plan plan = net.plan({1, 1, 2}, {1, 1, 1, 2});
  for (const Requirement& r : launch_of(plan, 1, Pass::backward)->requirements) {
    CHECK(!r.rects[0].empty());
    CHECK(r.rects[1].empty());
  }
}

TEST_CASE("what is not linear has no parts") {
  const auto refused = [](auto spoil) {
    TwoDense net;
    spoil(net.graph.operators[OpId(1)]);
    CHECK_THROWS_AS(check_graph(net.graph), std::invalid_argument);
  };
  refused([](Operator& op) { op.operands[0].linear = false; });
  refused([](Operator& op) { op.operands[1].linear = true; });              // a weight
  refused([](Operator& op) { op.operands[3].saved_for_backward = true; });  // its own result
  refused([](Operator& op) { op.operands[3].combine = Combine::max; });
  refused([](Operator& op) { op.operands[1].map[1] = along(3); });
  refused([](Operator& op) { std::swap(op.dims[2], op.dims[3]); });
}
