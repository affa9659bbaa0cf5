// The order of a descent (descent.h): operators near the last change first, the others round and
// round.
//
// `tried_at_` tells at which number of changes an operator was last tried. If that is the present
// number, trying it again would give the same answers, so it is skipped; when all operators are
// skipped, the descent has ended. An improvement while an operator is being tried raises the
// number, so that the operator itself comes again, too.
#include "search/descent.h"

#include <algorithm>

namespace flexlegion {

// Operators are dealt out to the chains that descend together: each tries those that are its own.
Descent::Descent(const Candidates& candidates, const DescentOptions& options)
    : candidates_(candidates), options_(options) {
  const std::vector<OpId>& operators = candidates.operators();
  const OpId last = *std::max_element(operators.begin(), operators.end());
  tried_at_.assign(last.index() + 1, -1);
  mine_.assign(last.index() + 1, 0);
  int number = 0;
  for (OpId op : operators) {
    if (stands_for(op) == op) mine_[op] = number++ % options.parts == options.part;
  }
}

// The same operator until it was tried; then one that is near the last change; then the next one in
// the round.
OpId Descent::next(std::int64_t changes) {
  if (!present_.none()) return present_;
  while (present_.none() && !near_.empty()) {
    if (tried_at_[near_.front()] != changes) present_ = near_.front();
    near_.pop_front();
  }
  const std::vector<OpId>& operators = candidates_.operators();
  for (std::size_t n = 0; n < operators.size() && present_.none(); ++n) {
    const OpId op = operators[round_];
    round_ = (round_ + 1) % operators.size();
    if (mine_[op] && tried_at_[op] != changes) present_ = op;
  }
  position = 0;
  began_at_ = changes;
  return present_;
}

// Neighbours of what changed are worth a try first: transfers between them have changed, too.
void Descent::improved(OpId op) {
  const std::vector<OpId> alone{op};
  for (OpId member : options_.tied ? candidates_.members(op) : alone) {
    for (const Neighbour& neighbour : candidates_.neighbours(member)) {
      const OpId other = stands_for(neighbour.op);
      if (!mine_[other]) continue;
      if (std::find(near_.begin(), near_.end(), other) == near_.end()) near_.push_back(other);
    }
  }
}

// All its configurations were tried, beside what the others were when that began.
void Descent::tried(OpId op) {
  tried_at_[op] = began_at_;
  present_ = {};
}

}  // namespace flexlegion
