// The plan of small graphs, each derived by hand: the derivation stands before its test.
#include "plan/plan.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

// Two halves of the samples on devices 0 and 1. Both tasks read all of w and b, so each writes a
// partial gradient of its own: two slots, entirely written. Each device updates a half: w (8, 6) is
// cut in dimension 0. The gradient of y is written by the loss's tasks in disjoint halves: one
// slot. x needs no gradient. One optimizer state.
TEST_CASE("dense, split by samples") {
  const DenseNet net;
  const Plan plan = plan_of(net.graph, {{{2, 1}, {0, 1}}, {{2}, {0, 1}}}, {net.y}, {1});
  REQUIRE(plan.launches.size() == 7);
  const std::vector<std::pair<int, Pass>> order = {
      {-1, Pass::load},    {-1, Pass::load},    {0, Pass::forward}, {1, Pass::forward},
      {1, Pass::backward}, {0, Pass::backward}, {0, Pass::update}};
  for (LaunchId l : plan.launches.ids()) {
    CHECK(plan.launches[l].op.value == order[l.index()].first);
    CHECK(plan.launches[l].pass == order[l.index()].second);
    CHECK(plan.launches[l].devices == Devices{0, 1});
  }

  const std::vector<Rect> x = {box({{0, 2}, {0, 6}}), box({{2, 4}, {0, 6}})};
  const std::vector<Rect> y = {box({{0, 2}, {0, 8}}), box({{2, 4}, {0, 8}})};
  const std::vector<Rect> w(2, box({{0, 8}, {0, 6}}));
  const std::vector<Rect> b(2, box({{0, 8}}));
  const Launch* forward = launch_of(plan, 0, Pass::forward);
  REQUIRE(forward->requirements.size() == 4);
  check(find(forward, net.x, Field::value), Privilege::read, x);
  check(find(forward, net.w, Field::value), Privilege::read, w);
  check(find(forward, net.b, Field::value), Privilege::read, b);
  check(find(forward, net.y, Field::value), Privilege::write, y);

  const Launch* loss = launch_of(plan, 1, Pass::backward);
  REQUIRE(loss->requirements.size() == 3);  // saved y and labels; the gradient of y
  check(find(loss, net.y, Field::value), Privilege::read, y);
  check(find(loss, net.labels, Field::value), Privilege::read, {box({{0, 2}}), box({{2, 4}})});
  check(find(loss, net.y), Privilege::write, {y[0].in_slots(0, 1), y[1].in_slots(0, 1)});
  CHECK(plan.gradients[net.y].slots == 1);
  CHECK(plan.gradients[net.y].fully_written);
  CHECK(plan.gradients[net.losses].slots == 0);

  const Launch* backward = launch_of(plan, 0, Pass::backward);
  REQUIRE(backward->requirements.size() == 5);  // saved x and w; gradients of w, b and y
  check(find(backward, net.x, Field::value), Privilege::read, x);
  check(find(backward, net.w, Field::value), Privilege::read, w);
  check(find(backward, net.y), Privilege::read, {y[0].in_slots(0, 1), y[1].in_slots(0, 1)});
  check(find(backward, net.w), Privilege::write, {w[0].in_slots(0, 1), w[1].in_slots(1, 2)});
  check(find(backward, net.b), Privilege::write, {b[0].in_slots(0, 1), b[1].in_slots(1, 2)});
  CHECK(find(backward, net.w)->adds == Adds{false, false});
  CHECK(find(backward, net.x) == nullptr);
  CHECK(plan.gradients[net.x].slots == 0);
  CHECK(plan.gradients[net.w].slots == 2);
  CHECK(plan.gradients[net.w].fully_written);

  const Launch* update = launch_of(plan, 0, Pass::update);
  REQUIRE(update->requirements.size() == 6);
  const std::vector<Rect> w_shards = {box({{0, 4}, {0, 6}}), box({{4, 8}, {0, 6}})};
  const std::vector<Rect> b_shards = {box({{0, 4}}), box({{4, 8}})};
  check(find(update, net.w), Privilege::read,
        {w_shards[0].in_slots(0, 2), w_shards[1].in_slots(0, 2)});
  check(find(update, net.w, Field::value), Privilege::read_write, w_shards);
  check(find(update, net.w, Field::state), Privilege::read_write, w_shards);
  check(find(update, net.b), Privilege::read,
        {b_shards[0].in_slots(0, 2), b_shards[1].in_slots(0, 2)});
  check(find(update, net.b, Field::value), Privilege::read_write, b_shards);
}

