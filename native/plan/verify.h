// The invariants of every plan, as code: what the runtime relies on, and what makes a strategy
// compute the same function as one device does.
//
// - Launches come pass by pass; a requirement has one rectangle a task, inside its tensor; fields
//   and privileges are those of its role.
// - No two tasks of a launch meet where one of them writes.
// - In each kind of run, every element of an output, a batch, a state or an updated weight is
//   written exactly once, and nothing is read before it is there. Of an output with partial values,
//   that holds of every slot; whoever reads them reads all slots, or of a linear input, as a part
//   with the others that read the same elements, each slot once.
// - A backward launch runs where its forward launch ran. It reads what that one read or wrote, and
//   contributes what that one read, exactly once; of a linear input, in the first part alone. Other
//   parts that contribute nothing read nothing.
// - A contribution lies in one slot. It adds only to an earlier launch's, of the same rectangle, on
//   the same device; otherwise it meets no other. What is read without being zeroed first is
//   written.
// - Whoever reads a gradient reads each element once (or once for each of its partial values), in
//   all slots to which anybody contributed, and after everybody did. Unless it is an input's,
//   somebody does.
// - Where gradients are clipped, each norm task writes an element of its own, before one task reads
//   all of them, before updates read its result.
// - An update changes, of weights and states, the very shards of which it reads gradients.
#pragma once

#include "plan/plan.h"

namespace flexlegion {

// Throws std::logic_error, which says what is wrong and where, unless all of that holds. There are
// `devices` devices; -1: unknown.
void verify(const Graph& graph, const Plan& plan, int devices = -1);

}  // namespace flexlegion
