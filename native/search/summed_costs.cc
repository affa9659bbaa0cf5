// OptCNN's three costs (summed_costs.h), by the same charges that the simulator uses.
//
// Computation: the slowest task of each pass. Transfers: every pair of a writer's and a reader's
// task whose tiles overlap sends that overlap over the route between their devices; the time is the
// busiest link's bytes over its bandwidth, plus the longest latency. Synchronisation: gradients
// gathered by the update's tasks, the slowest update, weights returned.
//
// These add up as if steps followed each other: exact for a chain of layers, and blind to overlap.
// The cost of a pair of splits is found from grids of tiles (search/exchanges.h), without looking
// at each pair of tasks; and it is found once for all operators that have these tiles.
#include "search/summed_costs.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "sim/charges.h"

namespace flexlegion {

namespace {

// A pass takes as long as its slowest task, since all begin together.
std::int64_t slowest(const Problem& problem, const Split& split, Pass pass) {
  std::int64_t most = 0;
  for (int k = 0; k < split.tasks; ++k) {
    most = std::max(most, split.time(pass, problem.machine.kind_of[k], k));
  }
  return most;
}

}  // namespace

// One operator, split in one way: task k is on device k. Its update has the tasks that it would
// have if nobody else used the weights (own_update).
OperatorCost SummedCosts::of_operator(Geometry& geometry, OpId op, int number) const {
  const Problem& problem = problem_;
  const GraphFacts& facts = problem.facts;
  const Split& split = problem.split(op, number);
  OperatorCost cost;
  cost.computation = slowest(problem, split, Pass::forward);
  if (facts.again[op]) cost.computation += slowest(problem, split, Pass::again);
  if (facts.backward[op]) cost.computation += slowest(problem, split, Pass::backward);
  if (!(facts.runs[op] & kTrains)) return cost;
  PricedConfig config{number, Sums::readers,
                      std::vector<int>(static_cast<std::size_t>(split.tasks))};
  std::iota(config.devices.begin(), config.devices.end(), 0);
  const OwnUpdate update =
      own_update(problem, geometry, op, problem.facts.owned_weights(problem.graph, op), config);
  Traffic gathered(ways_, least_message_), returned(ways_, least_message_);
  std::int64_t longest = 0;
  for (std::size_t t = 0; t < update.tasks.size(); ++t) {
    const int device = update.tasks[t].device;
    for (int k = 0; k < split.tasks; ++k) {
      const auto& [gradients, values] = update.shares[t][static_cast<std::size_t>(k)];
      gathered.send(k, device, gradients);
      returned.send(device, k, values);
    }
    longest = std::max(longest, update.bytes[t].time(problem, Pass::update, device));
  }
  cost.synchronisation = gathered.time() + longest + returned.time();
  return cost;
}

// Hashes the rectangles of all tasks in their order: with task k on device k, they decide on what
// is sent from where to where.
SummedCosts::Fingerprint SummedCosts::fingerprint(const Tiles& tiles) {
  Fingerprint its = {14695981039346656037u, 0x9e3779b97f4a7c15u};
  const auto add = [&its](std::int64_t number) {
    const auto x = static_cast<std::uint64_t>(number);
    its[0] = (its[0] ^ x) * 1099511628211u;
    its[1] = (its[1] + x) * 0xbf58476d1ce4e5b9u;
    its[1] ^= its[1] >> 29;
  };
  for (int part : tiles.parts.of_part) {
    const Rect& rect = tiles.parts.rects[static_cast<std::size_t>(part)];
    add(rect.rank);
    for (int d = 0; d < rect.rank; ++d) {
      add(rect.lo[d]);
      add(rect.hi[d]);
    }
  }
  return its;
}

// One transfer: the values go forth and are combined, the gradients come back and are summed. Where
// both directions take equal times, gradients are not sent again.
std::int64_t SummedCosts::time(const Transfer& its, const TileGrid& from, const TileGrid& to,
                               Traffic& values, Traffic& gradients) const {
  const Tiles &written = from.tiles, &read = to.tiles;
  const int writers = static_cast<int>(written.parts.of_part.size());
  const int readers = static_cast<int>(read.parts.of_part.size());
  std::vector<std::int64_t> partial(static_cast<std::size_t>(writers), 0);
  exchange(from, to, its.partial_values, its.bytes, values, partial);
  const bool back_alike = ways_.back_alike();
  if (its.back && !back_alike) {
    for_each_exchange(read, written, its.partial_values, [&](int j, int k, std::int64_t elements) {
      gradients.send(j, k, elements * its.bytes);
    });
  }
  // Readers combine partial values before they compute, and the writer combines the readers'
  // partial gradients.
  std::int64_t combined = 0;
  for (int j = 0; j < readers; ++j) {
    const std::int64_t own = read.of_task(j).volume() * its.bytes;
    combined = std::max(combined, combining_time(problem_, j, own, its.partial_values));
  }
  std::int64_t sums = 0;
  for (int k = 0; k < writers && its.back; ++k) {
    const std::int64_t own = written.of_task(k).volume() * its.bytes;
    sums = std::max(sums, sum_time(problem_, k, partial[static_cast<std::size_t>(k)], own));
  }
  const std::int64_t forth = values.time();
  const std::int64_t back = its.back && back_alike ? forth : gradients.time();
  return forth + combined + back + sums;
}

std::vector<std::int64_t> SummedCosts::of_transfer(
    OpId writer, const std::vector<std::vector<int>>& writer_degrees, OpId reader, int operand,
    const std::vector<std::vector<int>>& reader_degrees) {
  const Graph& graph = problem_.graph;
  const TensorId tensor =
      graph.operators[reader].operands.at(static_cast<std::size_t>(operand)).tensor;
  const auto& theirs = graph.operators[writer].operands;
  const auto output = std::find_if(theirs.begin(), theirs.end(), [&](const Operand& o) {
    return o.role == Role::output && o.tensor == tensor;
  });
  if (output == theirs.end()) {
    throw std::invalid_argument("operator '" + graph.operators[writer].name +
                                "' does not write what '" + graph.operators[reader].name +
                                "' reads");
  }
  const GraphFacts& facts = problem_.facts;
  // Whether a gradient comes back: the reader has one to give, and the writer uses it, or a table's
  // update does.
  const bool back = facts.differentiable[tensor] && facts.backward[reader] &&
                    (facts.backward[writer] || !facts.table[writer].none());
  const auto tiles_of = [&graph](OpId op, int index, const std::vector<std::vector<int>>& every) {
    const Operand& touched = graph.operators[op].operands[static_cast<std::size_t>(index)];
    std::vector<std::unique_ptr<TileGrid>> tiles;
    for (const auto& degrees : every) {
      tiles.push_back(std::make_unique<TileGrid>(accessed_rects(graph, op, touched, degrees)));
    }
    return tiles;
  };
  const auto written = tiles_of(writer, static_cast<int>(output - theirs.begin()), writer_degrees);
  const auto read = tiles_of(reader, operand, reader_degrees);
  std::vector<Fingerprint> reads;
  for (const auto& its : read) reads.push_back(fingerprint(its->tiles));
  std::vector<Transfer> transfers;
  for (std::size_t w = 0; w < written.size(); ++w) {
    const Fingerprint its = fingerprint(written[w]->tiles);
    const int parts = partial_values(graph.operators[writer], writer_degrees[w]);
    for (const Fingerprint& of_read : reads) {
      transfers.push_back({its, of_read, graph.tensors[tensor].value_bytes(), parts, back});
    }
  }
  // The lock is held to look up and to note, not to compute: threads may find the same cost twice,
  // and then it is the same number.
  std::vector<std::int64_t> costs(transfers.size(), -1);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      const auto found = known_.find(transfers[i]);
      if (found != known_.end()) costs[i] = found->second;
    }
  }
  Traffic values(ways_, least_message_), gradients(ways_, least_message_);
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (costs[i] >= 0) continue;
    const TileGrid &from = *written[i / read.size()], &to = *read[i % read.size()];
    costs[i] = time(transfers[i], from, to, values, gradients);
    fresh.push_back(i);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i : fresh) known_.emplace(transfers[i], costs[i]);
  return costs;
}

}  // namespace flexlegion