// The same, its gradients clipped: each of the update's two tasks has a norm task before it, which
// reads what that one will read of gradients, and writes an element; then one task, beside the
// first of these, reads both elements, and both updates what it found.
TEST_CASE("clipping") {
  const DenseNet net;
  const Plan plan = plan_of(net.graph, {{{2, 1}, {0, 1}}, {{2}, {0, 1}}}, {net.y}, {1, true});
  CHECK(plan.elements[static_cast<std::size_t>(Field::norms)] == 2);
  const Launch* norm = launch_of(plan, 0, Pass::norm);
  const Launch* update = launch_of(plan, 0, Pass::update);
  REQUIRE(norm->requirements.size() == 3);
  CHECK(norm->devices == update->devices);
  for (TensorId weight : {net.w, net.b}) {
    check(find(norm, weight), Privilege::read, find(update, weight)->rects);
  }
  check(find(norm, {}, Field::norms), Privilege::write, {box({{0, 1}}), box({{1, 2}})});
  const Launch* clip = launch_of(plan, -1, Pass::clip);
  CHECK(clip->devices == Devices{0});
  check(find(clip, {}, Field::norms), Privilege::read, {box({{0, 2}})});
  check(find(clip, {}, Field::total_norm), Privilege::write, {box({{0, 1}})});
  check(find(update, {}, Field::total_norm), Privilege::read, {box({{0, 1}}), box({{0, 1}})});
}

// Two halves of the units: each task reads its own half of w and b, so the gradient is exclusive
// and each device updates what it used. Both tasks read all of x: its gradient has two partials.
TEST_CASE("dense, split by parameters") {
  const DenseNet net(true);
  const Plan plan = plan_of(net.graph, {{{1, 2}, {0, 1}}, {{1}, {0}}}, {net.y}, {0});
  const std::vector<Rect> w = {box({{0, 4}, {0, 6}}), box({{4, 8}, {0, 6}})};
  const Rect x = box({{0, 4}, {0, 6}});
  const Launch* backward = launch_of(plan, 0, Pass::backward);
  check(find(backward, net.w), Privilege::write, {w[0].in_slots(0, 1), w[1].in_slots(0, 1)});
  check(find(backward, net.x), Privilege::write, {x.in_slots(0, 1), x.in_slots(1, 2)});
  CHECK(plan.gradients[net.w].slots == 1);
  CHECK(plan.gradients[net.w].fully_written);
  CHECK(plan.gradients[net.b].slots == 1);
  CHECK(plan.gradients[net.x].slots == 2);
  CHECK(plan.gradients[net.x].fully_written);
  const Launch* update = launch_of(plan, 0, Pass::update);
  CHECK(update->devices == Devices{0, 1});
  check(find(update, net.w), Privilege::read, {w[0].in_slots(0, 1), w[1].in_slots(0, 1)});
  check(find(update, net.w, Field::value), Privilege::read_write, w);
  CHECK(find(update, net.w, Field::state) == nullptr);
}

