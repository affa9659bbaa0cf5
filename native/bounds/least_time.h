// What any strategy takes at least: of every search, the distance to what cannot be beaten.
//
// Two things hold for every strategy, whatever is split how and runs where:
//
// - *Work.* All tasks together keep the devices busy for `busy` in total, so the iteration takes
//   busy / devices at least.
// - *The chain.* An operator's first task to end waits for the first to end of each operator that
//   it reads from, forward and back; so the iteration takes the longest chain of the operators'
//   shortest tasks at least.
//
// Each alone is weak: an operator that is split finely has short tasks, one that is not has little
// work to do. No operator can have both. An iteration takes at least any weighted mean of its chain
// and its share of work, and the least of such a mean over all strategies is easy to find, since
// each operator chooses for itself: its split with the least mean. The bound is the largest of
// these minima over the weights, a Lagrangian dual.
//
// Transfers, waiting for devices, sums of partial values and memory are left out, so the bound is
// below the optimum, in general.
#pragma once

#include <cstdint>

#include "sim/problem.h"

namespace flexlegion {

struct LeastTime {
  std::int64_t time = 0;   // ns
  std::int64_t chain = 0;  // ns, what follows from the chain alone
  std::int64_t work = 0;   // ns, from the work alone
  double weight = 0;       // of the work in the mean that decides; the chain has the rest
};

// Of all strategies whose splits stand in the cost table.
LeastTime least_time(const Problem& problem);

}  // namespace flexlegion
