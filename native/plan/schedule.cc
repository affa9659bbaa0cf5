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
// Weights whose values are sharded (Sharding::weights) are gathered right before the first launch
// that reads them, in the forward pass and again in the backward pass. Their gradients are reduced
// as soon as the last launch that contributes to them is issued, which is their owner's.
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
      // Partial values are combined right after they were computed.
      {{Pass::forward, Pass::sum}, !kBackwards, {Pass::gather, Pass::gather_spread}},
      {{Pass::backward, Pass::node_reduce, Pass::reduce},
       kBackwards,
       {Pass::again_gather, Pass::again_spread},
       {Pass::again, Pass::again_sum}},
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
    return has(stretch.passes) || has(stretch.gathering) || has(stretch.again);
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

// Issues launches, and before them what they read that is there on demand.
class OnDemand {
 public:
  OnDemand(const Graph& graph, const GraphFacts& facts, const Stretch& stretch,
           std::vector<LaunchKey>& launches)
      : graph_(graph),
        facts_(facts),
        stretch_(stretch),
        launches_(launches),
        computes_(!stretch.again.empty() && has(facts.again, true)),
        gathers_(!stretch.gathering.empty() && has(facts.sharding, Sharding::weights)) {
    if (gathers_) gathered_.assign(graph.operators.size(), false);
    if (!computes_) return;
    producers_.resize(graph.tensors.size());
    computed_.assign(graph.operators.size(), false);
    for (OpId op : graph.operators.ids()) {
      for (int i : graph.operators[op].outputs()) {
        producers_[graph.operators[op].operands[i].tensor] = op;
      }
    }
  }

  void issue(const LaunchKey& key) {
    if (!wanted(key)) return;
    for (OpId op : computed_for(key)) {
      for (Pass pass : stretch_.again) {
        if (wanted(of(op, pass))) add(of(op, pass));
      }
    }
    add(key);
  }

 private:
  template <typename Facts, typename Value>
  static bool has(const Facts& facts, Value value) {
    return std::find(facts.begin(), facts.end(), value) != facts.end();
  }

  bool wanted(const LaunchKey& key) const { return row_of(key.pass).wanted(graph_, facts_, key); }

  static LaunchKey of(OpId op, Pass pass) {
    LaunchKey key{pass};
    key.op = op;
    return key;
  }

  // The launch, and before it the weights that it is the first to read.
  void add(const LaunchKey& key) {
    if (gathers_) gather_for(key);
    launches_.push_back(key);
  }

  void gather_for(const LaunchKey& reader) {
    for (const Use& use : row_of(reader.pass).uses(graph_, facts_, reader)) {
      if (use.field != Field::copy) continue;
      const OpId owner = facts_.owner[use.tensor];
      if (gathered_[owner]) continue;
      gathered_[owner] = true;
      for (Pass pass : stretch_.gathering) {
        if (wanted(of(owner, pass))) launches_.push_back(of(owner, pass));
      }
    }
  }

  // The operators to run again for a launch, that were not so far: those whose outputs it reads,
  // and for these others. Not recursive: networks may be deeper than the stack.
  std::vector<OpId> computed_for(const LaunchKey& reader) {
    std::vector<OpId> needed;
    if (!computes_) return needed;
    std::vector<LaunchKey> readers = {reader};
    while (!readers.empty()) {
      const LaunchKey key = readers.back();
      readers.pop_back();
      for (const Use& use : row_of(key.pass).uses(graph_, facts_, key)) {
        if (use.field != Field::value || use.index != kRecomputed) continue;
        const OpId op = producers_[use.tensor];
        if (computed_[op]) continue;
        computed_[op] = true;
        needed.push_back(op);
        readers.push_back(of(op, stretch_.again.front()));
      }
    }
    std::sort(needed.begin(), needed.end());
    return needed;
  }

  const Graph& graph_;
  const GraphFacts& facts_;
  const Stretch& stretch_;
  std::vector<LaunchKey>& launches_;
  const bool computes_, gathers_;  // whether there is something of that
  IdVector<TensorId, OpId> producers_;
  IdVector<OpId, bool> computed_, gathered_;
};

}  // namespace

// Stretch by stretch, operator by operator, pass by pass: those launches that the rows want.
std::vector<LaunchKey> issue_order(const Graph& graph, const GraphFacts& facts) {
  std::vector<LaunchKey> launches;
  for (const Stretch& stretch : schedule()) {
    // Passes of one stretch alternate operator by operator.
    OnDemand on_demand(graph, facts, stretch, launches);
    const auto add = [&](LaunchKey key) {
      for (Pass pass : stretch.passes) {
        key.pass = pass;
        on_demand.issue(key);
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
