// The task graph and the full simulation, against timelines derived by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

#include "plan_harness.h"
#include "sim/full_simulation.h"
#include "sim/task_graph.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

namespace {

// Devices 0..n-1, each with a memory of its own, and one link for each direction of each pair.
MachineModel all_to_all(int n, std::int64_t bandwidth, std::int64_t latency) {
  MachineModel machine;
  machine.memories = n;
  machine.routes.resize(static_cast<std::size_t>(n * n));
  for (int a = 0; a < n; ++a) {
    machine.memory_of.push_back(a);
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      machine.routes[static_cast<std::size_t>(a * n + b)] = {
          static_cast<int>(machine.links.size())};
      machine.links.push_back({bandwidth, latency});
    }
  }
  return machine;
}

int add(TaskGraph& tasks, int device, std::int64_t exe_time) {
  tasks.exe_time.push_back(exe_time);
  tasks.device.push_back(device);
  tasks.key.push_back(static_cast<std::uint64_t>(tasks.size()));
  tasks.successors.emplace_back();
  tasks.all_devices = std::max(tasks.all_devices, device + 1);
  return tasks.size() - 1;
}

std::vector<std::int64_t> bytes_of_transfers(const TaskGraph& tasks) {
  std::vector<std::int64_t> bytes;
  for (std::int64_t b : tasks.bytes) {
    if (b > 0) bytes.push_back(b);
  }
  return bytes;
}

std::vector<std::int64_t> ones(const Plan& plan) {
  std::size_t n = 0;
  for (const Launch& launch : plan.launches) n += launch.devices.size();
  return std::vector<std::int64_t>(n, 1);
}

// x (4, 3) -> dense to (4, 2) -> loss, by samples on two devices.
std::pair<Net, Plan> data_parallel_dense() {
  Net net;
  const int x = net.tensor("x", {4, 3}, TensorKind::input);
  const int labels = net.tensor("labels", {4}, TensorKind::input, false, DataType::int32);
  const int w = net.weight("w", {2, 3}), b = net.weight("b", {2});
  const int y = net.tensor("y", {4, 2}), l = net.tensor("l", {4});
  net.dense(x, w, b, y);
  net.loss(y, labels, l);
  Plan plan = make_plan(net.graph, {{{2, 1}, {0, 1}}, {{2}, {0, 1}}}, y, 0);
  return {net, plan};
}

}  // namespace

