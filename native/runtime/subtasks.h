// A task on a device of several cores, cut into one for each of its threads.
//
// What a thread's part of the task touches follows from the operator's access maps, as what a task
// touches does (plan/graph.h). So the task's tile is split once more, in a dimension in which the
// parts write apart from each other. Gradients of small weights, of a normalisation, say, may be
// sums over all parts: each thread writes one of its own, and they are added up.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "ops/kernel.h"
#include "plan/graph.h"
#include "plan/launches.h"

namespace flexlegion {

// Where a kernel's task has the values of operands in that role, and their gradients; and which of
// these is an operand's: the kernel's inputs[i], weights[i], outputs[i].
using ViewList = std::vector<TensorView> KernelTask::*;
ViewList values_in(Role role);
ViewList gradients_in(Role role);
std::size_t position_in_role(const Operator& op, int operand);

class Subtasks {
 public:
  // Of a forward or backward launch.
  Subtasks(const Graph& graph, const Launch& launch);

  // Has the kernel compute the launch's task number `point`: in parts, if the task can be cut and
  // is large enough.
  void run(Kernel& kernel, KernelTask& task, int point) const;

 private:
  struct Touched {
    ViewList list;
    std::size_t position;
    std::size_t operand;
    bool written;
    bool summed;  // a weight's gradient
  };
  using Parts = std::vector<Rect>;

  void compute(Kernel& kernel, KernelTask& task) const {
    forward_ ? kernel.forward(task) : kernel.backward(task);
  }
  bool is_large(const KernelTask& task) const;
  Parts split(const KernelTask& task, const Rect& tile, int threads) const;
  bool writes_apart(const KernelTask& task, const Parts& parts) const;
  bool apart(const TensorView& view, const Touched& touched, const Parts& parts) const;
  // What a part of the tile touches of an operand.
  Rect rect_of(const Touched& touched, const Rect& part) const {
    const auto& [operand, tensor] = operands_[touched.operand];
    return accessed(operand, tensor, part);
  }
  KernelTask part_of(const KernelTask& task, const Parts& parts, int k) const;

  bool forward_;
  Rect space_;
  std::vector<int> degrees_;
  int first_task_;
  std::vector<int> dims_;  // in which it may be split
  std::vector<std::pair<Operand, Tensor>> operands_;
  std::vector<Touched> touched_;  // values and gradients
};

}  // namespace flexlegion
