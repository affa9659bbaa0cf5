// Where data lies, whatever its rectangle, and why launches touch it. Plan, simulator and runtime
// name both by these types.
#pragma once

#include <tuple>

#include "plan/graph.h"

namespace flexlegion {

// Of a tensor: its value, the partial values that the value is combined of, its gradient, the sums
// of each node's part of a weight's gradient, and states of the optimizer. If a weight is sharded
// (Sharding): the copy of its value that readers gather, and its gradient, shard by shard. The
// others are the iteration's: each task that writes one has an element of its own there, and who
// reads it reads all elements.
enum class Field {
  value,
  partial,
  copy,
  gradient,
  node_sums,
  reduced,
  state,
  norms,
  total_norm,
};
constexpr int kFields = static_cast<int>(Field::total_norm) + 1;
const char* name_of(Field field);
inline bool of_iteration(Field field) { return field > Field::state; }

// What the backward pass computes again (Operator::again), or gathers again, is another place there
// than what the forward pass had: this `index`.
constexpr int kRecomputed = 1;

// Tasks that touch different places never wait for each other.
struct Place {
  TensorId tensor;  // none, of the iteration's fields
  Field field = Field::value;
  int index = 0;   // which one of several: of a state, which of the optimizer's; or kRecomputed,
                   // of values and copies
  int buffer = 0;  // which one of those that rounds take in turn

  friend bool operator==(const Place& a, const Place& b) { return a.order() == b.order(); }
  friend bool operator!=(const Place& a, const Place& b) { return !(a == b); }
  friend bool operator<(const Place& a, const Place& b) { return a.order() < b.order(); }

 private:
  std::tuple<TensorId, Field, int, int> order() const { return {tensor, field, index, buffer}; }
};

enum class Privilege { read, write, read_write };

// Why a launch touches a field of a tensor. The field and the privilege follow from it; but where
// the strategy splits a reduction, the plan turns values into partial ones (plan.h).
enum class RequirementRole {
  // load
  loaded,  // a batch, brought into an input tensor
  // gather
  shard,     // of a weight
  gathered,  // the same, where readers of the weight get it from
  // forward
  input,           // a value that was loaded or computed
  weight,          // a weight's value, as an operand of whatever role
  operator_state,  // read and written by its operator's forward pass
  output,
  // sum
  partial,  // of an output, a shard of its partial values
  summed,   // that shard of the output's value
  // backward
  saved,            // a value that forward read or wrote
  output_gradient,  // of an output; its partial values are summed
  contribution,     // a partial value of an input's or a weight's gradient
  // reduce
  partial_gradient,  // of a weight's shard; its partial values, or nodes' sums, are summed
  reduced,           // what they sum to, of all micro-batches
  // node_sum and node_reduce
  node_gradient,  // of a weight's shard, the partial values of one node; they are summed
  node_sum,       // what they sum to
  // norm, clip and update
  weight_gradient,   // of a weight's shard; its partial values, or nodes' sums, are summed, unless
                     // it is reduced
  looked_up_tokens,  // which rows of a table were read
  looked_up_gradient,  // of these rows, in a shard's columns; its partial values are summed
  norm,                // of all these gradients of a task
  all_norms,           // of all tasks
  total_norm,          // the norm of these
  updated,             // a weight's shard
  optimizer_state,     // of that shard
  clipped_by,          // the total norm
  // spread, gather_spread and again_spread
  spread,  // of a weight, what other nodes have updated, or gather, of a shard
};

constexpr int kRoles = static_cast<int>(RequirementRole::spread) + 1;

// What follows from a role.
struct RoleRow {
  const char* name;
  Field field;
  Privilege privilege;
};
const RoleRow& row_of(RequirementRole role);

// Of optimizer states, and of the iteration's fields.
constexpr DataType kStateType = DataType::float32;
// What a field's elements are stored as; of the iteration's fields, the tensor is none.
DataType type_of(const Graph& graph, const Place& place);

// A place that a launch touches, and why.
struct Use : Place {
  RequirementRole role = RequirementRole::input;
  int operand = 0;  // index into the operator's operands; of an update, the weight it serves
  OpId lookup;      // of what was looked up: the operator that did
  Privilege privilege = Privilege::read;

  // Whether it reads partial gradients of a weight, or in their place the sums of nodes.
  bool sums_gradient() const {
    return field == Field::gradient &&
           (role == RequirementRole::weight_gradient || role == RequirementRole::partial_gradient);
  }
};

}  // namespace flexlegion
