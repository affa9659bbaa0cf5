// In which order a descent to a local optimum looks at operators, and how far it is.
//
// Whatever the order, it ends when all configurations of all operators were tried since the
// strategy last changed. A change makes others worth while near it: so the operators next to one
// that changed come first, then all others round and round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "search/candidates.h"

namespace flexlegion {

struct DescentOptions {
  bool tied = false;  // the first operator of a group stands for all of its operators
  // Every `parts`th operator, from the one numbered `part` on: chains can share the work.
  int part = 0, parts = 1;

  bool operator==(const DescentOptions& o) const {
    return tied == o.tied && part == o.part && parts == o.parts;
  }
};

class Descent {
 public:
  Descent(const Candidates& candidates, const DescentOptions& options);

  const DescentOptions& options() const { return options_; }
  // The operator to look at, the same until it was `tried`; none if none is left. `changes` counts
  // those of the strategy.
  OpId next(std::int64_t changes);
  void improved(OpId op);
  void tried(OpId op);

  std::size_t position = 0;  // among the configurations of the operator that is looked at

 private:
  OpId stands_for(OpId op) const { return options_.tied ? candidates_.members(op).front() : op; }

  const Candidates& candidates_;
  DescentOptions options_;
  IdVector<OpId, char> mine_;              // whether it is looked at
  IdVector<OpId, std::int64_t> tried_at_;  // at how many changes
  std::deque<OpId> near_;                  // a change: these come first
  std::size_t round_ = 0;                  // where the next one is looked for
  OpId present_;
  std::int64_t began_at_ = 0;  // at how many changes the present one was begun with
};

}  // namespace flexlegion
