// The launches of a training iteration and the flows between them: what follows from the operator
// graph alone. What they take and carry depends on configurations (flow_rules.h). Flows join who
// writes and who reads a field of a tensor, as the launches say what they use (plan/launches.h):
//
// - A tensor that is no weight has a flow of its value: from the launch that writes it (its
//   producer's forward launch, or the load) to all forward launches that read it. If training wants
//   its gradient, it has another: from the readers' backward launches to the producer's.
// - A tensor whose producer has reductions may have partial values (plan/plan.h). Either the flow
//   of its value carries these from the forward launch to the readers, each of which combines them;
//   or another flow carries them to the sum launch, and that of the value what that one writes.
// - A weight that is not trained, and any tensor that training does not touch, has a flow in which
//   nothing moves, for the memory that it takes. A process that trains also predicts, and an
//   instance is as large as any run wants it: memory is that of all launches of the plan.
// - The weights that one operator updates share a flow: from the backward launches that contribute
//   to their gradients to the update launch, and from there to whoever reads the weights next.
//   Of a table, the gradients are those of what was looked up in it. Where gradients are clipped,
//   it is the norm launch that waits for them; the update finds them in its memory.
// - A field of the iteration, such as the norms by which gradients are clipped, has a flow from the
//   launches that write elements of it to those that read them all.
#pragma once

#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "plan/launches.h"
#include "sim/problem.h"

namespace flexlegion {

enum class FlowKind {
  value,     // of an input or activation: from load or forward tasks to forward tasks
  gradient,  // of an activation: from backward tasks of its readers to those of its producer
  weights,   // of an operator: gradients to update tasks (of a table: those of what was looked up),
             // updated shards to who reads them next
  iteration,  // of a field of the iteration: from tasks that write elements to those that read all
  partial,    // of an activation's value: from forward tasks to those that sum
  kept,       // of a tensor that training does not change: nothing moves, but who uses it holds it
};

struct FlowId {
  FlowKind kind = FlowKind::value;
  OpId op = {};                   // of `weights`
  TensorId tensor = {};           // of all others but `iteration`
  Field field = Field::value;     // of `iteration`
  std::vector<int> parties = {};  // launches at its ends: first those that write
  int writers = 0;                // how many of the parties write
  std::vector<int> fed = {};      // launches whose tasks' times depend on what the flow brings; of
                                  // weights and gradients, the one that waits for it first
  std::vector<OpId> ops = {};     // whose configurations it depends on
  int group = 0;                  // flows of one group are equal if these configurations are

  // Whether the tasks of a party wait for what others wrote; or, if they read it, the next
  // iteration's do.
  bool waits(int party) const {
    return kind == FlowKind::weights ? parties[party] == fed.front() : party >= writers;
  }
};

// The number of the operator, tensor or field that a launch or flow is of.
inline int number_of(const LaunchKey& its) {
  return its.op.none() ? its.tensor.value : its.op.value;
}
inline int number_of(const FlowId& its) {
  if (its.kind == FlowKind::iteration) return static_cast<int>(its.field);
  return its.op.none() ? its.tensor.value : its.op.value;
}

struct OutFlow {
  int flow, slot;  // the launch is the flow's `slot`-th writer
};

struct InFlow {
  int flow, party;
};

struct OperandRef {
  OpId op;
  int operand = -1;
};

struct LaunchGraph {
  explicit LaunchGraph(const Problem& problem);

  int launch_of(Pass pass, OpId op) const { return numbers[static_cast<int>(pass)][op]; }

  // The launch that waits for the gradients of the weights that `op` updates.
  int first_reader(OpId op) const { return closing[op].front(); }

  std::vector<LaunchKey> launches;       // in the order of issue; those that training executes
  IdVector<OpId, int> numbers[kPasses];  // by pass: launch, or -1
  IdVector<TensorId, int> load_of;       // likewise
  // Of the operators that own weights: their launches that read these weights' gradients, in the
  // order of issue. The last one updates the weights.
  IdVector<OpId, std::vector<int>> closing;
  // A launch: the launch of the same operator whose k-th task follows the k-th one, as a backward
  // task follows its forward task; or -1.
  std::vector<int> follower_of;
  std::vector<FlowId> flows;
  std::vector<std::vector<OutFlow>> out_flows;  // a launch
  std::vector<std::vector<InFlow>> in_flows;    // a launch
  std::vector<std::vector<int>> feeding;        // a launch: flows that its tasks' times depend on
  // What depends on an operator's configuration.
  IdVector<OpId, std::vector<int>> launches_of_op, flows_of_op;
  std::vector<int> group_sizes;  // how many flows each group has

  IdVector<TensorId, LoadSource> load_sources;
  IdVector<TensorId, OperandRef> producers;
  IdVector<TensorId, std::vector<OperandRef>> readers;        // in training
  IdVector<TensorId, std::vector<OperandRef>> other_readers;  // in prediction or evaluation alone
  IdVector<TensorId, std::vector<OpId>> lookups_of;           // who looks its tokens up

 private:
  // Of a field of a tensor: the launches that write and that read it, in the order of issue.
  struct Users {
    std::vector<int> writers, readers;
  };

  void find_launches(const Problem& problem);
  void find_uses(const Problem& problem);
  void find_tensor_flows(const Problem& problem, TensorId tensor);
  void find_weight_flows(const Problem& problem);
  void find_iteration_flows();
  std::vector<OpId> deciding(std::initializer_list<const std::vector<int>*> launches) const;
  void add_flow(FlowId id, const std::vector<int>& writers, const std::vector<int>& to,
                const std::vector<int>& fed, const std::vector<OpId>& ops);
  void group_flows(const Problem& problem);

  std::vector<OpId> deciding_;  // a launch: the operator whose configuration decides on its tasks
  std::map<std::pair<TensorId, Field>, Users> users_;  // no tensor: fields of the iteration
};

}  // namespace flexlegion
