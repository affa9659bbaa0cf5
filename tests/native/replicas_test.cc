// Replicas in rounds, by hand, and the queues that rounds are played with.
#include "sim/replicas.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sim/ready_queue.h"
#include "sim/time_queue.h"
#include "sim_harness.h"

using namespace flexlegion;
using namespace flexlegion::sim_test;

namespace {

// Data parallelism of a dense layer on four devices, in eight rounds.
struct Replicated {
  SmallDense net;
  Bench bench;
  PricedStrategy strategy;

  explicit Replicated(std::int64_t last = 100) : bench(in_rounds(net), all_to_all(4, 50)) {
    for (int op : {0, 1}) {
      const std::vector<int> degrees = op == 0 ? std::vector<int>{4, 1, 1} : std::vector<int>{4};
      strategy.push_back(bench.config(op, degrees, {0, 1, 2, 3}, 100, 200));
    }
    bench.problem.costs.splits[OpId(0)].front().forward[3] = last;
  }
  static const Graph& in_rounds(SmallDense& net) {
    net.graph.micro_batches = 8;
    return net.graph;
  }
};

struct Played {
  std::int64_t time, folded, all;
};
Played played(const Replicated& its) {
  TaskGraph graph(its.bench.problem);
  graph.set(its.strategy);
  Timeline folded, whole;
  Simulation simulation(graph);
  simulation.full(folded);
  const std::int64_t some = folded.played;
  simulation.fold(false);
  simulation.full(whole);
  CHECK(whole.fold.rounds == 0);
  CHECK(folded.iteration_time == whole.iteration_time);
  for (int round = 0; round < whole.rounds; ++round) {
    for (int t = 0; t < whole.in_round(); ++t) {
      CHECK(folded.is_there(round, t) == whole.is_there(round, t));
      if (!whole.is_there(round, t)) continue;
      const std::size_t a = folded.entry(round, t), b = whole.entry(round, t);
      CHECK(folded.ready_time[a] == whole.ready_time[b]);
      CHECK(folded.start_time[a] == whole.start_time[b]);
      CHECK(folded.end_time[a] == whole.end_time[b]);
    }
  }
  CHECK(folded.end_time[folded.entry_of(folded.last_task())] == folded.iteration_time);
  return {folded.iteration_time, some, whole.played};
}

}  // namespace

TEST_CASE("of devices that do the same until the end, one is played") {
  const Played alike = played(Replicated());
  CHECK(4 * alike.folded < 3 * alike.all);
  // One device that takes longer is no replica of the others, which still are of each other.
  const Played uneven = played(Replicated(130));
  CHECK(uneven.folded > alike.folded);
  CHECK(uneven.folded < uneven.all);
  CHECK(uneven.all == alike.all);
}

TEST_CASE("a limit is exceeded by whoever exceeds it, played or not") {
  const Replicated its(130);
  Simulator simulator(its.bench.problem);
  simulator.set(its.strategy);
  const std::int64_t time = simulator.iteration_time();
  CHECK(simulator.judge(its.strategy, time) == Verdict::simulated);
  CHECK(simulator.judge(its.strategy, time - 1) != Verdict::simulated);
}

TEST_CASE("replicas have tasks of equal ranks that differ in nothing") {
  // Users 0 and 1 have tasks 0 and 2, and 1 and 3; user 2 has task 4; task 5 is in no round.
  Replicas replicas;
  replicas.begin({0, 1, 0, 1, 2, Replicas::kNoUser}, 3);
  CHECK(replicas.separate());
  CHECK(replicas.components() == 3);
  for (int task : {0, 1, 2, 3, 4}) replicas.describe(task, {7});
  replicas.waits(0, 2, {0});
  replicas.waits(1, 3, {0});
  replicas.compare();
  CHECK(replicas.like(1) == 0);
  CHECK(replicas.like(2) == 2);
  CHECK(replicas.rows() == 3);
  CHECK(replicas.twin(2, 1) == 3);
  CHECK(replicas.twin_user(0, 1) == 1);
  CHECK(replicas.rows_of_tasks() == std::vector<int>{0, 0, 1, 1, 2, -1});
  CHECK(replicas.stands(2));
  CHECK(!replicas.stands(3));
  CHECK(!replicas.stands(5));

  // Another wait, and they are none.
  replicas.separate();
  for (int task : {0, 1, 2, 3, 4}) replicas.describe(task, {7});
  replicas.waits(0, 2, {0});
  replicas.waits(1, 3, {1});
  replicas.compare();
  CHECK(replicas.like(1) == 1);

  // Who waits for each other belongs together.
  replicas.join(0, 3);
  replicas.join(4, 0);
  CHECK(!replicas.separate());
}

TEST_CASE("events come moment by moment") {
  TimeQueue queue;
  std::vector<TimeQueue::Event> events;
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < 1000; ++i) queue.push(7919 * i % 257, i);
  std::int64_t before = -1;
  while (!queue.empty()) {
    const std::int64_t now = queue.next();
    CHECK(now > before);
    before = now;
    queue.take(events);
    for (const auto& event : events) {
      CHECK(event.time == now);
      found.push_back(event.what);
      if (event.what < 1000) queue.push(now + 1 + event.what % 5, 1000 + event.what);
    }
    if (found.size() == 1) queue.push(now, 5000);  // the moment goes on
  }
  std::sort(found.begin(), found.end());
  CHECK(std::adjacent_find(found.begin(), found.end()) == found.end());
  CHECK(found.size() >= 2000);
}

TEST_CASE("what is ready is served by turn, then by time") {
  ReadyQueue queue;
  std::vector<std::int64_t> found;
  for (int i = 0; i < 100; ++i) queue.push({i % 7 == 0 ? 0 : 1, i, 0, 0});
  for (int i = 0; i < 60; ++i) found.push_back(queue.pop().time);
  for (int i = 100; i < 150; ++i) queue.push({1, i, 0, 0});
  queue.push({0, 3, 0, 0});
  CHECK(queue.front().turn == 0);
  CHECK(queue.pop().time == 3);
  while (!queue.empty()) found.push_back(queue.pop().time);
  CHECK(found.size() == 150);
  CHECK(std::is_sorted(found.begin() + 15, found.end()));  // after those of turn 0
}
