// Changing one layer alone often makes its tensors move, which rejects the proposal, although the
// same change of several neighbouring layers would be better. This move proposes them together.
//
// From the changed operator, neighbours are visited breadth-first, and each follows the one that it
// was reached from, up to 2, 4, 8 or 16 operators. An operator that cannot follow ends that branch.
#include <utility>

#include "search/moves/moves.h"

namespace flexlegion {

extern const double kSpread = 0.02;

// Goes on with a change to operators around it, each of which follows the one that it was reached
// from: to one or many, as far as a pair of layers, or a block of them.
void spread(const Candidates& candidates, Random& random, bool tied, PartialStrategy& configs) {
  const int most = 2 << random.below(4);
  IdVector<OpId, char> changed(candidates.problem().graph.operators.size(), 0);
  PartialStrategy reached;
  const auto reach = [&](OpId op, const PricedConfig& config) {
    for (auto& change : candidates.changes(op, config, tied)) {
      changed[change.first] = 1;
      if (!reached.empty()) configs.push_back(std::move(change));
    }
    reached.emplace_back(op, config);
  };
  reach(configs.front().first, PricedConfig(configs.front().second));
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const auto [from, theirs] = reached[i];
    const auto& around = candidates.neighbours(from);
    const int count = static_cast<int>(around.size());
    const int first = count > 0 ? random.below(count) : 0;
    for (int n = 0; n < count && static_cast<int>(reached.size()) < most; ++n) {
      const Neighbour& there = around[(first + n) % count];
      PricedConfig config;
      if (changed[there.op] ||
          !follow(candidates, random, there.op, candidates.neighbours(there.op)[there.back], theirs,
                  config)) {
        continue;
      }
      candidates.choose_sums(random, there.op, config);
      config.buffers = theirs.buffers;
      reach(there.op, config);
    }
  }
}

}  // namespace flexlegion
