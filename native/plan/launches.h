// The launches of an iteration, stated once: whose tasks run where, what they touch, and why. The
// plan, the measurement of single tasks, the runtime's update bodies and the cost models take it
// from here.
//
// What a launch touches follows from the graph alone: uses_of(). Which rectangles its tasks touch
// follows from one operator's configuration: launch_of(). What remains is the plan's (plan.h):
// where partial values of gradients, and norms, lie depends on all launches before.
#pragma once

#include <vector>

#include "plan/facts.h"

namespace flexlegion {

// Of a tensor; but the last two are the iteration's, where gradients are clipped: an element for
// each norm task, and one.
// `partial`: the partial values that a tensor's value is combined of.
enum class Field { value, partial, gradient, state, norms, total_norm };
enum class Privilege { read, write, read_write };

// Why a launch touches a field of a tensor. The field and the privilege follow from it; but where
// the strategy splits a reduction, the plan turns values into partial ones (plan.h).
enum class RequirementRole {
  // load
  loaded,  // a batch, brought into an input tensor
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
  // norm, clip and update
  weight_gradient,     // of a weight's shard; its partial values are summed
  looked_up_tokens,    // which rows of a table were read
  looked_up_gradient,  // of these rows, in a shard's columns; its partial values are summed
  norm,                // of all these gradients of a task
  all_norms,           // of all tasks
  total_norm,          // the norm of these
  updated,             // a weight's shard
  optimizer_state,     // of that shard
  clipped_by,          // the total norm
};

Field field_of(RequirementRole role);
// What a field's elements are stored as; of the iteration's fields, the tensor is none.
DataType type_of(const Graph& graph, TensorId tensor, Field field);
Privilege privilege_of(RequirementRole role);

// A field of a tensor that a launch touches.
struct Use {
  RequirementRole role = RequirementRole::input;
  int operand = 0;  // index into the operator's operands; of an update, the weight it serves
  TensorId tensor;  // none, of the iteration's fields
  int state = 0;    // which one, of an optimizer_state
  OpId lookup;      // of what was looked up: the operator that did
  Field field = Field::value;
  Privilege privilege = Privilege::read;
};

// A use, and the rectangle of each task.
struct Requirement : Use {
  // One a task, possibly empty. Those of partial values and of gradients have, in a plan, the slot
  // dimension in front: the one slot that is written, or the range of slots that is combined.
  std::vector<Rect> rects;
  std::vector<bool> adds;  // of a contribution, a task: does it add to what stands in its slot?
};

struct Launch {
  OpId op;  // none for Pass::load and Pass::clip
  Pass pass = Pass::forward;
  unsigned runs = 0;
  int parts = 1;             // of linear inputs' partial values: task k has part k modulo that
  std::vector<int> devices;  // one a task
  // Forward and backward: how the operator's space is split, and which of its tasks is the first.
  std::vector<int> degrees;
  int first_task = 0;
  std::vector<Requirement> requirements;

  int tasks() const { return static_cast<int>(devices.size()); }
};
using LaunchId = Id<Launch>;  // in the order of issue

// Whether of a backward launch the tasks of the first part alone do something
// (GraphFacts::first_part_alone).
bool first_part_alone(const Operator& op, const Launch& backward);

// Whether tasks touch the same, each; nothing is the same wherever it is.
bool touch_alike(const std::vector<Rect>& a, const std::vector<Rect>& b);

// In which runs a launch takes part (bits of Runs).
unsigned runs_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);

// What a launch touches.
std::vector<Use> uses_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);

// The operator whose configuration decides on the launch's tasks: its own, or of a load the first
// reader.
OpId decides(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);

// The launch if that operator has that configuration. Rectangles are of the tensors, without slots.
// A sum launch that the configuration does not ask for has no tasks.
Launch launch_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                 const ParallelConfig& config);

}  // namespace flexlegion
