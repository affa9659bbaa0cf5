// The simulator, against timelines derived by hand: the derivation stands before its test. Unless
// said otherwise, loads and updates take 1 ns, and a link moves 1 byte a ns.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "search/proposals.h"
#include "search/symmetry.h"
#include "sim/memory.h"
#include "sim_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;
using namespace flexlegion::sim_test;

namespace {

int flow_of(const Simulator& simulator, FlowKind kind, int number) {
  const auto& ids = simulator.graph().flow_ids();
  for (std::size_t f = 0; f < ids.size(); ++f) {
    if (ids[f].kind == kind && number_of(ids[f]) == number) return static_cast<int>(f);
  }
  return -1;
}

Times hop(const Simulator& simulator, int flow, int number) {
  const Timeline& line = simulator.timeline();
  const int t = line.first_hop[flow] + number;
  return {line.ready_time[t], line.start_time[t], line.end_time[t]};
}

// (from, to, bytes) of a flow's transfers.
std::vector<Times> transfers(const Simulator& simulator, int flow) {
  const Flow& its = *simulator.graph().flows()[flow];
  std::vector<Times> result;
  for (int t = 0; t < its.transfer_count(); ++t) {
    result.push_back({its.transfers[t].from, its.transfers[t].to, its.transfers[t].bytes});
  }
  return result;
}

// Everything that a simulator says about what it holds.
struct Picture {
  Times load, memory, ready, start, end, peak;
  std::int64_t bytes, tasks, iteration;

  explicit Picture(const Simulator& simulator)
      : load(simulator.graph().load()),
        memory(simulator.graph().memory()),
        peak(peak_memory(simulator.graph(), simulator.timeline())),
        bytes(bytes_moved(simulator)),
        tasks(simulator.graph().tasks()),
        iteration(simulator.iteration_time()) {
    const Timeline& line = simulator.timeline();
    ready.assign(line.ready_time.begin(), line.ready_time.begin() + line.tasks);
    start.assign(line.start_time.begin(), line.start_time.begin() + line.tasks);
    end.assign(line.end_time.begin(), line.end_time.begin() + line.tasks);
  }
  bool operator==(const Picture& o) const {
    return load == o.load && memory == o.memory && ready == o.ready && start == o.start &&
           end == o.end && peak == o.peak && bytes == o.bytes && tasks == o.tasks &&
           iteration == o.iteration;
  }
};

}  // namespace

