// Where tasks of passes run: a function for each kind of placement, as rows of the table name it
// (PassRow::place).
#pragma once

#include "plan/facts.h"

namespace flexlegion {

void place_load(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                const ParallelConfig& config, Launch& launch);
void place_sum(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
               const ParallelConfig& config, Launch& launch);
void place_update(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                  const ParallelConfig& config, Launch& launch);
void place_in_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                    const ParallelConfig& config, Launch& launch);
void place_operator(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                    const ParallelConfig& config, Launch& launch);
void place_clip(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                const ParallelConfig& config, Launch& launch);

}  // namespace flexlegion
