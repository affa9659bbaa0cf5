// What the C ABI's opaque handles hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "flexlegion_core.h"
#include "plan/graph.h"
#include "plan/plan.h"
#include "plan/rules.h"

namespace flexlegion {

// What fl_graph_finish finds, and points to.
struct FinishedGraph {
  FinishedGraph(const Graph& graph, std::vector<int> predicted);

  std::vector<int> outputs;
  GraphFacts facts;
  std::vector<std::int32_t> runs;
  std::vector<std::uint8_t> backward, gradient;
};

// Whether an enumerator of the header is that of C++: some are cast to the others.
template <typename Enumeration>
constexpr bool same(int of_header, Enumeration ours) {
  return of_header == static_cast<int>(ours);
}

// What fl_plan_arrays points to.
struct PlanArrays {
  explicit PlanArrays(const Plan& plan);

  std::vector<fl_launch> launches;
  std::vector<fl_requirement> requirements;
  std::vector<std::int32_t> devices, gradient_slots, value_slots;
  std::vector<std::uint8_t> adds;
  std::vector<std::int64_t> bounds;
};

}  // namespace flexlegion

struct fl_graph {
  flexlegion::Graph graph;
  std::optional<flexlegion::FinishedGraph> finished;
};

namespace flexlegion {

// Throws std::invalid_argument unless fl_graph_finish was called last.
const FinishedGraph& finished(const fl_graph& graph);

}  // namespace flexlegion

struct fl_strategy {
  std::map<int, flexlegion::ParallelConfig> configs;  // by operator
};

// A plan keeps the graph and the strategy that it was made from: the runtime needs all three.
struct fl_plan {
  flexlegion::Graph graph;
  flexlegion::Strategy strategy;
  flexlegion::Plan plan;
  std::shared_ptr<const flexlegion::PlanArrays> arrays;
};
