// A small step around a split that may be good already: only the devices change, or who combines
// partial values.
#include "search/moves/moves.h"

namespace flexlegion {

extern const double kSameDegrees = 0.3;

namespace {

constexpr double kOtherSums = 0.3;  // the share in which, if it can, who combines changes

}  // namespace

// The degrees stay; how partial values are combined changes, of outputs or of weights' gradients,
// or the devices.
bool same_degrees(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                  OpId op, PricedConfig& config) {
  const Problem& problem = candidates.problem();
  config = strategy[op];
  const int tasks = static_cast<int>(config.devices.size());
  if (problem.split(op, config.split).can_sum_by_shards && random.chance(kOtherSums)) {
    config.sums = config.sums == Sums::shards ? Sums::readers : Sums::shards;
    return true;
  }
  if (candidates.can_be_hierarchical(op) && random.chance(kOtherSums)) {
    config.hierarchical = !config.hierarchical;
    return true;
  }
  if (problem.in_order || tasks > candidates.devices()) return false;
  config.devices = candidates.random_devices(random, problem.split(op, config.split));
  return true;
}

}  // namespace flexlegion
