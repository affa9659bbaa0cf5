// The move that needs no neighbour: any configuration of an operator. It keeps the whole space
// within reach.
#include "search/moves/moves.h"

namespace flexlegion {

// First how many tasks, then one of the splits into so many. The more dimensions an operator has,
// the more of its splits make as many tasks as there are devices: if each were as likely, most
// proposals would be of these, which take longest to simulate.
bool any_config(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                OpId op, PricedConfig& config) {
  const auto& by_tasks = candidates.splits_by_tasks(op);
  const auto& splits = by_tasks[random.below(static_cast<int>(by_tasks.size()))];
  config.split = splits[random.below(static_cast<int>(splits.size()))];
  candidates.choose_sums(random, op, config);
  config.devices = candidates.random_devices(random, candidates.problem().split(op, config.split));
  config.buffers = strategy[op].buffers;
  return true;
}

}  // namespace flexlegion
