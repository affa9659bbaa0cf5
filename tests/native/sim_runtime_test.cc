// What simulations say of the runtime and of busy neighbours, against timelines derived by hand:
// the derivation stands before its test. Unless said otherwise, loads and updates take 1 ns.
#include <doctest/doctest.h>

#include <memory>

#include "sim_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;
using namespace flexlegion::sim_test;

// One device, on which each launch takes 10, but for those of dense's backward pass and of the
// update, which are fused with the loss's backward pass.
TEST_CASE("launches take time, unless they are fused with the one before") {
  const SmallDense net;
  Bench bench(net.graph, all_to_all(1));
  bench.problem.costs.runtime[0].dispatch = 10;
  Simulator simulator(bench.problem);
  simulator.set({bench.config(0, {1, 1}, {0}, 5, 7), bench.config(1, {1}, {0}, 2, 3)});
  CHECK(load(simulator, net.x) == Times{0, 0, 11});
  CHECK(load(simulator, net.labels) == Times{0, 11, 22});
  CHECK(task(simulator, Pass::forward, 0) == Times{11, 22, 37});
  CHECK(task(simulator, Pass::forward, 1) == Times{37, 37, 49});
  CHECK(task(simulator, Pass::backward, 1) == Times{49, 49, 62});
  CHECK(task(simulator, Pass::backward, 0) == Times{62, 62, 69});
  CHECK(task(simulator, Pass::update, 0) == Times{69, 69, 70});
  CHECK(simulator.iteration_time() == 70);
  CHECK(simulator.graph().load() == Times{20});  // what tasks take
}

// One device. The utility processor has 30 to do for the iteration, 5 for each launch with its
// task, and 1 for each of the two that are fused. Its core is the device's, so tasks pay for all of
// it.
TEST_CASE("without a core of its own, the utility processor takes the time of tasks") {
  const SmallDense net;
  Bench bench(net.graph, all_to_all(1));
  RuntimeCosts& runtime = bench.problem.costs.runtime[0];
  runtime = {30, 4, 1, 0, 10, 0, 1};
  const auto simulated = [&] {
    auto simulator = std::make_unique<Simulator>(bench.problem);
    simulator->set({bench.config(0, {1, 1}, {0}, 5, 7), bench.config(1, {1}, {0}, 2, 3)});
    return simulator;
  };
  const auto simulator = simulated();
  CHECK(load(*simulator, net.x) == Times{0, 0, 46});
  CHECK(load(*simulator, net.labels) == Times{0, 46, 62});
  CHECK(task(*simulator, Pass::forward, 0) == Times{46, 62, 82});
  CHECK(task(*simulator, Pass::forward, 1) == Times{82, 82, 99});
  CHECK(task(*simulator, Pass::backward, 1) == Times{99, 99, 117});
  CHECK(task(*simulator, Pass::backward, 0) == Times{117, 117, 125});
  CHECK(task(*simulator, Pass::update, 0) == Times{125, 125, 127});
  CHECK(simulator->iteration_time() == 127);
  runtime.cores = 2;  // a core of its own: all as if it had nothing to do
  CHECK(simulated()->iteration_time() == 70);
  runtime.iteration = 300;  // but no iteration is faster than it: 300, 5 launches, 7 tasks
  CHECK(simulated()->iteration_time() == 300 + 5 * 4 + 7);
}

