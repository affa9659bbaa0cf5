// What the launches of each pass do when they run. The file that has a pass's body registers it
// here; programs and measurement look it up, and know passes by nothing else.
#pragma once

#include <string>

#include "ops/kernel.h"
#include "plan/plan.h"
#include "runtime/bodies.h"
#include "runtime/hyperparameters.h"

namespace flexlegion {

// A planned launch, and whatever a body may be made of.
struct PlannedWork {
  const Graph& graph;
  const Plan& plan;
  const Launch& launch;
  const std::string& optimizer;
  const Hyperparameters& hyperparameters;
  double clip_norm;          // 0: gradients are not clipped
  OperatorKernels& kernels;  // of the launch's operator, whose launches share them
};

struct LaunchBody {
  Body body;
  Recordable recordable = Recordable::always;
};

// Whose kernels do the work. Legion's tasks are named by it, as "dense.forward", "adam.update", or
// by the pass alone.
enum class KernelsOf { none, operators, optimizers };

class RegisterPassBody {
 public:
  RegisterPassBody(Pass pass, KernelsOf kernels, LaunchBody (*make)(const PlannedWork&));
};

LaunchBody body_of(const PlannedWork& work);

// The leaf task of a planned launch, and the leaf tasks of all launches that a plan can have.
std::string task_name(const Graph& graph, const Launch& planned, const std::string& optimizer);
std::vector<std::string> pass_task_names();

}  // namespace flexlegion
