// What follows from the graph and the optimizer alone, whatever the strategy: which operators run
// backward, which tensors have gradients, who updates which weight.
#pragma once

#include <map>
#include <vector>

#include "plan/passes.h"

namespace flexlegion {

// What has to be known of the optimizer, and of how the gradients come to it.
constexpr int kMaxStates = 1000;
struct Optimizer {
  int states = 0;           // fields that it keeps for each trained weight
  bool needs_norm = false;  // that of all gradients together, before any of them is used
  bool lazy = false;        // of a table, it changes the looked-up rows alone; for what is charged
  bool scales = false;      // gradients are scaled up: float16 has to hold them (ops/narrow.h)

  // Those of a trained weight, with its master if it has one.
  int states_of(const Tensor& weight) const { return states + (weight.has_master() ? 1 : 0); }
};

struct GraphFacts {
  Optimizer optimizer;
  IdVector<OpId, unsigned> runs;            // in which runs it takes part
  IdVector<TensorId, unsigned> used_in;     // in which runs some operator touches it
  IdVector<TensorId, bool> differentiable;  // whether training wants its gradient
  IdVector<OpId, bool> backward;            // whether training runs it backward
  // Whether training runs it forward again, for the backward pass: it is to (Operator::again), and
  // something that runs backward, or is itself run again, reads what it computes.
  IdVector<OpId, bool> again;
  IdVector<TensorId, bool> has_gradient;  // whether some backward launch contributes to one
  // Which operators read a tensor in training, and which of them contribute to its gradient.
  IdVector<TensorId, std::vector<OpId>> readers, contributors;
  // Whether a value or gradient is needed when all micro-batches are through: the update of a table
  // reads which rows were looked up, or the gradient of what was.
  IdVector<TensorId, bool> value_lasts, gradient_lasts;
  // Whether prediction returns the value. It predicts one micro-batch after the other.
  IdVector<TensorId, bool> predicted;
  IdVector<TensorId, OpId> owner;                 // of a weight, the first operator that trains it
  IdVector<OpId, TensorId> table;                 // the trained table in which it looks rows up
  std::map<TensorId, std::vector<OpId>> lookups;  // a trained table: who looks rows up in it

  IdVector<TensorId, bool> recomputed;  // whether an operator that is run again computes it
  // Of a weight that is trained, as its owner says; but tables' rows move as they are looked up.
  IdVector<TensorId, Sharding> sharding;
  IdVector<TensorId, bool>
      needed_backward;  // whether a launch of the backward pass reads the value

  bool is_table(TensorId tensor) const { return lookups.count(tensor) > 0; }
  bool gathers(TensorId weight) const { return sharding[weight] == Sharding::weights; }
  bool reduces(TensorId weight) const { return sharding[weight] != Sharding::states; }
  // Whether something reads a place after the launches that use it, so that nobody else can have
  // its memory then.
  bool lasts(const Place& place) const {
    if (place.field == Field::gradient) return gradient_lasts[place.tensor];
    return place.field != Field::copy && place.index != kRecomputed &&
           (value_lasts[place.tensor] || predicted[place.tensor]);
  }
  // Of a tensor's value, the place in which the forward pass and the backward pass have it.
  Place for_forward(Place value) const {
    if (gathers(value.tensor)) value.field = Field::copy;
    return value;
  }
  Place for_backward(Place value) const {
    value = for_forward(value);
    if (recomputed[value.tensor] || gathers(value.tensor)) value.index = kRecomputed;
    return value;
  }

  // Whether a backward launch of an operator with this operand writes a partial value of its
  // tensor's gradient. (A table's gradient is never written down.)
  bool contributes(const Operand& operand) const;
  // Whether of an operator's backward tasks those of the first part alone have something to
  // contribute: where partial values are multiplied with nothing, a weight say, of whose gradient
  // each part has its own share.
  bool first_part_alone(const Operator& op) const;
  // The operands of `op` that are weights which its update launch covers, each weight once.
  std::vector<int> owned_weights(const Graph& graph, OpId op) const;
  // Those of them whose gradients are sums of partial gradients: all but tables.
  std::vector<int> summed_weights(const Graph& graph, OpId op) const;
};

// `outputs` are the tensors that prediction wants. Whether gradients are scaled follows from the
// graph, too; if they are, their norm is needed.
GraphFacts facts_of(const Graph& graph, const std::vector<TensorId>& outputs,
                    Optimizer optimizer = {});

// How a batch is loaded: cut by samples as the tensor's first reader cuts it, where that runs.
// `operand` is the index of its operand.
struct LoadSource {
  OpId first_reader;
  int operand = -1;
};
LoadSource load_source(const Graph& graph, const GraphFacts& facts, TensorId tensor);
ParallelConfig load_config(const Graph& graph, const LoadSource& source,
                           const std::vector<int>& degrees, const std::vector<int>& devices);

}  // namespace flexlegion