// Four tasks: 0 and 2 share the first four rows of w, 1 and 3 the others: two slots. Tasks 0 and 1
// share the first two samples, 2 and 3 the others: two slots of x's gradient. A half (4, 6) of w is
// cut into 2 + 2 rows by its two users: its outermost dimension, though not its longest; and so is
// a half of b.
TEST_CASE("dense, split both ways") {
  const DenseNet net(true);
  const Plan plan = plan_of(net.graph, {{{2, 2}, {0, 1, 2, 3}}, {{1}, {0}}}, {net.y}, {0});
  const Rect top = box({{0, 4}, {0, 6}}), bottom = box({{4, 8}, {0, 6}});
  const Rect early = box({{0, 2}, {0, 6}}), late = box({{2, 4}, {0, 6}});
  const Launch* backward = launch_of(plan, 0, Pass::backward);
  check(find(backward, net.w), Privilege::write,
        {top.in_slots(0, 1), bottom.in_slots(0, 1), top.in_slots(1, 2), bottom.in_slots(1, 2)});
  check(find(backward, net.x), Privilege::write,
        {early.in_slots(0, 1), early.in_slots(1, 2), late.in_slots(0, 1), late.in_slots(1, 2)});
  CHECK(plan.gradients[net.w].slots == 2);
  CHECK(plan.gradients[net.x].slots == 2);
  const Launch* update = launch_of(plan, 0, Pass::update);
  CHECK(update->devices == Devices{0, 1, 2, 3});
  check(
      find(update, net.w, Field::value), Privilege::read_write,
      {box({{0, 2}, {0, 6}}), box({{4, 6}, {0, 6}}), box({{2, 4}, {0, 6}}), box({{6, 8}, {0, 6}})});
  check(find(update, net.b, Field::value), Privilege::read_write,
        {box({{0, 2}}), box({{4, 6}}), box({{2, 4}}), box({{6, 8}})});
}

// The same on devices 0, 1, 0, 1: each half of w has one user only and is not cut, but tasks of one
// launch never share a slot, even on one device.
// On devices 0, 0, 0, 0, that device has two shards of w: two update tasks.
TEST_CASE("dense, split both ways over repeated devices") {
  const DenseNet net;
  const Rect top = box({{0, 4}, {0, 6}}), bottom = box({{4, 8}, {0, 6}});
  const std::vector<Devices> placements = {{0, 1, 0, 1}, {0, 0, 0, 0}};
  for (const Devices& devices : placements) {
    const Plan plan = plan_of(net.graph, {{{2, 2}, devices}, {{1}, {0}}}, {net.y}, {0});
    CHECK(plan.gradients[net.w].slots == 2);
    const Launch* update = launch_of(plan, 0, Pass::update);
    CHECK(update->devices == Devices{0, devices[1]});
    check(find(update, net.w, Field::value), Privilege::read_write, {top, bottom});
    check(find(update, net.w), Privilege::read, {top.in_slots(0, 2), bottom.in_slots(0, 2)});
  }
}

// Three replicas of a bias of two elements: two shards, on the first two devices; the weight (2, 6)
// is cut in the dimension of which all get the same, into 2 + 2 + 2. The third task has an empty
// share of the bias.
TEST_CASE("no more shards than elements") {
  Net net;
  const TensorId x = net.tensor("x", {3, 6}, TensorKind::input);
  const TensorId w = net.weight("w", {2, 6}), b = net.weight("b", {2});
  const TensorId y = net.tensor("y", {3, 2}), labels = net.tensor("l", {3, 2}, TensorKind::input);
  net.dense(x, w, b, y);
  net.loss(y, labels, net.tensor("losses", {3}));
  const Plan plan = plan_of(net.graph, {{{3, 1}, {2, 0, 1}}, {{1}, {0}}}, {y}, {0});
  const Launch* update = launch_of(plan, 0, Pass::update);
  CHECK(update->devices == Devices{0, 1, 2});
  check(find(update, w, Field::value), Privilege::read_write,
        {box({{0, 2}, {2, 4}}), box({{0, 2}, {4, 6}}), box({{0, 2}, {0, 2}})});
  const Requirement* bias = find(update, b, Field::value);
  CHECK(bias->rects[0] == box({{1, 2}}));
  CHECK(bias->rects[1].empty());
  CHECK(bias->rects[2] == box({{0, 1}}));
}

namespace {

// relu over 8 rows, then a convolution along them; images (1, 8, 1, 1).
struct ConvNet : Net {
  TensorId x, r, kernel, y;