// The operators of the next case on two devices of one memory, whose two cores are all there are.
// The batches are loaded at 0, on device 0 while device 1 has nothing to do; then both are busy,
// so device 1 pays: 0-31. Operator 0 goes 1-11. Its result wakes device 1 at 16, where operator 1
// goes 31-34, before operator 2 (ready at 31), 34-54. The loss is woken at 59.
TEST_CASE("an idle core does the utility processor's work; waking another device takes time") {
  Net net;
  const TensorId x = net.tensor("x", {4, 3}, TensorKind::input);
  const TensorId other = net.tensor("other", {4, 3}, TensorKind::input);
  const TensorId a = net.tensor("a", {4, 3}), b = net.tensor("b", {4, 3}),
                 c = net.tensor("c", {4, 3});
  net.relu(x, a);
  net.relu(a, b);
  net.relu(other, c);
  net.loss(b, c, net.tensor("l", {4}));
  MachineModel machine = all_to_all(2);
  machine.memory_of = {0, 0};
  Bench bench(net.graph, machine);
  bench.problem.costs.runtime = {{30, 0, 0, 0, 0, 5, 2}};
  Simulator simulator(bench.problem);
  simulator.set({bench.config(0, {1, 1}, {0}, 10), bench.config(1, {1, 1}, {1}, 3),
                 bench.config(2, {1, 1}, {1}, 20), bench.config(3, {1}, {0}, 2)});
  CHECK(load(simulator, x) == Times{0, 0, 1});
  CHECK(load(simulator, other) == Times{0, 0, 31});
  CHECK(task(simulator, Pass::forward, 0) == Times{1, 1, 11});
  CHECK(task(simulator, Pass::forward, 1) == Times{16, 31, 34});
  CHECK(task(simulator, Pass::forward, 2) == Times{31, 34, 54});
  CHECK(task(simulator, Pass::forward, 3) == Times{59, 59, 61});
  // Each dependency between the devices makes 7 more to do: of operator 1 on operator 0, and of the
  // loss on operators 1 and 2. Device 1 has nothing else to do when the loss starts, but operator 1
  // starts beside a device that is idle, too, so nobody pays; only the least time knows of it.
  CHECK(simulator.graph().crossings() == 3);
  bench.problem.costs.runtime[0].crossing = 7;
  bench.problem.costs.runtime[0].iteration = 100;
  Simulator another(bench.problem);
  another.set(simulator.graph().strategy());
  CHECK(another.iteration_time() >= 100 + 3 * 7);
}

// Two devices of one memory, on which tasks take 1/2 longer beside a busy neighbour, and those of
// the loss 1/4. Both batches are loaded at 0-1. Operator 0 starts when the other device has nothing
// to do yet: 1-11. So operator 2, which takes 20, pays 10: 1-31. Operator 1, which takes 5,
// pays 2.5 of it, rounded down: 11-18. The loss has a part on each device, and both pay: 4 and 1,
// 31-36. Loads of devices leave that out.
TEST_CASE("beside busy neighbours, tasks take longer") {
  Net net;
  const TensorId x = net.tensor("x", {4, 3}, TensorKind::input);
  const TensorId other = net.tensor("other", {4, 3}, TensorKind::input);
  const TensorId a = net.tensor("a", {4, 3}), b = net.tensor("b", {4, 3}),
                 c = net.tensor("c", {4, 3});
  net.relu(x, a);
  net.relu(a, b);
  net.relu(other, c);
  net.loss(b, c, net.tensor("l", {4}));
  MachineModel machine = all_to_all(2);
  machine.memory_of = {0, 0};
  Bench bench(net.graph, machine);
  const PricedStrategy strategy = {
      bench.config(0, {1, 1}, {0}, 10), bench.config(1, {1, 1}, {0}, 5),
      bench.config(2, {1, 1}, {1}, 20), bench.config(3, {2}, {0, 1}, 4)};
  bench.problem.costs.contended = true;
  for (OpId op : net.graph.operators.ids()) {
    Split& split = bench.problem.costs.splits[op].front();
    const auto tasks = static_cast<std::size_t>(split.tasks);
    split.forward_contention.assign(tasks, op.value < 3 ? 500 : 250);
  }
  Simulator simulator(bench.problem);
  simulator.set(strategy);
  CHECK(load(simulator, x) == Times{0, 0, 1});
  CHECK(load(simulator, other) == Times{0, 0, 1});
  CHECK(task(simulator, Pass::forward, 0) == Times{1, 1, 11});
  CHECK(task(simulator, Pass::forward, 1) == Times{11, 11, 18});
  CHECK(task(simulator, Pass::forward, 2) == Times{1, 1, 31});
  for (const int part : {0, 1}) {
    CHECK(task(simulator, Pass::forward, 3, part) == Times{31, 31, 36});
  }
  const Times& load_of = simulator.graph().load();
  CHECK(Times(load_of.begin(), load_of.begin() + 2) == Times{20, 25});
}
