// The launches of a training iteration, and the flows between them, as the graph alone says: who
// touches each place, in the order of issue, and how.
//
// A flow is of one place or of several: the values and gradients of activations have a flow each,
// and so have the iteration's fields; but all weights that an operator updates travel together,
// with the gradients that the update reads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "plan/registers.h"
#include "sim/problem.h"

namespace flexlegion {

// Names a flow by what it carries.
enum class FlowKind {
  value,     // of an activation or input: from its producer to its readers; or of what is gathered
             // of a weight
  gradient,  // of an activation: from its readers to its producer; of a weight that is sharded, to
             // who reduces it
  weights,   // of an operator: gradients to update tasks (of a table: those of what was looked up),
             // by way of nodes' sums or not; updated shards to who reads them next, or to the
             // tasks that spread them, and from these to who reads them
  iteration,  // of a field of the iteration: from tasks that write elements to those that read all
  partial,    // of an activation's value: from forward tasks to those that sum
  kept,       // of a tensor that training does not change: nothing moves, but who uses it holds it
  turns,      // of a register for what is computed or gathered on demand: who has it next waits
};

// How the tasks of a launch come by what they use.
enum class Comes {
  writes,
  spreads,  // waits for those that wrote it, and is whom others get it from
  waits,    // for those that wrote it before, in this iteration
  next,     // from those that write it later, for the next iteration
  found,    // in memory: a launch with the same tasks has read it before, and waited for it
  // Likewise, where that launch wrote a value. If it wrote partial values, each task has just one.
  found_unless_partial,
  held,  // nothing moves to it in training; it takes part in other runs, or nobody writes the place
};

// A use of a place by a launch.
struct FlowUse : Use {
  int launch = -1;  // of LaunchGraph::launches or, counted on, LaunchGraph::others
  int party = -1;   // of the flow; or -1
  Comes comes = Comes::held;
};

// All uses of a place: those that write it, those that spread it, the others; each in the order of
// issue.
struct PlaceUses {
  Place place;
  std::vector<FlowUse> uses;
};

struct FlowId {
  FlowKind kind = FlowKind::value;
  OpId op = {};                        // of `weights`
  TensorId tensor = {};                // of all others but `iteration`
  Field field = Field::value;          // of `iteration`
  std::vector<PlaceUses> places = {};  // what it carries
  std::vector<int> parties = {};       // launches at its ends: first those that write
  int writers = 0;                     // how many of the parties write
  std::vector<char> waits = {};        // a party: whether its tasks wait for what others wrote
  bool in_rounds = false;              // all parties are launches of every round
  bool of_each_round = false;          // what ends the iteration reads it of every round
  std::vector<int> fed = {};           // launches whose tasks' times depend on what it brings
  std::vector<OpId> ops = {};          // whose configurations it depends on
  RegisterNumbers registers = {};      // of its only place, if that has any (plan/registers.h)
  // Whether who writes that place waits for the register, as nothing else may hold it back: what is
  // computed again could be before the backward pass begins, weights could all be gathered at once,
  // and partial gradients be there long before they are reduced.
  bool takes_turns = false;
  // Of `turns`: the register, and the flows of those that take turns in it, in their order.
  int register_number = -1;
  bool local = false;
  std::vector<int> tenants = {};
  int group = 0;  // flows of one group are equal if these are
};

// The number of the operator, tensor or field that a launch or flow is of.
inline int number_of(const LaunchKey& its) {
  return its.op.none() ? its.tensor.value : its.op.value;
}
inline int number_of(const FlowId& its) {
  if (its.kind == FlowKind::iteration) return static_cast<int>(its.field);
  if (its.kind == FlowKind::turns) return its.register_number;
  return its.op.none() ? its.tensor.value : its.op.value;
}

struct OutFlow {
  int flow, slot;  // the launch is the flow's `slot`-th writer
};

struct InFlow {
  int flow, party;
};

// A launch touches what has registers: the flow of that, and which use it is of the flow's place.
struct TenantUse {
  int flow, use;
};

struct OperandRef {
  OpId op;
  int operand = -1;
};

struct LaunchGraph {
  explicit LaunchGraph(const Problem& problem);

  int launch_of(Pass pass, OpId op) const { return numbers[static_cast<int>(pass)][op]; }
  // Of a FlowUse.
  const LaunchKey& key_of(int launch) const {
    const auto l = static_cast<std::size_t>(launch);
    return l < launches.size() ? launches[l] : others[l - launches.size()];
  }

  // Of each party of a flow of one place, the launch whose task k is the last to use what the
  // party's task k has in memory. It is the party itself, or its follower if that finds the tensor
  // there, as a backward launch may; and so on from follower to follower.
  std::vector<int> last_uses(const FlowId& id) const;

  std::vector<LaunchKey> launches;       // in the order of issue; those that training executes
  std::vector<LaunchKey> others;         // those that it does not, but prediction or evaluation
  IdVector<OpId, int> numbers[kPasses];  // by pass: launch, or -1
  IdVector<TensorId, int> load_of;       // likewise
  // A launch: the launch of the same operator whose k-th task follows the k-th one, as a backward
  // task follows its forward task; or -1.
  std::vector<int> follower_of;
  std::vector<int> followed_by;  // the other way: the launch whose k-th task a k-th one follows
  std::vector<FlowId> flows;
  std::vector<std::vector<OutFlow>> out_flows;  // a launch
  std::vector<std::vector<InFlow>> in_flows;    // a launch
  std::vector<std::vector<int>> feeding;        // a launch: flows that its tasks' times depend on
  std::vector<std::vector<TenantUse>> tenants;  // a launch
  int registers = 0;
  // What depends on an operator's configuration.
  IdVector<OpId, std::vector<int>> launches_of_op, flows_of_op;

  IdVector<TensorId, OperandRef> producers;

 private:
  void find_launches(const Problem& problem);
  void find_uses(const Problem& problem);
  Comes comes_by(const Use& use, int launch, const std::vector<std::vector<Use>>& of_launch) const;
  std::vector<int> launches_sharing(OpId op, std::initializer_list<Shares> which) const;
  void find_tensor_flows(const Problem& problem, TensorId tensor);
  void add_value_flows(PlaceUses value, PlaceUses partial);
  void add_gradient_flow(PlaceUses gradient, bool takes_turns);
  void find_shard_flows(const Problem& problem, TensorId tensor);
  void find_turns();
  void find_weight_flows(const Problem& problem);
  void find_iteration_flows();
  bool is_summed(const Place& place) const;
  PlaceUses uses_at(const Place& place) const;
  void add_flow(FlowId id);
  void group_flows(const Problem& problem);

  Registers registers_;
  std::vector<OpId> deciding_;  // a launch: the operator whose configuration decides on its tasks
  std::map<Place, std::vector<FlowUse>> uses_;  // in the order of issue
};

}  // namespace flexlegion
