#include "runtime/leaf_task.h"

#include <chrono>

#include "ops/kernel.h"
#include "runtime/executor.h"
#include "runtime/launch.h"
#include "runtime/machine.h"
#include "runtime/mapper.h"
#include "runtime/views.h"
#include "support/huge_pages.h"

namespace flexlegion {

using namespace Legion;

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string task_name(const Graph& graph, const Launch& planned, const std::string& optimizer) {
  if (planned.pass == Pass::update) return optimizer + ".update";
  const Operator& op = graph.operators[static_cast<std::size_t>(planned.op)];
  if (planned.pass == Pass::backward) return op.type + ".backward";
  return op.type + (op.is_loss ? ".loss" : ".forward");
}

PrivilegeMode legion_privilege(Privilege privilege) {
  switch (privilege) {
    case Privilege::read:
      return LEGION_READ_ONLY;
    case Privilege::write:
      return LEGION_WRITE_DISCARD;
    default:
      return LEGION_READ_WRITE;
  }
}

namespace {

// Legion's instances lie in one pool of memory a node: the first task that writes into it asks for
// huge pages in all of it.
void prefer_huge_pages(const TensorView& view) {
  thread_local MappedRange pool;
  if (!view.present() || pool.contains(view.data)) return;
  pool = use_huge_pages_around(view.data);
}

LeafContext run_leaf(const Task* task, const std::vector<PhysicalRegion>& regions) {
  const std::int64_t start = now_ns();
  const auto* arguments = static_cast<const TaskArguments*>(task->args);
  Executor& executor = Executor::find(arguments->executor);
  RuntimeLaunch& launch = executor.launch(arguments->launch);
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
      if (r.privilege != LEGION_READ_ONLY) prefer_huge_pages(view);
      view.shape = executor.regions().shape(r.region);
      context.views.push_back(view);
    }
    launch.body(context);
  } catch (const std::exception& e) {
    executor.report_failure(std::string(task->get_task_name()) + ": " + e.what());
  }
  const std::int64_t end = now_ns();
  launch.elapsed[point] = end - start;
  executor.note({arguments->launch, context.point, launch.placed[point], start, end});
  if (launch.log != nullptr) launch.log->push_back(launch.elapsed[point]);
  return context;
}

void plain_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context, Runtime*) {
  run_leaf(task, regions);
}

Metrics metrics_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context,
                     Runtime*) {
  return run_leaf(task, regions).metrics;
}

Bytes bytes_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context, Runtime*) {
  return run_leaf(task, regions).bytes;
}

}  // namespace

std::vector<LeafTask> leaf_tasks() {
  std::vector<LeafTask> tasks;
  for (const std::string& kernel : kernel_names()) {
    tasks.push_back({kernel + ".forward"});
    tasks.push_back({kernel + ".backward"});
    tasks.push_back(
        {kernel + ".loss", LeafResult::metrics});  // forward of an operator that is a model's loss
  }
  for (const std::string& optimizer : update_kernel_names()) {
    tasks.push_back({optimizer + ".update"});
  }
  for (const char* name :
       {kStageTask, kFeedTask, kStoreTask, kZeroTask, kFillTask, kNormTask, kSumTask, kTouchTask}) {
    tasks.push_back({name});
  }
  tasks.push_back({kShareTask, LeafResult::bytes});
  return tasks;
}

void register_leaf_task(Runtime* runtime, TaskID id, const LeafTask& leaf) {
  TaskVariantRegistrar registrar(id, leaf.name.c_str(), /*global=*/false);
  registrar.add_constraint(ProcessorConstraint(Processor::LOC_PROC));
  registrar.set_leaf(true);
  runtime->attach_name(id, leaf.name.c_str(), false, /*local_only=*/true);
  switch (leaf.result) {
    case LeafResult::nothing:
      runtime->register_task_variant<plain_leaf>(registrar, kCpuVariant);
      break;
    case LeafResult::metrics:
      runtime->register_task_variant<Metrics, metrics_leaf>(registrar, kCpuVariant);
      break;
    case LeafResult::bytes:
      runtime->register_task_variant<Bytes, bytes_leaf>(registrar, kCpuVariant);
      break;
  }
}

}  // namespace flexlegion
