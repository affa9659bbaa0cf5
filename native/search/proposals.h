// What the search proposes: another configuration for an operator (FlexFlow, section 6.2), by one
// of several moves (search/moves/).
#pragma once

#include <utility>
#include <vector>

#include "search/candidates.h"
#include "support/random.h"

namespace flexlegion {

// Which moves are made; each can be left out, so that its worth can be measured.
struct Moves {
  bool tied = false;     // operators of one group change together
  bool critical = true;  // half of the proposals change an operator on the critical path
  // Some take over the configuration of a neighbour in the graph, and some go on from there: so
  // producers and consumers change together.
  bool neighbours = true;
  // Instead of all these, the paper's own proposals (section 6.2): an operator at random gets one
  // of its configurations, each as likely as the others, so that the proposals are symmetric.
  bool uniform = false;
};

class Proposals {
 public:
  Proposals(const Problem& problem, IdVector<OpId, int> groups);

  const Candidates& candidates() const { return candidates_; }

  // `critical`: operators on the critical path, possibly repeated; may be empty.
  PartialStrategy draw(Random& random, const PricedStrategy& strategy, const Moves& moves,
                       const std::vector<OpId>& critical) const;

 private:
  PartialStrategy draw_uniform(Random& random) const;

  const Problem& problem_;
  Candidates candidates_;
  std::vector<int> symmetric_;  // a device: see symmetric_devices
  mutable IdVector<OpId, std::vector<PricedConfig>> all_of_class_;  // once they were needed
};

}  // namespace flexlegion
