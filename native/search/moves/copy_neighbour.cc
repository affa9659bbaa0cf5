// A move that takes over what a neighbour has. Data stays in its memory where producer and consumer
// are split alike over the same devices, so a neighbour's configuration is a better guess than any
// other.
//
// Mostly the operator follows the neighbour task by task (follow.cc). Else it takes the same
// degrees by position, or the same number of tasks along its first dimension that allows it.
#include "search/moves/moves.h"

namespace flexlegion {

extern const double kCopyNeighbour = 0.3;

namespace {

constexpr double kFollow = 0.7;  // the share that follows the neighbour task by task

// As many tasks as the neighbour has on the same devices: of the same degrees, or along the first
// dimension that can be cut into so many parts.
bool take_degrees(const Problem& problem, OpId op, const Neighbour& neighbour,
                  const PricedConfig& theirs, PricedConfig& config) {
  const Split& split = problem.split(neighbour.op, theirs.split);
  const std::size_t rank = problem.split(op, 0).degrees.size();
  const auto& table = problem.costs.number_of[problem.costs.class_of[op]];
  config.devices = theirs.devices;
  if (split.degrees.size() == rank) {
    const auto same = table.find(split.degrees);
    if (same != table.end() && problem.split(op, same->second).parts == 1) {
      config.split = same->second;
      return true;
    }
  }
  for (std::size_t d = 0; d < rank; ++d) {
    std::vector<int> degrees(rank, 1);
    degrees[d] = split.tasks;
    const auto along = table.find(degrees);
    if (along == table.end() || problem.split(op, along->second).parts > 1) continue;
    config.split = along->second;
    return true;
  }
  return false;
}

}  // namespace

// Takes a neighbour's devices, and its degrees as far as the operator can be split by them.
bool copy_neighbour(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                    OpId op, PricedConfig& config) {
  const auto& neighbours = candidates.neighbours(op);
  if (neighbours.empty()) return false;
  const Neighbour& other = neighbours[random.below(static_cast<int>(neighbours.size()))];
  const PricedConfig& theirs = strategy[other.op];
  if (!(random.chance(kFollow) && follow(candidates, random, op, other, theirs, config)) &&
      !take_degrees(candidates.problem(), op, other, theirs, config)) {
    return false;
  }
  candidates.choose_sums(random, op, config);
  config.buffers = theirs.buffers;
  return true;
}

}  // namespace flexlegion
