// What the tasks of updates do, and of the launches that find by how much to clip them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/kernel.h"
#include "plan/plan.h"
#include "runtime/bodies.h"

namespace flexlegion {

// An optimizer's.
class UpdateKernels : public KernelsOfKinds<UpdateKernel> {
 public:
  void provide(const std::string& optimizer, const Attributes& hyperparameters,
               const std::vector<int>& devices);
};

// A planned update launch's body. If the norm of all gradients is above `clip_norm`, they are
// scaled down to it; 0: whatever it is.
Body update_body(const Graph& graph, const Launch& planned, const UpdateKernels& kernels,
                 double clip_norm = 0);

// Whether GPUs' tasks of such a launch can be recorded.
Recordable recordable_update(const UpdateKernels& kernels, const std::vector<int>& devices);

// A planned norm launch's body: it writes the norm of its gradients. `update` is the launch that is
// about to use them.
Body norm_body(const Graph& graph, const Launch& planned, const Launch& update);

// The planned clip launch's body: it writes the norm of all norms.
Body clip_body(const Launch& planned);

}  // namespace flexlegion