  ConvNet(int window_size, int stride, int padding, std::int64_t out_rows) {
    const std::vector<DimMap> same = {along(0), along(1), along(2), along(3)};
    x = tensor("x", {1, 8, 1, 1}, TensorKind::input, true);
    r = tensor("r", {1, 8, 1, 1});
    kernel = weight("kernel", {1, window_size, 1, 1});
    y = tensor("y", {1, out_rows, 1, 1});
    const TensorId labels = tensor("labels", {1, out_rows, 1, 1}, TensorKind::input);
    op("relu", {{x, Role::input, false, same}, {r, Role::output, true, same}});
    op("conv", {{r,
                 Role::input,
                 true,
                 {along(0), window(1, window_size, stride, padding), window(2, 1, 1, 0), kWhole}},
                {kernel, Role::weight, true, {along(3), kWhole, kWhole, kWhole}},
                {y, Role::output, false, same}});
    loss(y, labels, tensor("losses", {1}));
  }
};

Rect rows(std::int64_t lo, std::int64_t hi) { return box({{0, 1}, {lo, hi}, {0, 1}, {0, 1}}); }

}  // namespace

// A window of 3 with padding 1 over halves of 8 rows: tasks read [0, 5) and [3, 8), which overlap,
// so the gradient takes two slots, of which neither is entirely written. relu's four tiles of two
// rows: rows 0-1 are in slot 0 only, rows 2-3 and 4-5 touch both, rows 6-7 are in slot 1 only.
// The kernel (1, 3, 1, 1) is replicated on both devices: shards of 1 and 2 rows.
TEST_CASE("convolution with a halo in height") {
  const ConvNet net(3, 1, 1, 8);
  const Plan plan = plan_of(
      net.graph, {{{1, 4, 1, 1}, {0, 1, 0, 1}}, {{1, 2, 1, 1}, {0, 1}}, {{1}, {0}}}, {net.y}, {0});
  check(find(launch_of(plan, 1, Pass::forward), net.r, Field::value), Privilege::read,
        {rows(0, 5), rows(3, 8)});
  check(find(launch_of(plan, 1, Pass::backward), net.r), Privilege::write,
        {rows(0, 5).in_slots(0, 1), rows(3, 8).in_slots(1, 2)});
  CHECK(plan.gradients[net.r].slots == 2);
  CHECK_FALSE(plan.gradients[net.r].fully_written);
  check(find(launch_of(plan, 0, Pass::backward), net.r), Privilege::read,
        {rows(0, 2).in_slots(0, 1), rows(2, 4).in_slots(0, 2), rows(4, 6).in_slots(0, 2),
         rows(6, 8).in_slots(1, 2)});
  CHECK(plan.gradients[net.kernel].slots == 2);
  CHECK(plan.gradients[net.kernel].fully_written);
  check(find(launch_of(plan, 1, Pass::update), net.kernel, Field::value), Privilege::read_write,
        {rows(0, 1), rows(1, 3)});
}

// A window of 1 and stride 2: 4 positions on rows 0, 2, 4, 6. One task reads [0, 4*2 + 1 - 2) =
// [0, 7): nothing contributes to row 7, whose reader sums a slot that stays zero.
TEST_CASE("a row that a strided window skips") {
  const ConvNet net(1, 2, 0, 4);
  const Plan plan = plan_of(
      net.graph, {{{1, 8, 1, 1}, Devices(8, 0)}, {{1, 1, 1, 1}, {0}}, {{1}, {0}}}, {net.y}, {0});
  const Requirement* read = find(launch_of(plan, 0, Pass::backward), net.r);
  CHECK(read->rects[6] == rows(6, 7).in_slots(0, 1));
  CHECK(read->rects[7] == rows(7, 8).in_slots(0, 1));
  CHECK(plan.gradients[net.r].slots == 1);
  CHECK_FALSE(plan.gradients[net.r].fully_written);
}

