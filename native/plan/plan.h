// The plan: what a graph under a strategy executes. For every operator and pass, one index launch;
// for every task of it, the device, and for every tensor field it touches, the rectangle and the
// privilege. The runtime launches what stands here. Launches and what they touch follow from
// launches.h; what is added here is where partial values of gradients lie.
//
// Gradients are *partial values* (OneFlow's P(sum)). The gradient of a tensor is a stack of `slots`
// copies of the tensor's shape: a backward task writes the rectangle that its forward task read
// into a slot of its own, exclusively, so that no two tasks ever add into the same memory. The one
// reader of a gradient tile (the backward task of the tensor's producer, or the update task of a
// weight's shard) sums the slots. For a weight that R devices share, R tasks write and R shards are
// read: reduce-scatter, and the next forward's reads are the all-gather. The order of every sum is
// fixed by the plan, so a run repeats bit by bit, and nothing is filled with zeros in an iteration.
// When a later operator contributes the very rectangle of an earlier one on the same device
// (weights shared between the steps of a recurrent layer), it adds into that slot instead of taking
// another.
//
// An operator whose reductions are split computes partial values of its *outputs*, too: a stack of
// as many slots (Field::partial), of which each task writes its rectangle in the slot of its part.
// Who reads the tensor combines the slots of what it reads (Sums::readers), or a sum launch does so
// before, shard by shard, and writes the value (Sums::shards): where all of R tasks read all of the
// tensor, 2 (R - 1) times its bytes move, instead of R (R - 1) times. Backward, each part has the
// whole gradient of what it is a part of.
//
// Where a weight's gradient is summed inside nodes first (shards.h), a node's partial values are in
// slots that follow each other; the sums of the nodes are another stack (Field::node_sums), of a
// slot a node, which the update sums.
//
// An iteration of m micro-batches (Graph::micro_batches) issues the launches up to the last
// backward launch m times, round after round, and those that end the iteration once. What is
// planned is one round. Its values and gradients have registers (`buffers`), which the rounds take
// in turn: round j has number j modulo these. A round waits until the register that it writes is
// free, which is all the back pressure that a pipeline needs (OneFlow, section 4.3). Of weights'
// gradients, round 0 writes its contributions, and the others add to them; the order of sums stays
// the plan's. What is needed when all rounds are over has a register for each.
//
// Of a weight, the device that updates a shard keeps the optimizer's states of the shard, and no
// others. More can be sharded (Sharding). If gradients are, a reduce launch sums the shard's
// partial values as soon as they are there, in every micro-batch, and the memory of the stack
// serves the next operator's (registers.h). If values are, too, each device keeps that of its
// shards alone. A gather launch copies them to another place (Field::copy), where forward tasks
// read what they need of all shards, and where the next operator's weights lie after that; and so
// again for the backward pass. Tables are never sharded like that: what moves of them are rows.
//
// The gradient of a table (graph.h) is no stack: its update reads the tokens and the output
// gradients of the operators that look rows up, so that only rows that were read move.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/launches.h"
#include "plan/registers.h"
#include "plan/service_order.h"
#include "plan/shards.h"

namespace flexlegion {

// The stack of partial values of one tensor's gradient.
struct GradientStack {
  int slots = 0;  // 0: nothing computes this gradient
  // False: a part is never written, or is open to reading before it is, so the stack starts as
  // zeros.
  bool fully_written = false;
};

// The stack of partial values of one tensor's value.
struct ValueStack {
  int slots = 1;        // 1: there are none, the value is written itself
  bool summed = false;  // by a sum launch, so that there is a value
  Combine combine = Combine::sum;
};

// How the tasks of a launch touch a value that may have partial values. The parts of a linear input
// (DimKind::part) share out the terms of which the value is the sum: its partial values, or if
// there are none such, the value itself, which the first part takes.
struct TermUse {
  int slots = 1;     // of the stack that is touched; 1: the value itself
  int terms = 1;     // that the parts share out
  int parts = 1;     // task k has part k modulo that
  bool own = false;  // each task touches the slot of its own, k modulo the slots

