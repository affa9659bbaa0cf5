// Sketches, with bundles of transfers, by hand.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim_harness.h"

using namespace flexlegion;
using namespace flexlegion::sim_test;

namespace {

// x (8, 4) -> relu -> relu -> loss, on four devices: the first is split by samples, the second by
// units, so each task of the second needs a piece of every one of the first.
struct Exchange : Net {
  Exchange() {
    const TensorId x = tensor("x", {8, 4}, TensorKind::input);
    const TensorId y = tensor("y", {8, 4}), z = tensor("z", {8, 4});
    const TensorId labels = tensor("labels", {8}, TensorKind::input, false, DataType::int32);
    relu(x, y);
    relu(y, z);
    loss(z, labels, tensor("losses", {8}));
  }

  // The first two on all of these, the loss on one.
  static PricedStrategy on(Bench& bench, const Devices& devices) {
    const int count = static_cast<int>(devices.size());
    PricedStrategy strategy;
    strategy.push_back(bench.config(0, {count, 1}, devices, 100));
    strategy.push_back(bench.config(1, {1, count}, devices, 1000));
    strategy.push_back(bench.config(2, {1}, {0}));
    return strategy;
  }
};

}  // namespace

TEST_CASE("a bundle begins after its last writer, and is there when its last link is done") {
  const Exchange net;
  Bench bench(net.graph, all_to_all(4, 50));
  const PricedStrategy strategy = net.on(bench, {0, 1, 2, 3});
  // The third task of the first operator takes longer.
  bench.problem.costs.splits[OpId(0)].front().forward[2] = 700;

  Simulator exact(bench.problem), coarse(bench.problem, Detail::bundles);
  exact.set(strategy);
  coarse.set(strategy);
  const std::int64_t bytes = 2 * 1 * 4;  // two samples of a unit, 1 ns a byte
  // Each transfer by itself: the others' pieces are early, the late one arrives last. The task
  // beside the late one waits for nobody's.
  const std::int64_t loaded = task(exact, Pass::forward, 0, 2)[1];
  CHECK(task(exact, Pass::forward, 1, 0)[1] == loaded + 700 + 50 + bytes);
  CHECK(task(exact, Pass::forward, 1, 2)[1] == loaded + 700);
  // Together, all tasks wait for the last of all. What comes after the second operator begins when
  // its last task has ended, in both.
  CHECK(coarse.iteration_time() == exact.iteration_time());
  CHECK(bytes_moved(coarse) == bytes_moved(exact));
  CHECK(coarse.graph().memory() == exact.graph().memory());
  CHECK(coarse.graph().load() == exact.graph().load());
  CHECK(coarse.graph().tasks() <= exact.graph().tasks());
  // The path goes back from the loss to the first operator, by way of both flows.
  const std::vector<int> path = coarse.sketch().critical_path();
  for (int op = 0; op < 3; ++op) {
    const int launch = coarse.graph().launch_of(Pass::forward, OpId(op));
    CHECK(std::find(path.begin(), path.end(), launch) != path.end());
  }
  CHECK(std::any_of(path.begin(), path.end(), [](int owner) { return owner < 0; }));
}

TEST_CASE("few transfers are no bundle") {
  const MachineModel machine = all_to_all(2);
  const Exchange net;
  Bench bench(net.graph, machine);
  const PricedStrategy strategy = net.on(bench, {0, 1});
  Simulator exact(bench.problem), coarse(bench.problem, Detail::bundles);
  exact.set(strategy);
  coarse.set(strategy);
  CHECK(coarse.graph().tasks() == exact.graph().tasks());
  CHECK(coarse.iteration_time() == exact.iteration_time());
}

TEST_CASE("a sketch gives up beyond its limit, and not at it") {
  const Exchange net;
  Bench bench(net.graph, all_to_all(4, 50));
  const PricedStrategy strategy = net.on(bench, {0, 1, 2, 3});
  Simulator coarse(bench.problem, Detail::bundles);
  coarse.set(strategy);
  const std::int64_t time = coarse.iteration_time();
  CHECK(coarse.judge(strategy, time) == Verdict::simulated);
  CHECK(coarse.iteration_time() == time);
  CHECK(coarse.judge(strategy, time - 1) != Verdict::simulated);
}

TEST_CASE("a route may pass a link twice, and the path to the end is finite") {
  MachineModel machine = all_to_all(2);
  machine.routes = Routes::of_table(2, {{}, {0, 0}, {1, 1}, {}});
  const Exchange net;
  Bench bench(net.graph, machine);
  const PricedStrategy strategy = net.on(bench, {0, 1});
  Simulator coarse(bench.problem, Detail::bundles);
  coarse.set(strategy);
  CHECK(coarse.iteration_time() > 0);
  CHECK(coarse.sketch().critical_path().size() < 20);
}

TEST_CASE("what has too many transfers to simulate need not be sketched") {
  const Exchange net;
  Bench bench(net.graph, all_to_all(4));
  const PricedStrategy strategy = net.on(bench, {0, 1, 2, 3});
  Simulator coarse(bench.problem, Detail::bundles);
  coarse.set(strategy);
  const std::int64_t all = coarse.graph().all_tasks();
  coarse.most_transfers = all;
  CHECK(coarse.judge(strategy, kNever) == Verdict::simulated);
  coarse.most_transfers = all - 1;
  CHECK(coarse.judge(strategy, kNever) == Verdict::too_fine);
}