// r feeds a second relu and, directly, the loss. Backward, the loss's task comes first and writes
// slot 0. The second relu's task touches the same rectangle: on the same device it adds into that
// slot; on another it takes slot 1, and the first relu sums the two.
TEST_CASE("two consumers of one tensor") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input, true);
  const TensorId r = net.tensor("r", {4, 6}), a = net.tensor("a", {4, 6});
  net.relu(x, r);
  net.relu(r, a);
  net.loss(a, r, net.tensor("losses", {4}));
  const Rect whole = box({{0, 4}, {0, 6}});
  for (int device : {0, 1}) {
    const Plan plan = plan_of(net.graph, {{{1, 1}, {0}}, {{1, 1}, {device}}, {{1}, {0}}}, {a}, {0});
    const int slots = device == 0 ? 1 : 2;
    CHECK(plan.gradients[r].slots == slots);
    CHECK(plan.gradients[r].fully_written);
    check(find(launch_of(plan, 2, Pass::backward), r), Privilege::write, {whole.in_slots(0, 1)});
    const Requirement* second = find(launch_of(plan, 1, Pass::backward), r);
    check(second, device == 0 ? Privilege::read_write : Privilege::write,
          {whole.in_slots(slots - 1, slots)});
    CHECK(second->adds == Adds{device == 0});
    check(find(launch_of(plan, 0, Pass::backward), r), Privilege::read, {whole.in_slots(0, slots)});
  }
}

// An operator that reads one tensor twice is one launch, whose contributions never add up in place.
TEST_CASE("one operator reads a tensor twice") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input, true);
  const TensorId r = net.tensor("r", {4, 6});
  net.relu(x, r);
  net.loss(r, r, net.tensor("losses", {4}));
  const Plan plan = plan_of(net.graph, {{{1, 1}, {0}}, {{1}, {0}}}, {r}, {0});
  CHECK(plan.gradients[r].slots == 2);
  check(find(launch_of(plan, 0, Pass::backward), r), Privilege::read,
        {box({{0, 4}, {0, 6}}).in_slots(0, 2)});
}

// Two steps with the same weights, split by samples over two devices. The later step's backward
// comes first and writes slots 0 (device 0) and 1 (device 1). The earlier step adds into the slot
// of its own device, also where its tasks are placed the other way round. One update, of the first
// user. If the earlier step runs on other devices, it takes slots of its own.
TEST_CASE("a weight that two operators use") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input);
  const TensorId w = net.weight("w", {6, 6}), b = net.weight("b", {6});
  const TensorId h = net.tensor("h", {4, 6}), y = net.tensor("y", {4, 6});
  const TensorId labels = net.tensor("l", {4, 6}, TensorKind::input);
  net.dense(x, w, b, h);
  net.dense(h, w, b, y);
  net.loss(y, labels, net.tensor("losses", {4}));
  const Rect whole = box({{0, 6}, {0, 6}});
  const auto plan_with = [&](const Devices& first) {
    return plan_of(net.graph, {{{2, 1}, first}, {{2, 1}, {0, 1}}, {{1}, {0}}}, {y}, {0});
  };

  Plan plan = plan_with({0, 1});
  CHECK(plan.gradients[w].slots == 2);
  const Requirement* later = find(launch_of(plan, 1, Pass::backward), w);
  check(later, Privilege::write, {whole.in_slots(0, 1), whole.in_slots(1, 2)});
  CHECK(later->adds == Adds{false, false});
  const Requirement* earlier = find(launch_of(plan, 0, Pass::backward), w);
  check(earlier, Privilege::read_write, {whole.in_slots(0, 1), whole.in_slots(1, 2)});
  CHECK(earlier->adds == Adds{true, true});
  CHECK(launch_of(plan, 1, Pass::update) == nullptr);
  check(find(launch_of(plan, 0, Pass::update), w), Privilege::read,
        {box({{0, 3}, {0, 6}}).in_slots(0, 2), box({{3, 6}, {0, 6}}).in_slots(0, 2)});

  plan = plan_with({1, 0});
  CHECK(plan.gradients[w].slots == 2);
  check(find(launch_of(plan, 0, Pass::backward), w), Privilege::read_write,
        {whole.in_slots(1, 2), whole.in_slots(0, 1)});

  plan = plan_with({2, 1});  // the first task cannot add, the second can
  CHECK(plan.gradients[w].slots == 3);
  earlier = find(launch_of(plan, 0, Pass::backward), w);
  check(earlier, Privilege::read_write, {whole.in_slots(2, 3), whole.in_slots(1, 2)});
  CHECK(earlier->adds == Adds{false, true});
}

