// The order in which an iteration's launches are issued, as data.
#pragma once

#include <vector>

#include "plan/facts.h"
#include "plan/passes.h"

namespace flexlegion {

// A stretch of the order of issue: for one input tensor, or operator, after another, its launches
// of these passes.
struct Stretch {
  std::vector<Pass> passes;
  bool backwards = false;  // from the last operator to the first
  // Passes that run when the stretch needs their results: those that gather weights, right before
  // the first launch that reads one; and those that compute again what a launch reads, right before
  // it, and in the order of operators.
  std::vector<Pass> gathering = {}, again = {};
};

const std::vector<Stretch>& schedule();

// The stretch that a pass belongs to.
int stretch_of(Pass pass);

// All launches that the graph asks for, in the order of issue, whatever the strategy. A launch that
// the strategy does not ask for has no tasks.
std::vector<LaunchKey> issue_order(const Graph& graph, const GraphFacts& facts);

}  // namespace flexlegion
