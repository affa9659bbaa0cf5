#include "runtime/leaf_task.h"

#include "ops/kernel.h"
#include "runtime/launch.h"
#include "runtime/machine.h"
#include "runtime/mapper.h"
#include "runtime/program.h"
#include "runtime/views.h"

namespace flexlegion {

using namespace Legion;

namespace {

Metrics run_leaf(const Task* task, const std::vector<PhysicalRegion>& regions) {
  const auto* arguments = static_cast<const TaskArguments*>(task->args);
  Program& program = Program::find(arguments->program);
  RuntimeLaunch& launch = program.launch(arguments->launch);
  LeafContext context;
  context.point = static_cast<int>(task->index_point[0]);
  context.arguments = arguments;
  context.rows = reinterpret_cast<const std::int64_t*>(arguments + 1);
  const auto point = static_cast<std::size_t>(context.point);
  launch.placed[point] = MachineState::get().device_of(Processor::get_executing_processor());
  // An exception must not leave a Legion task: the program keeps the first, and the next call from
  // outside reports it.
  try {
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const LaunchRequirement& r = launch.requirements[i];
      const Rect& rect = r.rects[point];
      TensorView view;  // of nothing, if the task has no part of that tensor
      view.tile = rect;
      if (!rect.empty()) view = view_of(regions[i], r.field, rect);
      view.shape = program.regions().shape(r.region);
      context.views.push_back(view);
    }
    launch.body(context);
  } catch (const std::exception& e) {
    program.report_failure(std::string(task->get_task_name()) + ": " + e.what());
  }
  return context.metrics;
}

void plain_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context, Runtime*) {
  run_leaf(task, regions);
}

Metrics metrics_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context,
                     Runtime*) {
  return run_leaf(task, regions);
}

}  // namespace

std::vector<LeafTask> leaf_tasks() {
  std::vector<LeafTask> tasks;
  for (const std::string& kernel : kernel_names()) {
    tasks.push_back({kernel + ".forward", false});
    tasks.push_back({kernel + ".backward", false});
    tasks.push_back({kernel + ".loss", true});  // forward of an operator that is a model's loss
  }
  for (const std::string& optimizer : update_kernel_names()) {
    tasks.push_back({optimizer + ".update", false});
  }
  for (const char* name : {kStageTask, kFeedTask, kStoreTask, kZeroTask}) {
    tasks.push_back({name, false});
  }
  return tasks;
}

void register_leaf_task(Runtime* runtime, TaskID id, const LeafTask& leaf) {
  TaskVariantRegistrar registrar(id, leaf.name.c_str(), /*global=*/false);
  registrar.add_constraint(ProcessorConstraint(Processor::LOC_PROC));
  registrar.set_leaf(true);
  runtime->attach_name(id, leaf.name.c_str(), false, /*local_only=*/true);
  if (leaf.returns_metrics) {
    runtime->register_task_variant<Metrics, metrics_leaf>(registrar, kCpuVariant);
  } else {
    runtime->register_task_variant<plain_leaf>(registrar, kCpuVariant);
  }
}

}  // namespace flexlegion