// Parts that overlap ([0, 5) and [3, 8) of b) have no shards of their own: the whole is cut over
// all devices, in the order of their numbers.
TEST_CASE("a weight of which tasks read overlapping parts") {
  DenseNet net;
  net.graph.operators.front().operands[2].map[0] = window(1, 3, 1, 1);
  const Plan plan = plan_of(net.graph, {{{1, 2}, {1, 0}}, {{1}, {0}}}, {net.y}, {0});
  CHECK(plan.gradients[net.b].slots == 2);
  CHECK_FALSE(plan.gradients[net.b].fully_written);
  const Launch* update = launch_of(plan, 0, Pass::update);
  CHECK(update->devices == Devices{0, 1});
  check(find(update, net.b, Field::value), Privilege::read_write, {box({{0, 4}}), box({{4, 8}})});
  check(find(update, net.b), Privilege::read,
        {box({{0, 4}}).in_slots(0, 2), box({{4, 8}}).in_slots(0, 2)});
}

// The first user of the weights serves prediction only: the second, which trains, updates them.
TEST_CASE("a weight whose first user does not train") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input);
  const TensorId w = net.weight("w", {6, 6}), b = net.weight("b", {6});
  const TensorId p = net.tensor("p", {4, 6}), y = net.tensor("y", {4, 6});
  net.dense(x, w, b, p);
  net.dense(x, w, b, y);
  net.loss(y, x, net.tensor("losses", {4}));
  const Plan plan = plan_of(net.graph, {{{1, 1}, {0}}, {{1, 1}, {1}}, {{1}, {0}}}, {p}, {0});
  CHECK(launch_of(plan, 0, Pass::backward) == nullptr);
  CHECK(launch_of(plan, 0, Pass::update) == nullptr);
  CHECK(launch_of(plan, 1, Pass::update)->devices == Devices{1});
  CHECK(load_of(plan, x)->runs == (kTrains | kEvaluates | kPredicts));
}

// Training and evaluation want the loss, which reads the logits; prediction wants the softmax. So
// the softmax runs in prediction only and has no backward pass; labels are not loaded to predict.
// Without a prediction, nothing wants the softmax.
TEST_CASE("dead operators") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input);
  const TensorId w = net.weight("w", {8, 6}), b = net.weight("b", {8});
  const TensorId y = net.tensor("y", {4, 8}), p = net.tensor("p", {4, 8});
  const TensorId labels = net.tensor("labels", {4}, TensorKind::input, false, DataType::int32);
  const TensorId unused = net.tensor("unused", {4}, TensorKind::input);
  net.dense(x, w, b, y);
  net.relu(y, p);
  net.loss(y, labels, net.tensor("losses", {4}));
  const Strategy strategy = {{{1, 1}, {0}}, {{1, 1}, {1}}, {{1}, {0}}};
  const Plan plan = plan_of(net.graph, strategy, {p}, {0});
  CHECK(launch_of(plan, 0, Pass::forward)->runs == (kTrains | kEvaluates | kPredicts));
  CHECK(launch_of(plan, 1, Pass::forward)->runs == kPredicts);
  CHECK(launch_of(plan, 2, Pass::forward)->runs == (kTrains | kEvaluates));
  CHECK(launch_of(plan, 1, Pass::backward) == nullptr);
  CHECK(launch_of(plan, 2, Pass::backward)->runs == kTrains);
  CHECK(launch_of(plan, 0, Pass::update)->runs == kTrains);
  CHECK(plan.gradients[p].slots == 0);
  CHECK(plan.gradients[y].slots == 1);
  CHECK(load_of(plan, x)->runs == (kTrains | kEvaluates | kPredicts));
  CHECK(load_of(plan, labels)->runs == (kTrains | kEvaluates));
  CHECK(load_of(plan, unused) == nullptr);
  const Plan without = plan_of(net.graph, strategy, {}, {0});
  CHECK(launch_of(without, 1, Pass::forward) == nullptr);
  CHECK(load_of(without, x)->runs == (kTrains | kEvaluates));
}