  // The slots that task k touches; if there are none, it touches nothing.
  Slots of_task(int k) const;
};
// `parts`: of the launch.
TermUse term_use(const ValueStack& stack, RequirementRole role, const Operand& operand, int parts);

struct Plan {
  IdVector<LaunchId, Launch> launches;  // in the order of issue (schedule.h)
  IdVector<TensorId, ValueStack> values;
  IdVector<TensorId, GradientStack> gradients;
  IdVector<TensorId, SummingNodes> nodes;  // of a weight: who sum its gradient first
  IdVector<TensorId, Sharding> sharding;   // of a weight
  std::map<Place, Tenancy> tenancies;      // of what is needed for a few launches: its register
  std::map<Place, LocalRegister> local_registers;  // by their homes
  int micro_batches = 1;
  ServiceOrder service;
  // Registers that rounds take in turn: of a tensor's value, and of its gradient; of weights one.
  // And how many the strategy says, where fewer are enough (buffers_of).
  IdVector<TensorId, int> value_buffers, gradient_buffers, configured_buffers;
  std::array<int, kFields> elements{};  // of each field of the iteration
  Optimizer optimizer;

  // In whose memory a place lies: its own, or that of the first tenant of their register.
  Place home_of(Place place) const {
    const int buffer = std::exchange(place.buffer, 0);
    const auto found = tenancies.find(place);
    Place home = found == tenancies.end() ? place : found->second.home;
    home.buffer = buffer;
    return home;
  }
  // How many registers rounds take in turn of a place: one, unless it is of an activation.
  int buffers(const Place& place) const {
    if (place.tensor.none()) return 1;
    return place.field == Field::gradient ? gradient_buffers[place.tensor]
                                          : value_buffers[place.tensor];
  }
  // The register of that home for tensors of any shape; null: it is none.
  const LocalRegister* local_register(Place home) const {
    home.buffer = 0;
    const auto found = local_registers.find(home);
    return found == local_registers.end() ? nullptr : &found->second;
  }
  // The place that a launch touches in a round, of what it is planned to touch.
  Place in_round(Place place, int round) const {
    if (!place.tensor.none() && place.buffer == 0) place.buffer = round % buffers(place);
    return place;
  }
};

// Of a place, how many partial values its stack has; of what is no stack, 1.
inline int slots_of(const Plan& plan, const Place& place) {
  if (place.field == Field::gradient) return plan.gradients[place.tensor].slots;
  if (place.field == Field::node_sums) return plan.nodes[place.tensor].count();
  return place.field == Field::partial ? plan.values[place.tensor].slots : 1;
}

// Derives the plan. `outputs` are the tensors that prediction wants; the graph's loss operators, if
// any, give training and evaluation their goal. Throws std::invalid_argument for a strategy that
// does not fit the graph.
Plan make_plan(const Graph& graph, const Strategy& strategy, const std::vector<TensorId>& outputs,
               Optimizer optimizer);

// Whether a requirement reads a stack of partial gradients that starts as zeros. Its tasks write
// these once, in all slots of what they read, as the host may read the whole stack; or in all of
// their node.
bool starts_as_zeros(const Plan& plan, const Requirement& r);
Rect zeroed_by(const Plan& plan, const Requirement& r, const Rect& rect);

// How many registers rounds take in turn of a tensor's value, or gradient, of which the operator
// with that many in its configuration is the producer; of an input, the first reader. `stays`: all
// who use the place run on that operator's devices (stays_on_devices).
int buffers_of(const Graph& graph, const GraphFacts& facts, const Place& place, int configured,
               bool stays);

// `devices_of`: from an operator to its devices.
template <typename DevicesOf>
bool stays_on_devices(const GraphFacts& facts, const Place& place, OpId op,
                      const DevicesOf& devices_of) {
  const bool gradient = place.field == Field::gradient;
  const auto& users = (gradient ? facts.contributors : facts.readers)[place.tensor];
  return std::all_of(users.begin(), users.end(),
                     [&](OpId user) { return devices_of(user) == devices_of(op); });
}

// The memory that `device` needs if it has one of its own, in bytes: the instances (rect.h,
// share_instance) of all that its tasks touch, and the next batch, which is staged while the
// present one computes.
std::int64_t bytes_on_device(const Graph& graph, const Plan& plan, int device);

}  // namespace flexlegion
