// Which change a chain proposes next (proposals.h).
//
// 1. An operator: with even chance one of the critical path, else any. What is not on the path
//    cannot shorten the iteration by itself.
// 2. A move for it: the first in the list that its chance picks; if that has nothing to change, the
//    last one, which takes any configuration.
// 3. With ties, all operators of the group get the same.
// 4. Devices that nobody else uses are renamed to the first ones that they can be exchanged with,
//    so that equal strategies have one form.
// 5. Now and then the change spreads to operators around, which follow the changed ones.
//
// The paper's own proposals, uniform over operators and configurations, are draw_uniform().
#include "search/proposals.h"

#include <algorithm>

#include "search/moves/moves.h"
#include "search/symmetry.h"

namespace flexlegion {

namespace {

constexpr double kCritical = 0.5;  // the share of proposals that change the critical path

// All moves of one operator. They are tried in this order, each with its chance, until one is made;
// what finds nothing to change leaves it to the last one, which always does.
struct Registered {
  Move move;
  double chance;
  bool of_neighbours;  // left out without Moves::neighbours
  bool of_rounds;      // left out where an iteration has one
};
const Registered kMoves[] = {
    {other_buffers, kOtherBuffers, false, true},
    {copy_neighbour, kCopyNeighbour, true, false},
    {same_degrees, kSameDegrees, false, false},
    {any_config, 1, false, false},
};

}  // namespace

Proposals::Proposals(const Problem& problem, IdVector<OpId, int> groups)
    : problem_(problem),
      candidates_(problem, std::move(groups)),
      symmetric_(symmetric_devices(problem.machine, problem.graph)),
      all_of_class_(problem.graph.operators.size()) {}

PartialStrategy Proposals::draw_uniform(Random& random) const {
  const auto& operators = candidates_.operators();
  const OpId op = operators[random.below(static_cast<int>(operators.size()))];
  std::vector<PricedConfig>& configs = all_of_class_[problem_.costs.class_of[op]];
  // Operators of one class have the same configurations: one list serves all of them.
  if (configs.empty()) configs = candidates_.all(op);
  const PricedConfig& config = configs[random.below(static_cast<int>(configs.size()))];
  return candidates_.changes(op, config, /*tied=*/false);
}

PartialStrategy Proposals::draw(Random& random, const PricedStrategy& strategy, const Moves& moves,
                                const std::vector<OpId>& critical) const {
  if (moves.uniform) return draw_uniform(random);
  const bool on_path = moves.critical && !critical.empty() && random.chance(kCritical);
  const std::vector<OpId>& some = on_path ? critical : candidates_.operators();
  const OpId op = some[random.below(static_cast<int>(some.size()))];
  PricedConfig config;
  const auto last = std::end(kMoves) - 1;
  auto chosen = std::find_if(kMoves, last, [&](const Registered& its) {
    if (its.of_rounds && problem_.graph.micro_batches == 1) return false;
    return (moves.neighbours || !its.of_neighbours) && random.chance(its.chance);
  });
  if (!chosen->move(candidates_, random, strategy, op, config)) {
    last->move(candidates_, random, strategy, op, config);
  }
  PartialStrategy configs = candidates_.changes(op, config, moves.tied);
  const std::vector<int>& devices = configs.front().second.devices;
  // A configuration that follows a neighbour's order of devices is left as it is: renaming would
  // tear both apart.
  if (!problem_.in_order && std::is_sorted(devices.begin(), devices.end())) {
    make_canonical(symmetric_, candidates_.operators(), strategy, configs);
  }
  if (moves.neighbours && random.chance(kSpread)) spread(candidates_, random, moves.tied, configs);
  return configs;
}

}  // namespace flexlegion
