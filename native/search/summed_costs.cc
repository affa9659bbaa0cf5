// OptCNN's three costs (summed_costs.h), by the same charges that the simulator uses.
//
// Computation: the slowest task of each pass. Transfers: every pair of a writer's and a reader's
// task whose tiles overlap sends that overlap over the route between their devices; the time is the
// busiest link's bytes over its bandwidth, plus the longest latency. Synchronisation: gradients
// gathered by the update's tasks, the slowest update, weights returned.
//
// These add up as if steps followed each other: exact for a chain of layers, and blind to overlap.
// The cost of a pair of splits is found from an index of tiles, so it grows with the overlaps and
// not with the product of the numbers of tasks.
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

// Whether every way back passes the same kinds of links as the way there, so that what is sent back
// takes as long as what was sent. Then the cost of gradients need not be computed: on most
// machines.
bool ways_back_alike(const MachineModel& machine) {
  std::vector<int> reverse(machine.links.size(), -1);
  for (int a = 0; a < machine.memories; ++a) {
    for (int b = 0; b < machine.memories; ++b) {
      const auto& there = machine.route(a, b);
      const auto& back = machine.route(b, a);
      if (there.size() != back.size()) return false;
      for (std::size_t i = 0; i < there.size(); ++i) {
        int& other = reverse[there[i]];
        if (other < 0) other = back[back.size() - 1 - i];
        const CommunicationDevice &x = machine.links[there[i]], &y = machine.links[other];
        if (other != back[back.size() - 1 - i] || x.bandwidth != y.bandwidth ||
            x.latency != y.latency) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

// Adds a message to the links of its route. Messages within a memory take nothing.
void Traffic::send(int from, int to, std::int64_t bytes) {
  const int source = machine_.memory_of[from], destination = machine_.memory_of[to];
  if (source == destination || bytes == 0) return;
  std::int64_t latency = 0;
  for (int link : machine_.route(source, destination)) {
    if (load_[link] == 0) used_.push_back(link);
    load_[link] += bytes;
    latency += machine_.links[link].latency;
  }
  latency_ = std::max(latency_, latency);
}

// Links work side by side, so the busiest one decides.
std::int64_t Traffic::time() {
  std::int64_t most = 0;
  for (int link : used_) {
    most = std::max(most, transfer_time(load_[link], machine_.links[link].bandwidth));
    load_[link] = 0;
  }
  used_.clear();
  return most + std::exchange(latency_, 0);
}

// Of one operator and split, on the first devices: one task a device.
OperatorCost operator_cost(const Problem& problem, Geometry& geometry, OpId op, int number) {
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
  Traffic gathered(problem.machine), returned(problem.machine);
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

std::vector<std::int64_t> transfer_costs(const Problem& problem, OpId writer,
                                         const std::vector<std::vector<int>>& writer_degrees,
                                         OpId reader, int operand,
                                         const std::vector<std::vector<int>>& reader_degrees) {
  const Graph& graph = problem.graph;
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
  const GraphFacts& facts = problem.facts;
  // Whether a gradient comes back: the reader has one to give, and the writer uses it, or a table's
  // update does.
  const bool back = facts.differentiable[tensor] && facts.backward[reader] &&
                    (facts.backward[writer] || !facts.table[writer].none());
  const auto tiles_of = [&graph](OpId op, int index, const std::vector<int>& degrees) {
    const Operand& touched = graph.operators[op].operands[static_cast<std::size_t>(index)];
    return std::make_unique<Tiles>(accessed_rects(graph, op, touched, degrees));
  };
  std::vector<std::unique_ptr<Tiles>> readers;
  for (const auto& degrees : reader_degrees) {
    readers.push_back(tiles_of(reader, operand, degrees));
  }
  const bool alike = ways_back_alike(problem.machine);
  const std::int64_t bytes = graph.tensors[tensor].value_bytes();
  Traffic values(problem.machine), gradients(problem.machine);
  std::vector<std::int64_t> costs, partial;
  for (const auto& degrees : writer_degrees) {
    const int parts = partial_values(graph.operators[writer], degrees);
    const auto written = tiles_of(writer, static_cast<int>(output - theirs.begin()), degrees);
    const int tasks = static_cast<int>(written->parts.of_part.size());
    for (const auto& read : readers) {
      partial.assign(static_cast<std::size_t>(tasks), 0);
      for_each_exchange(*read, *written, parts, [&](int j, int k, std::int64_t elements) {
        values.send(k, j, elements * bytes);
        if (back && !alike) gradients.send(j, k, elements * bytes);
        partial[k] += elements * bytes;
      });
      // Readers combine partial values before they compute, and the writer combines the readers'
      // partial gradients.
      std::int64_t combined = 0;
      for (int j = 0; j < static_cast<int>(read->parts.of_part.size()); ++j) {
        const std::int64_t own = read->of_task(j).volume() * bytes;
        combined = std::max(combined, combining_time(problem, j, own, parts));
      }
      std::int64_t sums = 0;
      for (int k = 0; k < tasks && back; ++k) {
        sums =
            std::max(sums, sum_time(problem, k, partial[k], written->of_task(k).volume() * bytes));
      }
      const std::int64_t forth = values.time();
      costs.push_back(forth + combined + (back && alike ? forth : gradients.time()) + sums);
    }
  }
  return costs;
}

}  // namespace flexlegion
