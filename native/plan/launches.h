// The launches of an iteration, stated once: whose tasks run where, what they touch, and why. The
// plan, the measurement of single tasks, the runtime's update bodies and the cost models take it
// from here.
//
// What a launch touches follows from the graph alone: uses_of(). Which rectangles its tasks touch
// follows from one operator's configuration: launch_of(). What remains is the plan's (plan.h):
// where partial values of gradients, and norms, lie depends on all launches before.
#pragma once

#include <utility>
#include <vector>

#include "plan/facts.h"

namespace flexlegion {

// A use, and the rectangle of each task.
struct Requirement : Use {
  // One a task, possibly empty. Those of partial values and of gradients have, in a plan, the slot
  // dimension in front: the one slot that is written, or the range of slots that is combined.
  std::vector<Rect> rects;
  std::vector<bool> adds;  // of a contribution, a task: does it add to what stands in its slot?
};

struct Launch : LaunchKey {  // without an operator, where it is of none: load and clip
  unsigned runs = 0;
  int parts = 1;             // of linear inputs' partial values: task k has part k modulo that
  std::vector<int> devices;  // one a task
  // Forward and backward: how the operator's space is split, and which of its tasks is the first.
  std::vector<int> degrees;
  int first_task = 0;
  int visit = 0;  // of a plan: how urgent it is (plan/service_order.h)
  std::vector<Requirement> requirements;

  int tasks() const { return static_cast<int>(devices.size()); }
  // The only requirement in that role, or null.
  const Requirement* in_role(RequirementRole role) const;
  Requirement* in_role(RequirementRole role) {
    return const_cast<Requirement*>(std::as_const(*this).in_role(role));
  }
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