TEST_CASE("transfer_time rounds up, and does not overflow") {
  CHECK(transfer_time(1, 1'000'000'000) == 1);
  CHECK(transfer_time(10, 3'000'000'000) == 4);  // 3.33 ns
  CHECK(transfer_time(std::int64_t{1} << 50, std::int64_t{1} << 30) == 1'048'576'000'000'000);
}

TEST_CASE("a device serves its tasks in the order of their ready times, ties by key") {
  // a (device 0, 5 ns) -> c (device 1, 2 ns); b (device 1, 7 ns) and d (device 1, 1 ns) are ready
  // at once. b comes first, by key: 0-7; then d 7-8, ready before c; then c, ready at 5: 8-10.
  TaskGraph tasks;
  const int a = add(tasks, 0, 5), b = add(tasks, 1, 7), c = add(tasks, 1, 2), d = add(tasks, 1, 1);
  tasks.successors[a].push_back({c, false, 0});
  const Timeline line = full_simulation(tasks);
  CHECK(line.start_time == std::vector<std::int64_t>{0, 0, 8, 7});
  CHECK(line.ready_time[c] == 5);
  CHECK(line.end_time[b] == 7);
  CHECK(line.end_time[d] == 8);
  CHECK(line.iteration_time == 10);
}

TEST_CASE("hops of a transfer overlap, cut-through") {
  // p ends at 3. First hop: ready at 3 + 2, 10 ns on a slow link: 5-15. Second hop: ready at 5 + 1,
  // a fast link, 4 ns; it starts at 6 but ends no earlier than the first: 15. Then the consumer:
  // 15-16.
  TaskGraph tasks;
  const int p = add(tasks, 0, 3), h1 = add(tasks, 2, 10), h2 = add(tasks, 3, 4);
  const int q = add(tasks, 1, 1);
  tasks.successors[p].push_back({h1, false, 2});
  tasks.successors[h1].push_back({h2, true, 1});
  tasks.successors[h2].push_back({q, false, 0});
  const Timeline line = full_simulation(tasks);
  CHECK(line.start_time[h1] == 5);
  CHECK(line.start_time[h2] == 6);
  CHECK(line.end_time[h2] == 15);
  CHECK(line.start_time[q] == 15);
  CHECK(line.iteration_time == 16);
}

TEST_CASE("a cycle is refused") {
  TaskGraph tasks;
  const int a = add(tasks, 0, 1), b = add(tasks, 0, 1);
  tasks.successors[a].push_back({b, false, 0});
  tasks.successors[b].push_back({a, false, 0});
  CHECK_THROWS_AS(full_simulation(tasks), std::invalid_argument);
}

TEST_CASE("transfers of a data-parallel dense layer") {
  // Each device has a memory of its own. Activations stay. The kernel (2, 3) has two partial
  // gradients, and shards of one column (8 bytes) and of two (16 bytes); the bias has shards of 4
  // bytes. Each device sends its partial value of the other's shards, and after the update its own
  // shards: eight transfers.
  const auto [net, plan] = data_parallel_dense();
  const MachineModel machine = all_to_all(2, 1'000'000'000, 0);
  const TaskGraph tasks = build_task_graph(net.graph, plan, machine, ones(plan));
  std::vector<std::int64_t> bytes = bytes_of_transfers(tasks);
  std::sort(bytes.begin(), bytes.end());
  CHECK(bytes == std::vector<std::int64_t>{4, 4, 4, 4, 8, 8, 16, 16});
  // On each device: two loads, dense, loss, and their backward tasks: ends at 6. At 1 byte/ns,
  // device 0 then sends 16 + 4 bytes until 26, device 1 8 + 4 until 18. Updates: 18-19 on device 0,
  // 26-27 on 1. Device 0's shards wait for its link: 26-38; device 1's go 27-47.
  CHECK(full_simulation(tasks).iteration_time == 47);
}

TEST_CASE("devices that share a memory exchange nothing") {
  Net net;
  const int x = net.tensor("x", {4, 3}, TensorKind::input, true);
  const int y = net.tensor("y", {4, 3}), z = net.tensor("z", {4, 3}), l = net.tensor("l", {4});
  const int labels = net.tensor("labels", {4, 3}, TensorKind::input);
  net.relu(x, y);
  net.relu(y, z);
  net.loss(z, labels, l);
  // The second relu is split by columns: each of its tasks needs half of each of the first's tiles.
  const Strategy strategy = {{{2, 1}, {0, 1}}, {{1, 3}, {1, 0, 1}}, {{1}, {0}}};
  const Plan plan = make_plan(net.graph, strategy, z, 0);
  MachineModel shared = all_to_all(2, 1'000'000'000, 0);
  shared.memory_of = {0, 0};
  CHECK(bytes_of_transfers(build_task_graph(net.graph, plan, shared, ones(plan))).empty());
  // Apart: tile 0 of y (2, 3), on device 0, is read by columns 0 and 2 on device 1: one transfer of
  // 2 x 2 elements, although two tasks, and their backward tasks, read parts of it.
  const TaskGraph apart =
      build_task_graph(net.graph, plan, all_to_all(2, 1'000'000'000, 0), ones(plan));
  std::vector<std::int64_t> of_tile;
  for (int t = 0; t < apart.size(); ++t) {
    const Launch& launch = plan.launches[apart.launch[t]];
    if (apart.bytes[t] > 0 && launch.op == 0 && launch.pass == Pass::forward &&
        apart.part[t] == 0) {
      of_tile.push_back(apart.bytes[t]);
    }
  }
  CHECK(of_tile == std::vector<std::int64_t>{16});
}

TEST_CASE("a missing route or device is refused") {
  const auto [net, plan] = data_parallel_dense();
  MachineModel machine = all_to_all(2, 1'000'000'000, 0);
  CHECK_THROWS_AS(build_task_graph(net.graph, plan, machine, {}), std::invalid_argument);
  machine.routes[1].clear();
  CHECK_THROWS_AS(build_task_graph(net.graph, plan, machine, ones(plan)), std::invalid_argument);
  CHECK_THROWS_AS(build_task_graph(net.graph, plan, all_to_all(1, 1, 0), ones(plan)),
                  std::invalid_argument);
}
