// In which runs a launch takes part (PassRow::runs), whether there is one (PassRow::wanted), and
// whether it tells the host what it found (PassRow::answers), as rows of the table of passes name
// it.
#pragma once

#include "plan/facts.h"
#include "plan/passes.h"

namespace flexlegion {

unsigned runs_of_operator(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
unsigned runs_of_readers(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
unsigned runs_of_users(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
unsigned training(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);

bool is_loaded(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool takes_part(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool can_have_partial_values(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool runs_again(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool can_have_partial_values_again(const Graph& graph, const GraphFacts& facts,
                                   const LaunchKey& key);
bool runs_backward(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool owns_weights(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool gathers(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool gathers_by_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool gathers_again(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool gathers_again_by_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool reduces(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool reduces_inside_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool sums_inside_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
bool has_norms(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);

bool is_loss(const Graph& graph, const Optimizer& optimizer, const LaunchKey& key);
bool finds_overflows(const Graph& graph, const Optimizer& optimizer, const LaunchKey& key);

}  // namespace flexlegion
