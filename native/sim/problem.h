// What a simulation is about: the operator graph, the device topology, and what tasks cost there.
// It does not change while strategies come and go. But strategies that have other operators run
// again, or shard other weights, have another order of issue: they are of another problem, which
// shares machine and costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plan/graph.h"
#include "plan/rules.h"
#include "sim/machine_model.h"

namespace flexlegion {

// More bytes of an operand are not told of: sums of as many as there are stay below 2^63.
constexpr std::int64_t kMaxKept = std::int64_t{1} << 40;

// A way to cut an operator, and the time of each task of it (the cost table's entries), in ns.
struct Split {
  std::vector<int> degrees;
  int tasks = 0;
  // [device kind * tasks + part]
  std::vector<std::int64_t> forward, backward;
  int partial_values = 1;          // of each part of the outputs, see plan/graph.h
  bool can_sum_by_shards = false;  // whether shards of them can be combined before they are read
  int parts = 1;                   // of its linear inputs' partial values
  // As forward and backward, how much longer beside busy neighbours (Block::contention); or empty.
  std::vector<std::int32_t> forward_contention = {}, backward_contention = {};
  // What an exported program keeps on each device of each operand (bytes), [sharding * operands +
  // operand], and a number for how the operand lies there; empty where nothing is exported
  // (sim/program_memory.h).
  std::vector<std::int64_t> kept = {};
  std::vector<std::int32_t> placed = {};

  // Where the first part alone runs backward, the others have nothing to do then.
  void leave_idle(bool first_part_alone) {
    for (std::size_t k = 0; first_part_alone && k < backward.size(); ++k) {
      if (k % static_cast<std::size_t>(tasks) % static_cast<std::size_t>(parts) != 0) {
        backward[k] = 0;
      }
    }
  }

  // No task takes no time, so that what follows it comes after it.
  std::int64_t time(Pass pass, int kind, int part) const {
    const auto& times = runs_forward(pass) ? forward : backward;
    return std::max<std::int64_t>(1, times[static_cast<std::size_t>(kind * tasks + part)]);
  }
  std::int32_t contention(Pass pass, int kind, int part) const {
    const auto& its = runs_forward(pass) ? forward_contention : backward_contention;
    return its.empty() ? 0 : its[static_cast<std::size_t>(kind * tasks + part)];
  }
};

// Time of a pass that only moves data: overhead + bytes / bytes_per_second, at least 1 ns.
struct LinearCost {
  std::int64_t overhead = 0;  // ns
  std::int64_t bytes_per_second = 1'000'000'000;
  std::int32_t contention = 0;  // as Block::contention

  std::int64_t time(std::int64_t bytes) const {
    return std::max<std::int64_t>(1, overhead + transfer_time(bytes, bytes_per_second));
  }
};

// What the runtime takes, of a device kind; all in ns (sim/utility.h).
struct RuntimeCosts {
  std::int64_t iteration = 0, launch = 0, task = 0;  // the utility processor's work for each
  std::int64_t crossing = 0;  // and for each dependency of a task on one of another device
  std::int64_t dispatch = 0;  // before a task, unless it runs on with the one before
  std::int64_t wake = 0;      // more, where the task was waiting for another device
  int cores = 0;  // that the memory's devices and its utility processor have between them

  bool any() const {
    return iteration > 0 || launch > 0 || task > 0 || crossing > 0 || dispatch > 0 || wake > 0;
  }
};

struct CostTable {
  // Operators of one class have the same access maps, shapes and costs: the unrolled steps of a
  // layer, say. The first of them stands for the class, whose splits are kept once.
  IdVector<OpId, OpId> class_of;
  IdVector<OpId, std::vector<Split>> splits;
  IdVector<OpId, std::map<std::vector<int>, int>> number_of;  // degrees -> split
  std::vector<LinearCost> update, load, sum;                  // a device kind
  std::vector<RuntimeCosts> runtime;                          // a device kind
  bool contended = false;  // whether any task takes longer beside busy neighbours

  // Of a pass whose price is of bytes.
  const LinearCost& of_bytes(Pass pass, int kind) const {
    const Pass priced_as = row_of(pass).priced_as;
    const auto& rates = priced_as == Pass::load ? load : priced_as == Pass::sum ? sum : update;
    return rates[static_cast<std::size_t>(kind)];
  }
};

struct Problem {
  Graph graph;
  std::vector<TensorId> outputs;  // that prediction wants
  GraphFacts facts;
  std::shared_ptr<MachineModel> its_machine = std::make_shared<MachineModel>();
  std::shared_ptr<CostTable> its_costs = std::make_shared<CostTable>();
  MachineModel& machine = *its_machine;
  CostTable& costs = *its_costs;
  bool in_order = false;  // searches put an operator's tasks on the first devices, in order
  // What is to fit is an exported program: the bytes of each device, and what it keeps there of any
  // strategy. Otherwise this runtime's allocation is, and the first is below 0.
  std::int64_t program_capacity = -1, program_always = 0;

  const Split& split(OpId op, int number) const {
    return costs.splits[costs.class_of[op]][static_cast<std::size_t>(number)];
  }
};

// Whether the gradients of an operator's weights can be summed inside nodes: it has some, and the
// machine has several nodes.
inline bool can_be_hierarchical(const Problem& problem, OpId op) {
  const auto wanted = [&](Pass pass) {
    LaunchKey key{pass};
    key.op = op;
    return row_of(key.pass).wanted(problem.graph, problem.facts, key);
  };
  return wanted(Pass::node_sum) || wanted(Pass::node_reduce);
}

// What of an operator's weights a configuration shards; of one without weights, nothing.
inline Sharding sharding_of(const Problem& problem, OpId op, const ParallelConfig& config) {
  const bool any = config.sharding != Sharding::states &&
                   !problem.facts.summed_weights(problem.graph, op).empty();
  return any ? config.sharding : Sharding::states;
}

// A parallelization configuration whose degrees stand in the cost table. Equal strategies have
// equal ones: `sums` are those of the readers unless Split::can_sum_by_shards, none is
// `hierarchical` that cannot be, and there are no more `buffers` than rounds.
struct PricedConfig {
  int split = 0;
  Sums sums = Sums::readers;
  std::vector<int> devices;   // one a task
  bool hierarchical = false;  // (plan/graph.h)
  int buffers = 1;            // likewise

  bool operator==(const PricedConfig& other) const {
    return split == other.split && devices == other.devices && sums == other.sums &&
           hierarchical == other.hierarchical && buffers == other.buffers;
  }
};

using PricedStrategy = IdVector<OpId, PricedConfig>;
using PartialStrategy = std::vector<std::pair<OpId, PricedConfig>>;

}  // namespace flexlegion
