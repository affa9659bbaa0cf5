// The order of issue (schedule.h).
//
// Passes form stretches: loads, forward with the sums that follow each operator, backward, and what
// ends an iteration. Within a stretch operators go forwards or backwards. Later stretches go
// backwards, for the gradients of the last operators are complete first.
//
// What is computed again for the backward pass (Pass::again) is issued right before the first
// backward launch that reads it, after what it reads itself of such values. So of operators that
// are run again one after the other, all are when the backward pass comes to the last of them; what
// lies before a value that was kept has its turn later. Checkpointing knows that as recomputing a
// segment at a time (Chen et al., 2016).
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
      {{Pass::backward}, kBackwards, {Pass::again, Pass::again_sum}},
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
  const auto has = [pass](const std::vector<Pass>& passes) {
    return std::find(passes.begin(), passes.end(), pass) != passes.end();
  };
  const auto found = std::find_if(all.begin(), all.end(), [&](const Stretch& stretch) {
    return has(stretch.passes) || has(stretch.on_demand);
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

// Issues what has to be computed again before other launches.
class OnDemand {
 public:
  OnDemand(const Graph& graph, const GraphFacts& facts, const std::vector<Pass>& passes,
           std::vector<LaunchKey>& launches)
      : graph_(graph), facts_(facts), passes_(passes), launches_(launches) {
    if (std::find(facts.again.begin(), facts.again.end(), true) == facts.again.end()) return;
    producers_.resize(graph.tensors.size());
    issued_.assign(graph.operators.size(), false);
    for (OpId op : graph.operators.ids()) {
      for (int i : graph.operators[op].outputs()) {
        producers_[graph.operators[op].operands[i].tensor] = op;
      }
    }
  }

  // What a launch reads, and nobody has computed again so far.
  void issue_for(const LaunchKey& reader) {
    if (issued_.empty()) return;
    std::vector<OpId> needed;
    find(reader, needed);
    std::sort(needed.begin(), needed.end());
    for (OpId op : needed) {
      for (Pass pass : passes_) {
        const LaunchKey key = of(op, pass);
        if (row_of(pass).wanted(graph_, facts_, key)) launches_.push_back(key);
      }
    }
  }

 private:
  static LaunchKey of(OpId op, Pass pass) {
    LaunchKey key{pass};
    key.op = op;
    return key;
  }

  // Not recursive: networks may be deeper than the stack.
  void find(const LaunchKey& reader, std::vector<OpId>& needed) {
    std::vector<LaunchKey> readers = {reader};
    while (!readers.empty()) {
      const LaunchKey key = readers.back();
      readers.pop_back();
      for (const Use& use : row_of(key.pass).uses(graph_, facts_, key)) {
        if (use.field != Field::value || use.index != kRecomputed) continue;
        const OpId op = producers_[use.tensor];
        if (issued_[op]) continue;
        issued_[op] = true;
        needed.push_back(op);
        readers.push_back(of(op, passes_.front()));
      }
    }
  }

  const Graph& graph_;
  const GraphFacts& facts_;
  const std::vector<Pass>& passes_;
  std::vector<LaunchKey>& launches_;
  IdVector<TensorId, OpId> producers_;
  IdVector<OpId, bool> issued_;
};

}  // namespace

// Stretch by stretch, operator by operator, pass by pass: those launches that the rows want.
std::vector<LaunchKey> issue_order(const Graph& graph, const GraphFacts& facts) {
  std::vector<LaunchKey> launches;
  for (const Stretch& stretch : schedule()) {
    // Passes of one stretch alternate operator by operator.
    OnDemand on_demand(graph, facts, stretch.on_demand, launches);
    const auto add = [&](LaunchKey key) {
      for (Pass pass : stretch.passes) {
        key.pass = pass;
        if (!row_of(pass).wanted(graph, facts, key)) continue;
        if (!stretch.on_demand.empty()) on_demand.issue_for(key);
        launches.push_back(key);
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
