// What update tasks do, and the tasks before them that measure the gradient to be clipped.
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

// A planned update launch's body. If the gradient is clipped, one more view follows the planned
// ones: what the tasks of norm_body() found, of all weights. A gradient whose norm (the root of
// their sum) is above `clip_norm` is scaled down to it; 0: no clipping.
Body update_body(const Launch& planned, const UpdateKernels& kernels, double clip_norm = 0);

// What a launch with the gradients of an update launch does before it: it writes the sum of their
// squares to the last view's one element.
Body norm_body(const Launch& planned);

// Whether an update launch's requirement belongs to the gradient of what it updates.
bool is_gradient(const Requirement& requirement);

}  // namespace flexlegion
