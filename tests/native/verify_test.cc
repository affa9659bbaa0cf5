// Plans that were broken by hand: verify() has to name what is wrong with each.
#include "plan/verify.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

namespace {

// The dense layer split both ways over four devices, with two optimizer states: the gradients of x
// and w have two slots each.
struct Broken {
  DenseNet net{true};
  Plan plan = make_plan(net.graph, {{{2, 2}, {0, 1, 2, 3}}, {{2}, {0, 1}}}, {net.y}, {2});

  Launch& launch(int op, Pass pass) { return const_cast<Launch&>(*launch_of(plan, op, pass)); }
  Requirement& requirement(int op, Pass pass, RequirementRole role, TensorId tensor) {
    for (Requirement& r : launch(op, pass).requirements) {
      if (r.role == role && r.tensor == tensor) return r;
    }
    throw std::logic_error("no such requirement");
  }
  void check(const std::string& message) const {
    CHECK_THROWS_WITH_AS(verify(net.graph, plan, 4), doctest::Contains(message.c_str()),
                         std::logic_error);
  }
};

using R = RequirementRole;

}  // namespace

TEST_CASE("a plan that was made is in order") {
  const Broken whole;
  CHECK_NOTHROW(verify(whole.net.graph, whole.plan, 4));
  CHECK_NOTHROW(verify(whole.net.graph, whole.plan));
  CHECK_THROWS_WITH(verify(whole.net.graph, whole.plan, 3),
                    doctest::Contains("forward 'dense': has a task on device 3, which there is "
                                      "not"));
}

TEST_CASE("launches out of order") {
  Broken broken;
  std::swap(broken.plan.launches[LaunchId(1)], broken.plan.launches[LaunchId(2)]);
  broken.check("load 'labels': comes after a later pass");
}

TEST_CASE("a rectangle outside its tensor") {
  Broken broken;
  broken.requirement(0, Pass::forward, R::input, broken.net.x).rects[1].hi[0] = 5;
  broken.check("forward 'dense': touches [0:5, 0:6] of 'x', which is [0:4, 0:6]");
}

TEST_CASE("a task without a rectangle") {
  Broken broken;
  broken.requirement(0, Pass::forward, R::input, broken.net.x).rects.pop_back();
  broken.check("forward 'dense': has no rectangle for each task, of 'x'");
}

TEST_CASE("a privilege that is not its role's") {
  Broken broken;
  broken.requirement(0, Pass::forward, R::weight, broken.net.w).privilege = Privilege::read_write;
  broken.check("forward 'dense': touches 'w' otherwise than its role says");
}

TEST_CASE("outputs that overlap, or leave something out") {
  Broken broken;
  Requirement& output = broken.requirement(0, Pass::forward, R::output, broken.net.y);
  output.rects[0].hi[1] = 5;
  broken.check("forward 'dense': tasks 0 and 1 meet in [0:2, 4:5] of 'y', which is written");
  output.rects[0].hi[1] = 3;
  // Its backward task still reads what was not written.
  broken.check("backward 'dense': touches other parts of the gradient of 'y'");
  broken.requirement(0, Pass::backward, R::output_gradient, broken.net.y).rects[0].hi[2] = 3;
  broken.check("backward 'dense': has 30 of the 32 elements of the gradient of 'y'");
}

TEST_CASE("values that are read too early, or written twice") {
  Broken broken;
  Plan without = broken.plan;
  broken.plan.launches.erase(broken.plan.launches.begin());  // the load of x
  broken.check("forward 'dense': reads 'x' before it is written");
  broken.plan = without;
  broken.plan.launches.insert(broken.plan.launches.begin(), without.launches.front());
  broken.check("load 'x': writes 'x', which was written before");
}

TEST_CASE("a backward task elsewhere than its forward task") {
  Broken broken;
  broken.launch(0, Pass::backward).devices[2] = 1;
  broken.check("backward 'dense': runs elsewhere than the forward launch");
}

TEST_CASE("contributions that meet") {
  Broken broken;
  Requirement& of_w = broken.requirement(0, Pass::backward, R::contribution, broken.net.w);
  of_w.rects[2].lo[0] = 0;
  of_w.rects[2].hi[0] = 1;
  broken.check("tasks 0 and 2 meet in [0:1, 0:4, 0:6] of the gradient of 'w', which is written");
  of_w.rects[2].hi[0] = 2;
  of_w.rects[0].hi[0] = 0;  // nothing
  broken.check("backward 'dense': touches other parts of the gradient of 'w'");
}

TEST_CASE("adding to what is not there") {
  Broken broken;
  Requirement& of_x = broken.requirement(0, Pass::backward, R::contribution, broken.net.x);
  of_x.adds[1] = true;
  broken.check("backward 'dense': touches the gradient of 'x' otherwise than its role says");
  of_x.privilege = Privilege::read_write;
  broken.check("backward 'dense': adds to [0:2, 0:6] of the gradient of 'x', where nothing is");
}

