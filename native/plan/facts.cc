#include "plan/facts.h"

#include <algorithm>
#include <cstddef>

namespace flexlegion {

namespace {

// Which operators each kind of run executes: the ancestors of what it wants.
std::vector<unsigned> runs_of(const Graph& graph, const std::vector<int>& outputs) {
  const auto& ops = graph.operators;
  std::vector<unsigned> runs(ops.size(), 0), wanted(graph.tensors.size(), 0);
  for (int output : outputs) wanted[static_cast<std::size_t>(output)] |= kPredicts;
  for (std::size_t op = ops.size(); op-- > 0;) {
    runs[op] = ops[op].is_loss ? unsigned{kTrains} | unsigned{kEvaluates} : 0u;
    for (const Operand& o : ops[op].operands) {
      if (o.role == Role::output) runs[op] |= wanted[static_cast<std::size_t>(o.tensor)];
    }
    for (const Operand& o : ops[op].operands) {
      if (o.role != Role::output) wanted[static_cast<std::size_t>(o.tensor)] |= runs[op];
    }
  }
  return runs;
}

// A tensor has a gradient if it is a weight, if it was asked for, or if it depends on such a
// tensor and is not detached.
std::vector<bool> differentiable_tensors(const Graph& graph) {
  std::vector<bool> result(graph.tensors.size());
  for (std::size_t t = 0; t < result.size(); ++t) result[t] = graph.tensors[t].needs_gradient;
  for (const Operator& op : graph.operators) {
    bool any = false;
    for (const Operand& o : op.operands) any |= o.role != Role::output && result[o.tensor];
    for (const Operand& o : op.operands) {
      if (o.role == Role::output) result[o.tensor] = any && !graph.tensors[o.tensor].detached;
    }
  }
  return result;
}

// Whether an operator has a gradient to hand on: a loss's own, or one of an output.
bool has_output_gradient(const Operator& op, const std::vector<bool>& differentiable) {
  return op.is_loss || std::any_of(op.operands.begin(), op.operands.end(), [&](const Operand& o) {
           return o.role == Role::output && differentiable[o.tensor];
         });
}

}  // namespace

std::vector<int> GraphFacts::owned_weights(const Graph& graph, int op) const {
  const auto& operands = graph.operators[op].operands;
  std::vector<int> owned, tensors;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const int t = operands[i].tensor;
    if (graph.tensors[t].kind != TensorKind::weight || !differentiable[t] || owner[t] != op) {
      continue;
    }
    if (std::find(tensors.begin(), tensors.end(), t) != tensors.end()) continue;  // read twice
    tensors.push_back(t);
    owned.push_back(i);
  }
  return owned;
}

bool GraphFacts::contributes(const Operand& operand) const {
  return operand.role != Role::output && differentiable[operand.tensor] &&
         !is_table(operand.tensor);
}

GraphFacts facts_of(const Graph& graph, const std::vector<int>& outputs, Optimizer optimizer) {
  GraphFacts facts;
  facts.optimizer = optimizer;
  facts.runs = runs_of(graph, outputs);
  facts.differentiable = differentiable_tensors(graph);
  const std::vector<bool> tables = tables_of(graph);
  const int n = static_cast<int>(graph.operators.size());
  facts.backward.assign(graph.operators.size(), false);
  facts.owner.assign(graph.tensors.size(), -1);
  facts.table.assign(graph.operators.size(), -1);
  for (int op = 0; op < n; ++op) {
    if (!(facts.runs[op] & kTrains)) continue;
    if (!has_output_gradient(graph.operators[op], facts.differentiable)) continue;
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role == Role::output) continue;
      if (!facts.differentiable[o.tensor]) continue;
      const bool weight = graph.tensors[o.tensor].kind == TensorKind::weight;
      if (weight && facts.owner[o.tensor] < 0) facts.owner[o.tensor] = op;
      if (tables[o.tensor]) {
        facts.table[op] = o.tensor;
        facts.lookups[o.tensor].push_back(op);
      } else {
        facts.backward[op] = true;
      }
    }
  }
  facts.has_gradient.assign(graph.tensors.size(), false);
  for (int op = 0; op < n; ++op) {
    if (!facts.backward[op]) continue;
    for (const Operand& o : graph.operators[op].operands) {
      if (facts.contributes(o)) facts.has_gradient[o.tensor] = true;
    }
  }
  for (int t = 0; t < static_cast<int>(graph.tensors.size()); ++t) {
    if (graph.tensors[t].kind == TensorKind::input &&
        load_source(graph, facts, t).first_reader >= 0) {
      facts.launches.push_back({Pass::load, t});
    }
  }
  for (int op = 0; op < n; ++op) {
    if (facts.runs[op] == 0) continue;
    facts.launches.push_back({Pass::forward, op});
    if (!graph.operators[op].reductions.empty()) facts.launches.push_back({Pass::sum, op});
  }
  for (int op = n - 1; op >= 0; --op) {
    if (facts.backward[op]) facts.launches.push_back({Pass::backward, op});
  }
  std::vector<int> updated;
  for (int op = n - 1; op >= 0; --op) {
    if (facts.runs[op] & kTrains && !facts.owned_weights(graph, op).empty()) updated.push_back(op);
  }
  if (optimizer.clips && !updated.empty()) {
    for (int op : updated) facts.launches.push_back({Pass::norm, op});
    facts.launches.push_back({Pass::clip, updated.back()});  // whose gradients are there last
  }
  for (int op : updated) facts.launches.push_back({Pass::update, op});
  return facts;
}

LoadSource load_source(const Graph& graph, const GraphFacts& facts, int tensor) {
  for (int op = 0; op < static_cast<int>(graph.operators.size()); ++op) {
    if (facts.runs[op] == 0) continue;
    const auto& operands = graph.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      if (operands[i].tensor == tensor) return {op, i};
    }
  }
  return {};
}

ParallelConfig load_config(const Graph& graph, const LoadSource& source,
                           const std::vector<int>& degrees, const std::vector<int>& devices) {
  const Operand& o = graph.operators[source.first_reader].operands[source.operand];
  // Without an output dimension for the samples, the reader does not cut them.
  const int parts = o.map[0].out_dim == 0 ? degrees[0] : 1;
  const int stride = static_cast<int>(devices.size()) / parts;
  ParallelConfig config;
  config.degrees.assign(graph.tensors[o.tensor].shape.size(), 1);
  config.degrees[0] = parts;
  for (int k = 0; k < parts; ++k) config.devices.push_back(devices[k * stride]);
  return config;
}

}  // namespace flexlegion
