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

std::vector<LaunchKey> issue_order(const Graph& graph, const GraphFacts& facts) {
  std::vector<LaunchKey> launches;
  for (const Stretch& stretch : schedule()) {
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
