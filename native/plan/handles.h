// What the C ABI's opaque handles hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "flexlegion_core.h"
#include "plan/graph.h"
#include "plan/plan.h"
#include "plan/rules.h"

namespace flexlegion {

// Whether an enumerator of the header is that of C++: some are cast to the others.
template <typename Enumeration>
constexpr bool same(int of_header, Enumeration ours) {
  return of_header == static_cast<int>(ours);
}

// The graph that a caller describes, and the tensors that prediction wants of it. Throws
// std::invalid_argument for what no graph can have.
struct WantedGraph {
  explicit WantedGraph(const fl_graph& its);

  Graph graph;
  std::vector<TensorId> outputs;
};

// What fl_graph_facts points to.
class FactsArrays {
 public:
  explicit FactsArrays(const GraphFacts& facts);
  fl_graph_facts view() const;

 private:
  std::vector<std::int32_t> runs_, table_, owner_;
  std::vector<std::uint8_t> backward_, gradient_;
  bool scales_;
};

// What fl_plan_arrays points to.
struct PlanArrays {
  PlanArrays(const Plan& plan, const GraphFacts& facts);

  std::vector<fl_launch> launches;
  std::vector<fl_requirement> requirements;
  std::vector<std::int32_t> devices, gradient_slots, value_slots, node_sums;
  std::vector<std::uint8_t> adds;
  std::vector<std::int64_t> bounds;
  FactsArrays facts;
};

AttributeList attributes_of(const fl_attributes& its);

// Throws std::invalid_argument for what no configuration can have.
std::map<OpId, ParallelConfig> configs_of(const fl_strategy& strategy);

// What an fl_strategy points to.
class StrategyArrays {
 public:
  explicit StrategyArrays(Strategy strategy);
  StrategyArrays(StrategyArrays&&) = default;  // what is pointed to stays where it is
  StrategyArrays& operator=(StrategyArrays&&) = default;
  fl_strategy view() const { return {static_cast<std::int32_t>(configs_.size()), configs_.data()}; }

 private:
  Strategy strategy_;
  std::vector<fl_config> configs_;
};

}  // namespace flexlegion

// A plan keeps the graph and the strategy that it was made from: the runtime needs all three.
struct fl_plan {
  flexlegion::Graph graph;
  flexlegion::Strategy strategy;
  flexlegion::Plan plan;
  std::shared_ptr<const flexlegion::PlanArrays> arrays;
};