// The first reader has two halves of the samples, in tasks 0-1 and 2-3: each half is loaded where
// the first task of it runs. A first reader that reads all samples gets one load, beside its first
// task.
TEST_CASE("loads follow the first reader") {
  DenseNet net;
  const Strategy strategy = {{{2, 2}, {3, 1, 2, 0}}, {{4}, {3, 2, 1, 0}}};
  Plan plan = plan_of(net.graph, strategy, {net.y}, {0});
  const Launch* load = load_of(plan, net.x);
  CHECK(load->devices == Devices{3, 2});
  check(find(load, net.x, Field::value), Privilege::write,
        {box({{0, 2}, {0, 6}}), box({{2, 4}, {0, 6}})});
  CHECK(load_of(plan, net.labels)->devices == Devices{3, 2, 1, 0});
  net.graph.operators.front().operands[0].map[0] = kWhole;
  plan = plan_of(net.graph, strategy, {net.y}, {0});
  load = load_of(plan, net.x);
  CHECK(load->devices == Devices{3});
  check(find(load, net.x, Field::value), Privilege::write, {box({{0, 4}, {0, 6}})});
}

TEST_CASE("strategies that do not fit throw") {
  const DenseNet net;
  const auto planned = [&](const Strategy& s) { return plan_of(net.graph, s, {net.y}, {0}); };
  const ParallelConfig loss = {{1}, {0}};
  CHECK_NOTHROW(planned({{{4, 8}, Devices(32, 0)}, loss}));
  CHECK_THROWS_AS(planned({}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{1, 1}, {0}}}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{1}, {0}}, loss}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{1, 1, 1}, {0}}, loss}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{0, 1}, {}}, loss}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{-1, -1}, {0}}, loss}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{5, 1}, Devices(5, 0)}, loss}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{2, 1}, {0}}, loss}), std::invalid_argument);
  CHECK_THROWS_AS(planned({{{1, 1}, {0, 1}}, loss}), std::invalid_argument);
  CHECK_THROWS_WITH(planned({{{1, 9}, Devices(9, 0)}, loss}),
                    doctest::Contains("operator 'dense': a degree outside 1..8"));
}

TEST_CASE("an operator without an output throws") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input);
  net.op("sink", {{x, Role::input, false, {along(0), along(1)}}});
  CHECK_THROWS_WITH_AS(plan_of(net.graph, {{{1, 1}, {0}}}, {x}, {0}),
                       doctest::Contains("'sink' has no output"), std::invalid_argument);
}

// The dense layer split by samples, on device 0, in elements. Values: x 2*6, w 8*6, b 8, y 2*8,
// labels 2, losses 2. Gradients: y 2*8; of w, slot 0 whole and both slots of the upper half, so
// both slots whole, 2*8*6; of b 2*8. State: w 4*6, b 4. The next batch: x 2*6, labels 2. Together
// 258, four bytes each.
// Where one device does everything, the state is whole and each gradient has one slot: values
// 24 + 48 + 8 + 32 + 4 + 4, gradients 32 + 48 + 8, state 48 + 8, the next batch 24 + 4: 292.
TEST_CASE("bytes_on_device") {
  const DenseNet net;
  const Plan split = plan_of(net.graph, {{{2, 1}, {0, 1}}, {{2}, {0, 1}}}, {net.y}, {1});
  CHECK(bytes_on_device(net.graph, split, 0) == 258 * 4);
  CHECK(bytes_on_device(net.graph, split, 1) == 258 * 4);
  CHECK(bytes_on_device(net.graph, split, 7) == 0);
  const Plan single = plan_of(net.graph, {{{1, 1}, {0}}, {{1}, {0}}}, {net.y}, {1});
  CHECK(bytes_on_device(net.graph, single, 0) == 292 * 4);
  const Plan two_states = plan_of(net.graph, {{{1, 1}, {0}}, {{1}, {0}}}, {net.y}, {2});
  CHECK(bytes_on_device(net.graph, two_states, 0) == (292 + 56) * 4);
}
