// In which runs a launch takes part, and whether there is one.
#include "plan/pass_conditions.h"

#include <algorithm>

#include "plan/launches.h"
#include "plan/shards.h"

namespace flexlegion {

// In which runs.

unsigned runs_of_operator(const Graph&, const GraphFacts& facts, const LaunchKey& key) {
  return facts.runs[key.op];
}

// A batch is loaded in whichever run some reader of it takes part.
unsigned runs_of_readers(const Graph&, const GraphFacts& facts, const LaunchKey& key) {
  return facts.used_in[key.tensor];
}

// Shards are gathered in whichever run somebody reads the weights.
unsigned runs_of_users(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  unsigned runs = 0;
  for (int i : facts.summed_weights(graph, key.op)) {
    runs |= facts.used_in[graph.operators[key.op].operands[i].tensor];
  }
  return runs;
}

unsigned training(const Graph&, const GraphFacts&, const LaunchKey&) { return kTrains; }

// Whether there is such a launch.

bool is_loaded(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return graph.tensors[key.tensor].kind == TensorKind::input &&
         !load_source(graph, facts, key.tensor).first_reader.none();
}

// An operator that no run needs has no launch at all.
bool takes_part(const Graph&, const GraphFacts& facts, const LaunchKey& key) {
  return facts.runs[key.op] != 0;
}

// Whether it has some is the strategy's to say; a launch without tasks is left out of the plan.
bool can_have_partial_values(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return takes_part(graph, facts, key) && !graph.operators[key.op].reductions.empty();
}

bool runs_again(const Graph&, const GraphFacts& facts, const LaunchKey& key) {
  return facts.again[key.op];
}

bool can_have_partial_values_again(const Graph& graph, const GraphFacts& facts,
                                   const LaunchKey& key) {
  return runs_again(graph, facts, key) && can_have_partial_values(graph, facts, key);
}

bool runs_backward(const Graph&, const GraphFacts& facts, const LaunchKey& key) {
  return facts.backward[key.op];
}

// The owner is the first operator that trains the weight.
bool owns_weights(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return (facts.runs[key.op] & kTrains) != 0 && !facts.owned_weights(graph, key.op).empty();
}

namespace {

// Whether it owns weights that are sharded at least as far as that.
bool is_sharded(const Graph& graph, const GraphFacts& facts, OpId op, Sharding least) {
  return graph.operators[op].sharding >= least && !facts.summed_weights(graph, op).empty();
}

}  // namespace

bool gathers(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return is_sharded(graph, facts, key.op, Sharding::weights);
}

bool gathers_by_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return graph.has_several_nodes() && gathers(graph, facts, key);
}

// Of some weights, a bias say, the backward pass does not need the value.
bool gathers_again(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  const std::vector<int> owned = facts.summed_weights(graph, key.op);
  const auto needed = [&](int i) {
    return facts.needed_backward[graph.operators[key.op].operands[i].tensor];
  };
  return gathers(graph, facts, key) && std::any_of(owned.begin(), owned.end(), needed);
}

bool gathers_again_by_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return graph.has_several_nodes() && gathers_again(graph, facts, key);
}

bool reduces(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return is_sharded(graph, facts, key.op, Sharding::gradients);
}

bool reduces_inside_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return graph.has_several_nodes() && reduces(graph, facts, key);
}

// Gradients of tables are summed row by row as they are looked up, and never inside nodes.
bool sums_inside_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return graph.has_several_nodes() && owns_weights(graph, facts, key) &&
         graph.operators[key.op].sharding == Sharding::states &&
         !facts.summed_weights(graph, key.op).empty();
}

bool has_norms(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return facts.optimizer.needs_norm && owns_weights(graph, facts, key);
}

// Whether the launch has something to tell the host.

bool is_loss(const Graph& graph, const Optimizer&, const LaunchKey& key) {
  return graph.operators[key.op].is_loss;
}

bool finds_overflows(const Graph&, const Optimizer& optimizer, const LaunchKey&) {
  return optimizer.scales;
}

}  // namespace flexlegion
