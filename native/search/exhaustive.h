// The optimum of small searches (FlexFlow, section 8.4): depth-first branch and bound over all
// strategies that a chain can propose, with lower bounds in the manner of A*.
//
// Operators get their configurations in the graph's order. What a partial strategy takes at least
// is the longest chain of dependencies: of operators with configurations, their tasks and the
// transfers between them; beyond these, for each pair of tasks of an operator, the shortest way
// from the one's forward end through an operator that reads it, and all that follows, back to the
// other's backward start. Those ways are computed once, from the loss up, for each configuration,
// over the best configurations of what follows. Waiting for devices and links only adds to that.
#pragma once

#include <cstdint>
#include <vector>

#include "bounds/bounds.h"
#include "sim/simulator.h"

namespace flexlegion {

struct ExhaustiveCounts {
  std::int64_t nodes = 0;      // partial and whole strategies that were bounded
  std::int64_t simulated = 0;  // whole strategies that were simulated
};

class Exhaustive {
 public:
  // `incumbent`: a good strategy, the better the faster.
  Exhaustive(const Problem& problem, const PricedStrategy& incumbent);

  // Somebody else has found a faster strategy: what cannot beat that is left out from now on.
  void adopt(const PricedStrategy& strategy, std::int64_t time);

  // Goes on for at most that many seconds (0: no limit). True: `best` is the optimum.
  bool run(double seconds);

  const PricedStrategy& best() const { return best_; }
  std::int64_t best_time() const { return best_time_; }
  std::int64_t root_bound() const { return bounds_.root(); }
  const ExhaustiveCounts& counts() const { return counts_; }

 private:
  struct Level {
    std::vector<std::pair<std::int64_t, int>> children;  // (bound, configuration)
    std::size_t next = 0;
  };

  static Bounds bounds_of(const Problem& problem);
  void expand(int depth);
  void simulate();

  const Problem& problem_;
  Bounds bounds_;
  Simulator simulator_;
  std::vector<Level> levels_;
  int depth_ = 0;
  PricedStrategy best_;
  std::int64_t best_time_ = 0;
  ExhaustiveCounts counts_;
};

}  // namespace flexlegion
