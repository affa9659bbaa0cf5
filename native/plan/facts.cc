// What follows from the graph alone (facts.h), in a few passes over its operators.
//
// - Runs: backwards from what each kind of run wants. Training and evaluation want the losses,
//   prediction the outputs; an operator takes part if something that it writes is wanted.
// - Differentiable tensors: forwards from the weights that are trained.
// - Backward: an operator runs backward if it has a gradient to hand on and somebody who wants it.
//   If all that it has to give is a table's gradient, it does not: the table's update reads the
//   output's gradient itself.
// - Again: from the last operator to the first, who is to be run again (Operator::again) and whose
//   outputs the backward pass reads, be it those who are run again themselves.
// - Owners: the first operator that trains a weight updates it for all that share it, and says what
//   of it is sharded.
//
// Operators are in topological order, so one pass suffices for each. Costs: the number of operands.
#include "plan/facts.h"

#include <algorithm>
#include <cstddef>

namespace flexlegion {

namespace {

// Which operators each kind of run executes: the ancestors of what it wants.
IdVector<OpId, unsigned> runs_of(const Graph& graph, const std::vector<TensorId>& outputs) {
  const auto& ops = graph.operators;
  IdVector<OpId, unsigned> runs(ops.size(), 0);
  IdVector<TensorId, unsigned> wanted(graph.tensors.size(), 0);
  for (TensorId output : outputs) wanted[output] |= kPredicts;
  for (OpId op : ops.ids().reversed()) {
    runs[op] = ops[op].is_loss ? unsigned{kTrains} | unsigned{kEvaluates} : 0u;
    for (const Operand& o : ops[op].operands) {
      if (o.role == Role::output) runs[op] |= wanted[o.tensor];
    }
    for (const Operand& o : ops[op].operands) {
      if (o.role != Role::output) wanted[o.tensor] |= runs[op];
    }
  }
  return runs;
}

// A tensor has a gradient if it is a weight, if it was asked for, or if it depends on such a
// tensor and is not detached.
IdVector<TensorId, bool> differentiable_tensors(const Graph& graph) {
  IdVector<TensorId, bool> result(graph.tensors.size());
  for (TensorId t : result.ids()) result[t] = graph.tensors[t].needs_gradient;
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
bool has_output_gradient(const Operator& op, const IdVector<TensorId, bool>& differentiable) {
  return op.is_loss || std::any_of(op.operands.begin(), op.operands.end(), [&](const Operand& o) {
           return o.role == Role::output && differentiable[o.tensor];
         });
}

// Consumers come after their producers, so from the last operator to the first all who read an
// output are known.
void find_recomputed(const Graph& graph, GraphFacts& facts) {
  IdVector<TensorId, bool>& needed = facts.needed_backward;
  needed.assign(graph.tensors.size(), false);
  facts.again.assign(graph.operators.size(), false);
  facts.recomputed.assign(graph.tensors.size(), false);
  for (OpId op : graph.operators.ids().reversed()) {
    const Operator& its = graph.operators[op];
    for (const Operand& o : its.operands) {
      if (facts.backward[op] && o.saved_for_backward) needed[o.tensor] = true;
    }
    const bool read = std::any_of(its.operands.begin(), its.operands.end(), [&](const Operand& o) {
      return o.role == Role::output && needed[o.tensor];
    });
    if (!its.again || !read || !(facts.runs[op] & kTrains)) continue;
    facts.again[op] = true;
    for (const Operand& o : its.operands) {
      (o.role == Role::output ? facts.recomputed : needed)[o.tensor] = true;
    }
  }
}

void find_sharding(const Graph& graph, GraphFacts& facts) {
  facts.sharding.assign(graph.tensors.size(), Sharding::states);
  for (OpId op : graph.operators.ids()) {
    for (int i : facts.summed_weights(graph, op)) {
      facts.sharding[graph.operators[op].operands[i].tensor] = graph.operators[op].sharding;
    }
  }
}

}  // namespace

// The weights that an operator's update changes: each once, even if the operator reads it twice.
std::vector<int> GraphFacts::owned_weights(const Graph& graph, OpId op) const {
  const auto& operands = graph.operators[op].operands;
  std::vector<int> owned;
  std::vector<TensorId> tensors;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const TensorId t = operands[i].tensor;
    if (graph.tensors[t].kind != TensorKind::weight || !differentiable[t] || owner[t] != op) {
      continue;
    }
    if (std::find(tensors.begin(), tensors.end(), t) != tensors.end()) continue;  // read twice
    tensors.push_back(t);
    owned.push_back(i);
  }
  return owned;
}

std::vector<int> GraphFacts::summed_weights(const Graph& graph, OpId op) const {
  std::vector<int> summed = owned_weights(graph, op);
  const auto of_table = [&](int i) { return is_table(graph.operators[op].operands[i].tensor); };
  summed.erase(std::remove_if(summed.begin(), summed.end(), of_table), summed.end());
  return summed;
}

// Some operand to whose gradient each part has a share of its own keeps all parts busy.
bool GraphFacts::first_part_alone(const Operator& op) const {
  return std::none_of(op.operands.begin(), op.operands.end(), [&](const Operand& o) {
    return contributes(o) && !of_first_part_alone(op, o);
  });
}

bool GraphFacts::contributes(const Operand& operand) const {
  return operand.role != Role::output && differentiable[operand.tensor] &&
         !is_table(operand.tensor);
}

// In this order, since each fact needs those before it: runs, differentiable tensors, backward and
// owners, gradients.
GraphFacts facts_of(const Graph& graph, const std::vector<TensorId>& outputs, Optimizer optimizer) {
  GraphFacts facts;
  optimizer.scales =
      std::any_of(graph.tensors.begin(), graph.tensors.end(),
                  [](const Tensor& tensor) { return tensor.type == DataType::float16; });
  optimizer.needs_norm = optimizer.needs_norm || optimizer.scales;
  facts.optimizer = optimizer;
  facts.runs = runs_of(graph, outputs);
  facts.used_in.assign(graph.tensors.size(), 0);
  for (OpId op : graph.operators.ids()) {
    for (const Operand& o : graph.operators[op].operands) facts.used_in[o.tensor] |= facts.runs[op];
  }
  facts.value_lasts.assign(graph.tensors.size(), false);
  facts.gradient_lasts.assign(graph.tensors.size(), false);
  facts.predicted.assign(graph.tensors.size(), false);
  for (TensorId output : outputs) facts.predicted[output] = true;
  facts.differentiable = differentiable_tensors(graph);
  const IdVector<TensorId, bool> tables = tables_of(graph);
  const IdRange<OpId> ops = graph.operators.ids();
  facts.backward.resize(graph.operators.size());
  facts.owner.resize(graph.tensors.size());
  facts.table.resize(graph.operators.size());
  for (OpId op : ops) {
    if (!(facts.runs[op] & kTrains)) continue;
    if (!has_output_gradient(graph.operators[op], facts.differentiable)) continue;
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role == Role::output) continue;
      if (!facts.differentiable[o.tensor]) continue;
      const bool weight = graph.tensors[o.tensor].kind == TensorKind::weight;
      // The first one keeps it.
      if (weight && facts.owner[o.tensor].none()) facts.owner[o.tensor] = op;
      if (tables[o.tensor]) {
        facts.table[op] = o.tensor;
        facts.lookups[o.tensor].push_back(op);
      } else {
        facts.backward[op] = true;
      }
    }
  }
  for (const auto& [table, readers] : facts.lookups) {
    for (OpId op : readers) {
      facts.value_lasts[graph.operators[op].tokens()->tensor] = true;
      facts.gradient_lasts[graph.operators[op].primary_output().tensor] = true;
    }
  }
  find_recomputed(graph, facts);
  find_sharding(graph, facts);
  facts.has_gradient.resize(graph.tensors.size());
  facts.readers.resize(graph.tensors.size());
  facts.contributors.resize(graph.tensors.size());
  for (OpId op : ops) {
    if (!(facts.runs[op] & kTrains)) continue;
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role != Role::output) facts.readers[o.tensor].push_back(op);
      if (!facts.backward[op] || !facts.contributes(o)) continue;
      facts.has_gradient[o.tensor] = true;
      facts.contributors[o.tensor].push_back(op);
    }
  }
  return facts;
}

// The first operator that reads the tensor in any run decides how a batch is cut.
LoadSource load_source(const Graph& graph, const GraphFacts& facts, TensorId tensor) {
  for (OpId op : graph.operators.ids()) {
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
  // The reader's tasks that share a tile of samples follow each other; the batch goes to the first
  // of each such group.
  const int stride = static_cast<int>(devices.size()) / parts;
  ParallelConfig config;
  config.degrees.assign(graph.tensors[o.tensor].shape.size(), 1);
  config.degrees[0] = parts;
  for (int k = 0; k < parts; ++k) config.devices.push_back(devices[k * stride]);
  return config;
}

}  // namespace flexlegion