TEST_CASE("a slot that its reader leaves out") {
  Broken broken;
  broken.requirement(0, Pass::update, R::weight_gradient, broken.net.w).rects[1].hi[0] = 1;
  broken.check("update 'dense': leaves out slot 1 of [4:6, 0:6] of the gradient of 'w'");
}

TEST_CASE("a gradient that nobody reads") {
  Broken broken;
  auto& requirements = broken.launch(0, Pass::update).requirements;
  requirements.erase(requirements.begin());
  REQUIRE(requirements.front().role == R::updated);
  broken.check("the gradient of 'w' is computed, and nothing reads it");
}

TEST_CASE("a stack that is wrongly said to be fully written") {
  Broken broken;
  broken.plan.gradients[broken.net.w].slots = 3;
  broken.check("the gradient of 'w' does not start as zeros, though slot 2 is not written");
}

TEST_CASE("an update of other shards") {
  Broken broken;
  Requirement& state = broken.requirement(0, Pass::update, R::optimizer_state, broken.net.b);
  state.rects[0].hi[0] = 1;
  broken.check("update 'dense': touches other shards of an optimizer state of 'b' than of 'b'");
  state.rects[0].hi[0] = 2;
  auto& requirements = broken.launch(0, Pass::update).requirements;
  requirements.pop_back();
  broken.check("update 'dense': lacks a state of 'b'");
}

TEST_CASE("norms that are left out") {
  Broken broken;
  broken.plan = make_plan(broken.net.graph, {{{2, 2}, {0, 1, 2, 3}}, {{2}, {0, 1}}}, {broken.net.y},
                          {2, true});
  CHECK_NOTHROW(verify(broken.net.graph, broken.plan, 4));
  Requirement& read = broken.requirement(-1, Pass::clip, R::all_norms, {});
  read.rects[0].hi[0] = 3;
  broken.check("reads [0:3] of the iteration's norms, of which 4 of 4 are found");
  read.rects[0].hi[0] = 4;
  broken.requirement(0, Pass::norm, R::norm, {}).rects[1] = box({{0, 1}});
  broken.check("norm 'dense': tasks 0 and 1 meet in [0:1] of the iteration's norms");
  auto& launches = broken.plan.launches;
  launches.erase(launches.end() - 2);  // the clip launch
  broken.requirement(0, Pass::norm, R::norm, {}).rects[1] = box({{1, 2}});
  broken.check(
      "update 'dense': reads [0:1] of the iteration's total norm, of which 0 of 1 are found");
}

namespace {

// The dense layer split by its input over two devices, for a loss on the first.
struct BrokenPartial : Broken {
  ReducedDense reduced;

  explicit BrokenPartial(Sums sums) {
    plan = make_plan(reduced.graph, {{{1, 1, 2}, {0, 1}, sums}, {{1}, {0}}}, {reduced.y}, {2});
  }
  void check(const std::string& message) const {
    CHECK_THROWS_WITH_AS(verify(reduced.graph, plan, 4), doctest::Contains(message.c_str()),
                         std::logic_error);
  }
};

}  // namespace

TEST_CASE("partial values that their reader leaves out") {
  BrokenPartial broken(Sums::readers);
  broken.requirement(1, Pass::forward, R::input, broken.reduced.y).rects[0].lo[0] = 1;
  broken.check("forward 'loss': leaves out slots of [1:2, 0:4, 0:8] of partial values of 'y'");
}

TEST_CASE("partial values in each other's place") {
  BrokenPartial broken(Sums::readers);
  Requirement& output = broken.requirement(0, Pass::forward, R::output, broken.reduced.y);
  output.rects[1] = output.rects[0];
  broken.check("tasks 0 and 1 meet in [0:1, 0:4, 0:8] of partial values of 'y', which is written");
}

TEST_CASE("partial values that are read instead of what they were combined to") {
  BrokenPartial broken(Sums::shards);
  Requirement& input = broken.requirement(1, Pass::forward, R::input, broken.reduced.y);
  input.field = Field::partial;
  broken.check("forward 'loss': touches partial values of 'y' otherwise than its role says");
}

TEST_CASE("a sum that leaves something out, or is not there") {
  BrokenPartial broken(Sums::shards);
  broken.requirement(0, Pass::sum, R::summed, broken.reduced.y).rects[1].hi[0] = 3;
  broken.check("sum 'dense': has 24 of the 32 elements of 'y'");
  BrokenPartial without(Sums::shards);
  const auto is_sum = [](const Launch& launch) { return launch.pass == Pass::sum; };
  auto& launches = without.plan.launches;
  launches.erase(std::find_if(launches.begin(), launches.end(), is_sum));
  without.check("forward 'loss': reads 'y' before it is written");
}
