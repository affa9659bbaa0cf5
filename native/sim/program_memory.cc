// What an exported program keeps on each device (program_memory.h).
//
// The constructor walks the graph once. The first operator that uses a tensor decides how the
// tensor lies on the devices, so this use is kept. A later use that is saved for the backward pass
// is a candidate for a copy. bytes() then adds what the strategy's splits say: all that is kept,
// and each copy whose placement differs from that of the first use. It costs O(uses) a strategy.
#include "sim/program_memory.h"

namespace flexlegion {

ProgramMemory::ProgramMemory(const Problem& problem) : problem_(problem) {
  if (problem.program_capacity < 0) return;
  const Graph& graph = problem.graph;
  IdVector<TensorId, Place> first(graph.tensors.size(), Place{OpId(0), -1, -1});
  for (OpId op : graph.operators.ids()) {
    const auto& operands = graph.operators[op].operands;
    const int count = static_cast<int>(operands.size());
    const bool again = graph.operators[op].again;
    for (int i = 0; i < count; ++i) {
      const Operand& its = operands[static_cast<std::size_t>(i)];
      Place& found = first[its.tensor];
      const bool seen = found.operand >= 0;
      if (graph.tensors[its.tensor].kind == TensorKind::input) continue;
      if (!seen) {
        const bool weight = its.role == Role::weight;
        const int sharding = weight ? static_cast<int>(graph.operators[op].sharding) : 0;
        found = {op, i, sharding * count + i};
        if (weight || !again) kept_.push_back(found);
      } else if (!again && its.role == Role::input && its.saved_for_backward &&
                 graph.tensors[its.tensor].kind == TensorKind::activation) {
        copies_.push_back({{op, i, i}, found});
      }
    }
  }
}

std::int64_t ProgramMemory::bytes(const PricedStrategy& strategy) const {
  const auto split = [&](const Place& place) -> const Split& {
    return problem_.split(place.op, strategy[place.op].split);
  };
  std::int64_t sum = problem_.program_always;
  for (const Place& place : kept_) {
    sum += split(place).kept[static_cast<std::size_t>(place.bytes)];
  }
  for (const auto& [read, written] : copies_) {
    const auto at = static_cast<std::size_t>(read.operand);
    const Split& its = split(read);
    if (its.placed[at] != split(written).placed[static_cast<std::size_t>(written.operand)]) {
      sum += its.kept[at];
    }
  }
  return sum;
}

}  // namespace flexlegion
