#include "search/descent.h"

#include <algorithm>

namespace flexlegion {

Descent::Descent(const Proposals& proposals, const DescentOptions& options)
    : proposals_(proposals), options_(options) {
  const std::vector<int>& operators = proposals.operators();
  const int last = *std::max_element(operators.begin(), operators.end());
  tried_at_.assign(static_cast<std::size_t>(last) + 1, -1);
  mine_.assign(static_cast<std::size_t>(last) + 1, 0);
  int number = 0;
  for (int op : operators) {
    if (stands_for(op) == op) mine_[op] = number++ % options.parts == options.part;
  }
}

int Descent::next(std::int64_t changes) {
  if (present_ >= 0) return present_;
  while (present_ < 0 && !near_.empty()) {
    if (tried_at_[near_.front()] != changes) present_ = near_.front();
    near_.pop_front();
  }
  const std::vector<int>& operators = proposals_.operators();
  for (std::size_t n = 0; n < operators.size() && present_ < 0; ++n) {
    const int op = operators[round_];
    round_ = (round_ + 1) % operators.size();
    if (mine_[op] && tried_at_[op] != changes) present_ = op;
  }
  position = 0;
  began_at_ = changes;
  return present_;
}

void Descent::improved(int op) {
  const std::vector<int> alone{op};
  for (int member : options_.tied ? proposals_.members(op) : alone) {
    for (const Neighbour& neighbour : proposals_.neighbours(member)) {
      const int other = stands_for(neighbour.op);
      if (!mine_[other]) continue;
      if (std::find(near_.begin(), near_.end(), other) == near_.end()) near_.push_back(other);
    }
  }
}

void Descent::tried(int op) {
  tried_at_[op] = began_at_;
  present_ = -1;
}

}  // namespace flexlegion
