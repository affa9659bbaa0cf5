// The order of issue (schedule.h).
//
// Passes form stretches: loads, forward with the sums that follow each operator, backward, and what
// ends an iteration. Within a stretch operators go forwards or backwards. Later stretches go
// backwards, for the gradients of the last operators are complete first.
//
// Updates come after all backward launches, in the order in which gradients are complete. A launch
// waits only for what it reads, so an update may still run beside the backward tasks of earlier
// operators.
#include "plan/schedule.h"

#include <algorithm>

namespace flexlegion {

const std::vector<Stretch>& schedule() {
  constexpr bool kBackwards = true;
  static const std::vector<Stretch> stretches = {
      {{Pass::load}},
      {{Pass::forward, Pass::sum}},  // partial values are combined right after they were computed
      {{Pass::backward}, kBackwards},
      {{Pass::node_sum}, kBackwards},
      {{Pass::norm}, kBackwards},
      {{Pass::clip}, kBackwards},
      {{Pass::update}, kBackwards},
      {{Pass::spread}, kBackwards},
  };
  return stretches;
}

// Each pass is in one stretch.
int stretch_of(Pass pass) {
  const auto& all = schedule();
  const auto found = std::find_if(all.begin(), all.end(), [pass](const Stretch& stretch) {
    return std::find(stretch.passes.begin(), stretch.passes.end(), pass) != stretch.passes.end();
  });
  return static_cast<int>(found - all.begin());
}

namespace {

// The one launch of the iteration's pass runs with the last operator that it is about, in the order
// of the stretch: that one's gradients are there last.
void add_launch_of_iteration(const Graph& graph, const GraphFacts& facts, Pass pass,
                             const IdRange<OpId>& ops, std::vector<LaunchKey>& launches) {
  LaunchKey last{pass};
  for (OpId op : ops) {
    LaunchKey key{pass};
    key.op = op;
    if (row_of(pass).wanted(graph, facts, key)) last = key;
  }
  if (!last.op.none()) launches.push_back(last);
}

}  // namespace

// Stretch by stretch, operator by operator, pass by pass: those launches that the rows want.
std::vector<LaunchKey> issue_order(const Graph& graph, const GraphFacts& facts) {
  std::vector<LaunchKey> launches;
  for (const Stretch& stretch : schedule()) {
    // Passes of one stretch alternate operator by operator.
    const auto add = [&](LaunchKey key) {
      for (Pass pass : stretch.passes) {
        key.pass = pass;
        if (row_of(pass).wanted(graph, facts, key)) launches.push_back(key);
      }
    };
    const IdRange<OpId> forwards = graph.operators.ids();
    const IdRange<OpId> ops = stretch.backwards ? forwards.reversed() : forwards;
    LaunchKey key;
    switch (row_of(stretch.passes.front()).of) {
      case Of::input:
        for (TensorId t : graph.tensors.ids()) {
          key.tensor = t;
          add(key);
        }
        break;
      case Of::op:
        for (OpId op : ops) {
          key.op = op;
          add(key);
        }
        break;
      case Of::iteration:
        for (Pass pass : stretch.passes) {
          add_launch_of_iteration(graph, facts, pass, ops, launches);
        }
        break;
    }
  }
  return launches;
}

}  // namespace flexlegion
