// A task cut into parts: one for each thread of a device of several cores; and where tiles are
// stored as bfloat16 and the kernel wants floats, so small ones that the floats stay in the cache.
//
// What a part of the task touches follows from the operator's access maps, as what a task touches
// does (plan/graph.h). So the task's tile is split once more, in a dimension in which the parts
// write apart from each other. Gradients of small weights, of a normalisation, say, may be sums
// over all parts: they are added up, those of each thread first.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "ops/device_functions.h"
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
  void run(Kernel& kernel, KernelTask& task, int point, const DeviceFunctions& device) const;

 private:
  struct Touched {
    ViewList list;
    std::size_t position;
    std::size_t operand;
    DataType stored;
    bool written;
    bool summed;                          // a weight's gradient
    std::vector<bool> KernelTask::*adds;  // a gradient's flags; or null
  };
  using Parts = std::vector<Rect>;

  // What a task's kernel is given of an operand: as it is stored, or as floats.
  DataType given(const Touched& touched, const Kernel& kernel) const;
  bool converts(const Kernel& kernel, const KernelTask& task) const;
  bool starts_as_zeros(const Touched& touched, const KernelTask& task) const;
  void compute(Kernel& kernel, KernelTask& task, const DeviceFunctions& device) const;
  std::int64_t largest(const KernelTask& task) const;  // of its tiles, in elements
  Parts split(const KernelTask& task, const Rect& tile, int threads, std::int64_t blocks) const;
  bool writes_apart(const KernelTask& task, const Parts& parts) const;
  bool apart(const TensorView& view, const Touched& touched, const Parts& parts) const;
  void run_parts(Kernel& kernel, const KernelTask& task, const Parts& parts, int threads,
                 const DeviceFunctions& device) const;
  // What a part of the tile touches of an operand.
  Rect rect_of(const Touched& touched, const Rect& part) const {
    const auto& [operand, tensor] = operands_[touched.operand];
    return accessed(operand, tensor, part);
  }
  KernelTask part_of(const KernelTask& task, const Rect& part) const;

  bool forward_;
  Rect space_;
  std::vector<int> degrees_;
  int first_task_;
  std::vector<int> dims_;  // in which it may be split
  std::vector<std::pair<Operand, Tensor>> operands_;
  std::vector<Touched> touched_;  // values and gradients
};

}  // namespace flexlegion
