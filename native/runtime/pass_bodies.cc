// Which function makes a pass's bodies, and how its Legion tasks are called.
//
// Files with bodies register them while the library is loaded, so a new pass adds a row here
// without a change of this file. Legion needs all task names before the first launch, so
// pass_task_names() lists every name that any plan can use: each kernel with each pass that runs
// operators, each optimizer with each pass that updates.
#include "runtime/pass_bodies.h"

#include <array>
#include <stdexcept>

namespace flexlegion {

namespace {

struct Registered {
  KernelsOf kernels = KernelsOf::none;
  LaunchBody (*make)(const PlannedWork&) = nullptr;
};

std::array<Registered, kPasses>& registered() {
  static std::array<Registered, kPasses> of_passes;
  return of_passes;
}

const Registered& of_pass(Pass pass) { return registered()[static_cast<std::size_t>(pass)]; }

}  // namespace

RegisterPassBody::RegisterPassBody(Pass pass, KernelsOf kernels,
                                   LaunchBody (*make)(const PlannedWork&)) {
  registered()[static_cast<std::size_t>(pass)] = {kernels, make};
}

// A pass without a body would be issued and do nothing, so it is refused.
LaunchBody body_of(const PlannedWork& work) {
  const Pass pass = work.launch.pass;
  if (of_pass(pass).make == nullptr) {
    throw std::logic_error(std::string("pass ") + row_of(pass).name + " has no body");
  }
  return of_pass(pass).make(work);
}

// Tasks are named by kernel and pass, so that profiles tell them apart. Optimizers' passes are
// named by optimizer.
std::string task_name(const Graph& graph, const Launch& planned, const std::string& optimizer) {
  const std::string pass = row_of(planned.pass).name;
  switch (of_pass(planned.pass).kernels) {
    case KernelsOf::operators: {
      const Operator& op = graph.operators[planned.op];
      const bool loss = op.is_loss && planned.pass == Pass::forward;
      return op.type + (loss ? ".loss" : "." + pass);
    }
    case KernelsOf::optimizers:
      return optimizer + "." + pass;
    default:
      return pass;
  }
}

std::vector<std::string> pass_task_names() {
  std::vector<std::string> names;
  for (const PassRow& row : all_passes()) {
    if (row.ahead) continue;  // the runtime has tasks of its own for it
    const std::string pass = row.name;
    switch (of_pass(row.pass).kernels) {
      case KernelsOf::operators:
        for (const std::string& kernel : kernel_names()) names.push_back(kernel + "." + pass);
        break;
      case KernelsOf::optimizers:
        for (const std::string& kernel : update_kernel_names())
          names.push_back(kernel + "." + pass);
        break;
      default:
        names.push_back(pass);
    }
  }
  // The forward launch of a model's loss has a name of its own.
  for (const std::string& kernel : kernel_names()) names.push_back(kernel + ".loss");
  return names;
}

}  // namespace flexlegion