TEST_CASE("transfer_time rounds up, is cut, and does not overflow") {
  CHECK(transfer_time(0, 1) == 0);
  CHECK(transfer_time(1, 1'000'000'000) == 1);
  CHECK(transfer_time(10, 3'000'000'000) == 4);  // 3.33 ns
  CHECK(transfer_time(9, 3'000'000'000) == 3);
  // 2^40 bytes at 2^30 a second: 1024 s; at one byte a second beyond the largest time.
  CHECK(transfer_time(std::int64_t{1} << 40, std::int64_t{1} << 30) == 1'024'000'000'000);
  CHECK(transfer_time(std::int64_t{1} << 40, 1) == kMaxTime);
  CHECK(transfer_time(7'999'999'999, 1) == kMaxTime);  // the last that fits into 64 bits
  // The two ways to compute it meet at 8 GB.
  CHECK(transfer_time(7'999'999'999, 8'000'000'000) == 1'000'000'000);
  CHECK(transfer_time(8'000'000'000, 8'000'000'000) == 1'000'000'000);
  CHECK(transfer_time(8'000'000'001, 8'000'000'000) == 1'000'000'001);
}

// One device. Both loads are ready at 0: x goes first, by its number. Dense is ready at 1, but the
// device is free at 2: 2-7. Loss forward 7-9 and backward 9-12; dense backward 12-19; update 19-20.
TEST_CASE("one device: ties by task number, the whole iteration") {
  const SmallDense net;
  Bench bench(net.graph, all_to_all(1));
  Simulator simulator(bench.problem);
  simulator.set({bench.config(0, {1, 1}, {0}, 5, 7), bench.config(1, {1}, {0}, 2, 3)});
  CHECK(load(simulator, net.x) == Times{0, 0, 1});
  CHECK(load(simulator, net.labels) == Times{0, 1, 2});
  CHECK(task(simulator, Pass::forward, 0) == Times{1, 2, 7});
  CHECK(task(simulator, Pass::forward, 1) == Times{7, 7, 9});
  CHECK(task(simulator, Pass::backward, 1) == Times{9, 9, 12});
  CHECK(task(simulator, Pass::backward, 0) == Times{12, 12, 19});
  CHECK(task(simulator, Pass::update, 0) == Times{19, 19, 20});
  CHECK(simulator.iteration_time() == 20);
  CHECK(simulator.graph().load() == Times{20});
  CHECK(bytes_moved(simulator) == 0);
}

// Two devices of one memory. Operator 1 (after operator 0, which ends at 11) and operator 2 (ready
// at 1) are on device 1: operator 2 goes first, although its number is higher, and is not
// interrupted: 1-21; operator 1 is ready at 11 and goes 21-24.
TEST_CASE("a device serves by ready time before number") {
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
  Simulator simulator(bench.problem);
  simulator.set({bench.config(0, {1, 1}, {0}, 10), bench.config(1, {1, 1}, {1}, 3),
                 bench.config(2, {1, 1}, {1}, 20), bench.config(3, {1}, {0}, 2)});
  CHECK(task(simulator, Pass::forward, 0) == Times{1, 1, 11});
  CHECK(task(simulator, Pass::forward, 2) == Times{1, 1, 21});
  CHECK(task(simulator, Pass::forward, 1) == Times{11, 21, 24});
  CHECK(task(simulator, Pass::forward, 3) == Times{24, 24, 26});
  CHECK(bytes_moved(simulator) == 0);
}

// relu on device 0 ends at 4 and sends 40 bytes to the loss on device 1, over two links.
// First slow, then fast: hop 0 is ready at 4 + 2, takes 40 ns: 6-46. Hop 1 is ready at 6 + 1, needs
// 10 ns, and starts at 7, but ends no earlier than hop 0: 46. Loss: 46-48.
// First fast, then slow: 6-16 and 7-47; loss 47-49.
TEST_CASE("hops of a transfer overlap, cut-through") {
  for (const bool slow_first : {true, false}) {
    CAPTURE(slow_first);
    Net net;
    const TensorId x = net.tensor("x", {2, 5}, TensorKind::input), y = net.tensor("y", {2, 5});
    const TensorId labels = net.tensor("labels", {2}, TensorKind::input, false, DataType::int32);
    net.relu(x, y);
    net.loss(y, labels, net.tensor("l", {2}));
    MachineModel machine = all_to_all(2);
    const std::int64_t fast = 4'000'000'000, slow = 1'000'000'000;
    machine.links = {{slow_first ? slow : fast, 2}, {slow_first ? fast : slow, 1}};
    machine.routes = Routes::of_table(2, {{}, {0, 1}, {0, 1}, {}});
    Bench bench(net.graph, machine);
    Simulator simulator(bench.problem);
    const PricedConfig relu = bench.config(0, {1, 1}, {0}, 3);
    simulator.set({relu, bench.config(1, {1}, {1}, 2)});
    const int flow = flow_of(simulator, FlowKind::value, y.value);
    CHECK(hop(simulator, flow, 0) == Times{6, 6, slow_first ? 46 : 16});
    CHECK(hop(simulator, flow, 1) == Times{7, 7, slow_first ? 46 : 47});
    const std::int64_t end = slow_first ? 48 : 49;
    CHECK(simulator.iteration_time() == end);
    // Lower bounds know about that: the same strategy passes at just this limit.
    CHECK(simulator.propose({{OpId(0), relu}}, Algorithm::full, end) == Verdict::simulated);
    simulator.reject();
    CHECK(simulator.propose({{OpId(0), relu}}, Algorithm::delta, end - 1) != Verdict::simulated);
  }
}

// Split by samples on two devices, every task 1 ns: dense backward ends at 6 on both. The kernel
// (2, 3) has shards of one row, 12 bytes, the bias of 4 bytes each. All weights of the layer travel
// together: each device sends the gradient of the other's shards, 16 bytes, 6-22, updates its own,
// 22-23, and sends them, 23-39.
TEST_CASE("transfers of a data-parallel dense layer") {
  const SmallDense net;
  Bench bench(net.graph, all_to_all(2));
  Simulator simulator(bench.problem);
  simulator.set({bench.config(0, {2, 1}, {0, 1}), bench.config(1, {2}, {0, 1})});
  CHECK(task(simulator, Pass::backward, 0, 0) == Times{5, 5, 6});
  CHECK(task(simulator, Pass::backward, 0, 1) == Times{5, 5, 6});
  const int flow = flow_of(simulator, FlowKind::weights, 0);
  CHECK(transfers(simulator, flow) ==
        std::vector<Times>{{0, 1, 16}, {1, 0, 16}, {0, 1, 16}, {1, 0, 16}});
  CHECK(hop(simulator, flow, 0) == Times{6, 6, 22});
  CHECK(hop(simulator, flow, 1) == Times{6, 6, 22});
  CHECK(task(simulator, Pass::update, 0, 0) == Times{22, 22, 23});
  CHECK(task(simulator, Pass::update, 0, 1) == Times{22, 22, 23});
  CHECK(hop(simulator, flow, 2) == Times{23, 23, 39});
  CHECK(hop(simulator, flow, 3) == Times{23, 23, 39});
  CHECK(simulator.iteration_time() == 39);
  CHECK(bytes_moved(simulator) == 64);
  CHECK(simulator.graph().load() == Times{7, 7, 32, 32});
}

// Rows of y on devices 0 and 1; columns 0 and 2 of z on device 1, column 1 on device 0. Device 1
// needs columns 0 and 2 of the upper rows: 2 x 2 elements, one transfer for two tasks. Device 0
// needs column 1 of the lower rows: 2 elements. With one memory nothing moves.
TEST_CASE("a transfer for each writer and memory; none within a memory") {
  Net net;
  const TensorId x = net.tensor("x", {4, 3}, TensorKind::input);
  const TensorId y = net.tensor("y", {4, 3}), z = net.tensor("z", {4, 3});
  net.relu(x, y);
  net.relu(y, z);
  net.loss(z, net.tensor("labels", {4, 3}, TensorKind::input), net.tensor("l", {4}));
  for (const bool shared : {false, true}) {
    MachineModel machine = all_to_all(2);
    if (shared) machine.memory_of = {0, 0};
    Bench bench(net.graph, machine);
    Simulator simulator(bench.problem);
    simulator.set({bench.config(0, {2, 1}, {0, 1}), bench.config(1, {1, 3}, {1, 0, 1}),
                   bench.config(2, {1}, {0})});
    const int flow = flow_of(simulator, FlowKind::value, y.value);
    const auto expected = shared ? std::vector<Times>{} : std::vector<Times>{{0, 1, 16}, {1, 0, 8}};
    CHECK(transfers(simulator, flow) == expected);
    if (shared) CHECK(bytes_moved(simulator) == 0);
  }
}

// A window of 3 over 8 rows, in halves on device 1: they need rows [0, 5) and [3, 8) of what device
// 0 has; the two rows that both need are sent once: 8 x 4 bytes, not 10 x 4.
TEST_CASE("overlapping needs are united") {
  Net net;
  const TensorId x = net.tensor("x", {8}, TensorKind::input), y = net.tensor("y", {8});
  const TensorId z = net.tensor("z", {8});
  net.op("copy", {{x, Role::input, false, {along(0)}}, {y, Role::output, false, {along(0)}}});
  net.op("window",
         {{y, Role::input, false, {window(0, 3, 1, 1)}}, {z, Role::output, false, {along(0)}}});
  net.loss(z, net.tensor("labels", {8}, TensorKind::input), net.tensor("l", {8}));
  Bench bench(net.graph, all_to_all(2));
  Simulator simulator(bench.problem);
  simulator.set(
      {bench.config(0, {1}, {0}), bench.config(1, {2}, {1, 1}), bench.config(2, {1}, {1})});
  CHECK(transfers(simulator, flow_of(simulator, FlowKind::value, y.value)) ==
        std::vector<Times>{{0, 1, 32}});
}

// h (4, 6) is read whole by both channel halves of a dense layer, on two devices: its gradient is
// the sum of two partial values of 96 bytes, one of which crosses. Summing takes 5 ns and 1 ns for
// each of 192 bytes, and is part of relu's backward task: 3 + 197.
TEST_CASE("partial gradients are summed before the backward task that reads them") {
  Net net;
  const TensorId x = net.tensor("x", {4, 6}, TensorKind::input, true), h = net.tensor("h", {4, 6});
  const TensorId y = net.tensor("y", {4, 8});
  net.relu(x, h);
  net.dense(h, net.weight("w", {8, 6}), net.weight("b", {8}), y);
  net.loss(y, net.tensor("labels", {4}, TensorKind::input), net.tensor("l", {4}));
  Bench bench(net.graph, all_to_all(2));
  bench.problem.costs.sum = {{5, 1'000'000'000}};
  Simulator simulator(bench.problem);
  const PricedConfig relu = bench.config(0, {1, 1}, {0}, 1, 3), loss = bench.config(2, {1}, {0});
  simulator.set({relu, bench.config(1, {1, 2}, {0, 1}), loss});
  const int flow = flow_of(simulator, FlowKind::gradient, h.value);
  CHECK(transfers(simulator, flow) == std::vector<Times>{{1, 0, 96}});
  const Times backward = task(simulator, Pass::backward, 0);
  CHECK(backward[0] == hop(simulator, flow, 0)[2]);
  CHECK(backward[2] - backward[1] == 200);
  // With one reader there is nothing to sum.
  CHECK(simulator.propose({{OpId(1), bench.config(1, {1, 1}, {1})}}, Algorithm::delta) ==
        Verdict::simulated);
  const Times alone = task(simulator, Pass::backward, 0);
  CHECK(alone[2] - alone[1] == 3);
}

// Channels of x in halves on devices 0 and 1: x is loaded on device 0, 0-1, which sends half of it
// (48 bytes), 1-49. Dense: 1-6 and 49-54. Both halves compute a partial value of all of y, 128
// bytes, and a sum takes 1 ns a byte.
//
// The loss reads both on device 1: that of device 0 comes behind x, 49-177. It sums 256 bytes,
// forward, 177-435, and backward, 435-694. Device 0 needs y's whole gradient as device 1 does: 128
// bytes, 694-822; dense backward 822-829 and 694-701. Each updates its half of w: 829-830.
//
// Or they sum half of the samples each, having sent each other 64 bytes: 49-113 and 54-118. The
// sums of 128 bytes take 118-246 and 113-241. Device 0 sends its half of y, 246-310; the loss takes
// 310-312 and 312-315, the gradient comes 315-443, dense backward 443-450, the update 450-451.
TEST_CASE("partial values are combined by who reads them, or by who wrote them") {
  const ReducedDense net;
  Bench bench(net.graph, all_to_all(2));
  bench.problem.costs.sum = {{0, 1'000'000'000}};
  for (const Sums sums : {Sums::readers, Sums::shards}) {
    const bool shards = sums == Sums::shards;
    CAPTURE(shards);
    const ParallelConfig dense{{1, 1, 2}, {0, 1}, sums}, loss{{1}, {1}};
    Simulator simulator(bench.problem);
    simulator.set({bench.config(0, dense, 5, 7), bench.config(1, loss, 2, 3)});
    CHECK(task(simulator, Pass::forward, 0, 0) == Times{1, 1, 6});
    CHECK(task(simulator, Pass::forward, 0, 1) == Times{49, 49, 54});
    const std::vector<Times> partial = {{0, 1, 64}, {1, 0, 64}}, summed = {{0, 1, 64}};
    const int value = flow_of(simulator, FlowKind::value, net.y.value);
    if (shards) {
      CHECK(transfers(simulator, flow_of(simulator, FlowKind::partial, net.y.value)) == partial);
      CHECK(transfers(simulator, value) == summed);
      CHECK(task(simulator, Pass::sum, 0, 0) == Times{118, 118, 246});
      CHECK(task(simulator, Pass::sum, 0, 1) == Times{113, 113, 241});
      CHECK(task(simulator, Pass::forward, 1) == Times{310, 310, 312});
      CHECK(task(simulator, Pass::backward, 1) == Times{312, 312, 315});
      CHECK(task(simulator, Pass::backward, 0, 0) == Times{443, 443, 450});
      CHECK(simulator.iteration_time() == 451);
      CHECK(bytes_moved(simulator) == 48 + 64 + 64 + 64 + 128);
    } else {
      CHECK(transfers(simulator, value) == std::vector<Times>{{0, 1, 128}});
      CHECK(task(simulator, Pass::forward, 1) == Times{177, 177, 435});
      CHECK(task(simulator, Pass::backward, 1) == Times{435, 435, 694});
      CHECK(task(simulator, Pass::backward, 0, 1) == Times{694, 694, 701});
      CHECK(task(simulator, Pass::backward, 0, 0) == Times{822, 822, 829});
      CHECK(simulator.iteration_time() == 830);
      CHECK(bytes_moved(simulator) == 48 + 128 + 128);
    }
    const Plan plan = plan_of(net.graph, {dense, loss}, {}, {});
    for (int d = 0; d < 2; ++d) {
      CHECK(simulator.graph().memory()[static_cast<std::size_t>(d)] ==
            bytes_on_device(net.graph, plan, d));
    }
    const std::int64_t end = simulator.iteration_time();
    CHECK(simulator.longest_path() <= end);
    CHECK(simulator.propose({{OpId(0), simulator.graph().strategy().front()}}, Algorithm::delta,
                            end) == Verdict::simulated);
  }
}

// The strategy of "one device" takes 20 ns. With a backward task of 30 ns that task alone is beyond
// a limit of 29. Moved to device 1, every load is small, but the chain of dependencies is longer.
TEST_CASE("verdicts on proposals") {
  const SmallDense net;
  Bench bench(net.graph, all_to_all(2, 100));
  Simulator simulator(bench.problem);
  const PricedConfig dense = bench.config(0, {1, 1}, {0}, 5, 7),
                     loss = bench.config(1, {1}, {0}, 2, 3);
  const PricedConfig slow = bench.config(0, {1, 1}, {0}, 5, 30);
  const PricedConfig away = {loss.split, Sums::readers, {1}};
  simulator.set({dense, loss});
  const Picture held(simulator);
  for (const Algorithm algorithm : {Algorithm::full, Algorithm::delta}) {
    CHECK(simulator.propose({{OpId(0), slow}}, algorithm, 29) == Verdict::overloaded);
    simulator.reject();
    CHECK(Picture(simulator) == held);
    // Dense 1-6; y (32 bytes) arrives at 138; loss forward and backward until 143.
    CHECK(simulator.propose({{OpId(1), away}}, algorithm, 142) == Verdict::overlong);
    simulator.reject();
    CHECK(Picture(simulator) == held);
    CHECK(simulator.propose({{OpId(0), slow}}, algorithm, 43) == Verdict::simulated);
    CHECK(simulator.iteration_time() == 43);
    simulator.reject();
    CHECK(Picture(simulator) == held);
    CHECK(simulator.propose({{OpId(0), slow}}, algorithm, 42) != Verdict::simulated);
    simulator.reject();
    CHECK(Picture(simulator) == held);
    simulator.most_tasks = 7;
    CHECK(simulator.propose({{OpId(1), away}}, algorithm) == Verdict::too_fine);
    simulator.reject();
    simulator.most_tasks = kNever;
  }
  // Without early rejection a limit decides nothing.
  simulator.early_rejection = false;
  CHECK(simulator.propose({{OpId(0), slow}}, Algorithm::delta, 1) == Verdict::simulated);
}

TEST_CASE("a proposal leaves no trace when it is rejected, and counts when it is accepted") {
  const SmallDense net;
  Bench bench(net.graph, all_to_all(3, 5), 2);
  Simulator simulator(bench.problem), other(bench.problem);
  const PricedConfig one = bench.config(0, {1, 1}, {2}, 9, 4), loss = bench.config(1, {2}, {0, 2});
  const PricedConfig two = bench.config(0, {2, 2}, {0, 1, 2, 1}, 3, 2);
  const PricedConfig samples = bench.config(0, {4, 1}, {0, 0, 1, 2}, 2, 2);
  simulator.set({one, loss});
  const Picture first(simulator);
  for (const Algorithm algorithm : {Algorithm::delta, Algorithm::full}) {
    // An operator that stands there twice has its last configuration.
    CHECK(simulator.propose({{OpId(0), two}, {OpId(0), samples}}, algorithm) == Verdict::simulated);
    other.set({samples, loss});
    CHECK(Picture(simulator) == Picture(other));
    simulator.reject();
    CHECK(Picture(simulator) == first);
    CHECK(simulator.graph().strategy() == std::vector<PricedConfig>{one, loss});
  }
  CHECK(simulator.propose({{OpId(0), two}, {OpId(1), {loss.split, Sums::readers, {1, 1}}}},
                          Algorithm::delta) == Verdict::simulated);
  simulator.accept();
  other.set({two, {loss.split, Sums::readers, {1, 1}}});
  CHECK(Picture(simulator) == Picture(other));
  simulator.reject();  // of nothing
  CHECK(Picture(simulator) == Picture(other));
}

// On one device: weights, their gradients and two optimizer states, 4 x 8 elements, stay; x and
// labels (12 and 4), both twice, as the next batch is staged; y and its gradient (8 each); losses
// (4).
TEST_CASE("out of memory") {
  const SmallDense net;
  MachineModel machine = all_to_all(1);
  for (const std::int64_t missing : {0, 1}) {
    CAPTURE(missing);
    machine.capacity = {4 * (4 * 8 + 2 * (12 + 4) + 2 * 8 + 4) - missing};
    Bench bench(net.graph, machine, 2);
    Simulator simulator(bench.problem);
    const PricedConfig dense = bench.config(0, {1, 1}, {0}), loss = bench.config(1, {1}, {0});
    simulator.set({dense, loss});
    CHECK(simulator.graph().memory() == Times{336});
    CHECK(simulator.graph().missing_memory() == missing);
    CHECK(peak_memory(simulator.graph(), simulator.timeline())[0] <= 336);
    CHECK(simulator.propose({{OpId(0), dense}}, Algorithm::full) ==
          (missing ? Verdict::out_of_memory : Verdict::simulated));
  }
}

TEST_CASE("devices that can be exchanged") {
  // All alike, each linked to each.
  CHECK(symmetric_devices(all_to_all(4)) == Devices{0, 0, 0, 0});
  // A faster link between 2 and 3, in both directions, sets them apart from 0 and 1.
  MachineModel pairs = all_to_all(4);
  for (int link : {pairs.route(2, 3)[0], pairs.route(3, 2)[0]}) {
    pairs.links[static_cast<std::size_t>(link)].bandwidth *= 2;
  }
  CHECK(symmetric_devices(pairs) == Devices{0, 0, 2, 2});
  // In one direction alone, an exchange of 2 and 3 does not map the links onto each other.
  pairs.links[static_cast<std::size_t>(pairs.route(2, 3)[0])].bandwidth /= 2;
  CHECK(symmetric_devices(pairs) == Devices{0, 0, 2, 3});
  // Nor does an exchange of devices of different kinds, or of one memory.
  MachineModel kinds = all_to_all(3);
  kinds.kind_of = {0, 1, 1};
  CHECK(symmetric_devices(kinds) == Devices{0, 1, 1});
  MachineModel shared = all_to_all(2);
  shared.memory_of = {0, 0};
  CHECK(symmetric_devices(shared) == Devices{0, 1});
}

// x -> relu -> loss with labels, all of so many rows and columns.
struct ReluNet : Net {
  ReluNet(std::int64_t rows, std::int64_t columns) {
    const TensorId x = tensor("x", {rows, columns}, TensorKind::input, true);
    const TensorId labels = tensor("labels", {rows, columns}, TensorKind::input);
    const TensorId y = tensor("y", {rows, columns}), l = tensor("l", {rows});
    relu(x, y);
    loss(y, labels, l);
  }
};

// Which dimension's parts lie on neighbouring devices, of one node mostly, is a choice of its own:
// AlexNet's layers of 4 by 4 parts on 16 GPUs are 12 % faster with samples there than with
// channels.
TEST_CASE("any dimension may be the one whose parts lie side by side") {
  const ReluNet net(6, 4);
  Bench bench(net.graph, all_to_all(12));
  bench.config(0, {3, 4}, Devices(12, 0));
  bench.config(1, {1}, {0});
  const Candidates candidates(bench.problem, {0, 1});
  Random random(1);
  const Split& split = bench.problem.split(OpId(0), 0);
  int columns = 0, rows = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::vector<int> devices = candidates.random_devices(random, split);
    columns += devices == Devices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    rows += devices == Devices{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11};
  }
  CHECK(columns + rows == 1000);
  CHECK(rows > 50);
  CHECK(columns > 500);
}

TEST_CASE("proposals use the first of unused symmetric devices") {
  // Two relus on four devices that are all alike. While the second uses device 1, a proposal for
  // the first can name device 1, or of the others the first ones alone.
  const ReluNet net(4, 2);
  Bench bench(net.graph, all_to_all(4));
  bench.config(0, {2, 1}, {0, 1});
  bench.config(0, {1, 1}, {0});
  const PricedStrategy strategy = {bench.config(0, {4, 1}, {0, 1, 2, 3}),
                                   bench.config(1, {1}, {1})};
  const Proposals proposals(bench.problem, {0, 1});
  Random random(1);
  bool seen_single = false, seen_pair = false;
  for (int i = 0; i < 2000; ++i) {
    const PartialStrategy changes = proposals.draw(random, strategy, {}, {});
    if (changes.size() > 1) continue;  // the second one gives up device 1, too
    for (const auto& [op, config] : changes) {
      if (op.value != 0 || config.devices.size() > 2) continue;
      if (config.devices.size() == 1) {
        CHECK((config.devices == Devices{0} || config.devices == Devices{1}));
        seen_single = true;
      } else {
        CHECK((config.devices == Devices{0, 1} || config.devices == Devices{0, 2}));
        seen_pair = true;
      }
    }
  }
  CHECK(seen_single);
  CHECK(seen_pair);
}
