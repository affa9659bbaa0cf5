// What the simulator's opaque handles hold.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "plan/handles.h"
#include "sim/simulator.h"
#include "sim/split_shapes.h"

struct fl_problem {
  explicit fl_problem(flexlegion::Problem its) : problem(std::move(its)), facts(problem.facts) {}

  // That of strategies with the same order of issue: which have the same operators run again, and
  // shard the same weights.
  const flexlegion::Problem& of(const fl_strategy& strategy);

  flexlegion::Problem problem;  // where none is run again, nor sharded
  flexlegion::FactsArrays facts;
  flexlegion::SplitShapes shapes;  // what fl_shapes points to

 private:
  std::mutex mutex_;
  using Order = std::map<flexlegion::OpId, std::pair<bool, flexlegion::Sharding>>;
  std::map<Order, std::unique_ptr<flexlegion::Problem>> in_other_orders_;
};

struct fl_simulator {
  explicit fl_simulator(const flexlegion::Problem& problem) : simulator(problem) {}
  flexlegion::Simulator simulator;
  // What fl_timeline points to.
  std::vector<fl_task> tasks;
  std::vector<std::int64_t> peak, contents, computation, moved;  // the last two by pass
};

namespace flexlegion {

// Indices come from outside, and are checked before they become ids. They throw
// std::invalid_argument.
void check_index(std::int64_t value, std::int64_t count, const char* what);
OpId checked_op(const Graph& graph, int op);
Detail checked_detail(int detail);
std::int32_t contention_of(std::int32_t contention);
// An operator that is split so, all of its tasks on one device.
ParallelConfig split_by(const Graph& graph, OpId op, std::int64_t n_degrees,
                        const std::int32_t* degrees);

// The configurations of a strategy or a part of one, by operator, with the cost table's entries.
// Throws std::invalid_argument for what does not fit the problem, or is not in its cost table.
PartialStrategy configs_of(const Problem& problem, const fl_strategy& strategy);

// Those of a whole strategy, one an operator. Throws std::invalid_argument if one is missing.
PricedStrategy strategy_of(const Problem& problem, const fl_strategy& strategy);

// The way back.
StrategyArrays arrays_of(const Problem& problem, const PricedStrategy& strategy);

}  // namespace flexlegion
