// A Markov chain over strategies whose cost is the simulated iteration time.
//
// A proposal S* of cost c* is accepted with probability min(1, exp(beta (c - c*))) (equation 2).
// With uniform proposals and a constant beta this is FlexFlow's section 6: the Metropolis-Hastings
// algorithm, whose proposals are symmetric. By default it is annealing: proposals depend on the
// current strategy (its critical path, neighbours' configurations) and are not corrected for that,
// as Hastings' ratio would; beta grows with the budget used up, and 1 / beta is a share of the
// current iteration time. So strategies are not visited in proportion to exp(-beta c), which a
// search for the best one does not need.
//
// The chance u is drawn first: the proposal is accepted exactly if c* <= c - ln(u) / beta. So any
// lower bound of c* above that limit, or a simulation that passes it, rejects the proposal, and the
// chain is the same as if c* had been computed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "search/descent.h"
#include "search/proposals.h"
#include "sim/simulator.h"
#include "support/random.h"

namespace flexlegion {

struct ChainOptions {
  // 1 / beta, as a share of `scale`: a strategy slower by that much is accepted with probability
  // 1/e.
  double temperature = 0.01;
  std::int64_t scale = 0;  // ns; 0: the current iteration time
  Moves moves;
  Algorithm algorithm = Algorithm::delta;
  bool early_rejection = true;
};

struct ChainCounts {
  std::int64_t proposals = 0, accepted = 0, unchanged = 0, overloaded = 0, overlong = 0,
               stopped = 0, out_of_memory = 0, too_fine = 0, simulated = 0, improved = 0;
};

class Chain {
 public:
  Chain(const Problem& problem, const IdVector<OpId, int>& groups, std::uint64_t seed,
        const PricedStrategy& start, Detail detail = Detail::transfers);

  // At most that many proposals, and as long as the time lasts (seconds; 0: no limit).
  void run(std::int64_t proposals, double seconds, const ChainOptions& options);

  // From the best strategy, goes to a better neighbour again and again (every configuration of one
  // operator, or of one group, is a neighbour). True: none is better than the best strategy; false:
  // the time was up, and the next call goes on from there.
  bool descend(double seconds, const DescentOptions& options);

  // Continues from another strategy.
  void adopt(const PricedStrategy& strategy);

  const PricedStrategy& best() const { return best_; }
  std::int64_t best_time() const { return best_time_; }  // kNever: none fits into memory
  const PricedStrategy& current() const { return simulator_.graph().strategy(); }
  std::int64_t current_time() const { return current_time_; }
  const ChainCounts& counts() const { return counts_; }
  const Simulator& simulator() const { return simulator_; }

 private:
  const Candidates& candidates() const { return proposals_.candidates(); }
  void propose(const ChainOptions& options);
  bool descend_to(OpId op, const PricedConfig& config, bool tied);
  void note_current();
  void find_critical();
  void note_critical(int owner);
  std::int64_t most_tasks() const;  // of a proposal

  const Problem& problem_;
  Proposals proposals_;
  Random random_;
  Simulator simulator_;
  std::int64_t current_time_ = 0, best_time_ = kNever;
  bool fits_ = true;       // the current strategy, into memory
  bool any_size_ = false;  // proposals may have any number of tasks
  PricedStrategy best_;
  std::vector<OpId> critical_;
  bool critical_known_ = false;
  std::int64_t changes_ = 0;  // of the current strategy
  std::optional<Descent> descent_;
  ChainCounts counts_;
};

}  // namespace flexlegion
