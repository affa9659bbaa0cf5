#include "runtime/leaf_task.h"

#include <chrono>
#include <optional>
#include <utility>

#include "ops/device_functions.h"
#include "realm/cuda/cuda_module.h"
#include "runtime/arenas.h"
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

// What a task is given: a view a requirement.
void add_views(LeafContext& context, const std::vector<PhysicalRegion>& regions,
               const RuntimeLaunch& launch, const RegionStore& store) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const LaunchRequirement& r = launch.requirements[i];
    const Rect& rect = r.rects[static_cast<std::size_t>(context.point)];
    TensorView view;  // of nothing, if the task has no part of that tensor
    view.tile = rect;
    if (!rect.empty()) view = view_of(regions[i], r.field, rect);
    if (r.privilege != LEGION_READ_ONLY && context.kind == DeviceKind::cpu) {
      prefer_huge_pages(view);
    }
    view.shape = store.shape(r.region);
    context.views.push_back(view);
  }
}

// A GPU's task only issues work; Realm finds out by its stream when that is done.
class GpuTask {
 public:
  GpuTask(const DeviceFunctions& device, int number, Precision precision, bool timed)
      : device_(device) {
    const Arena arena = arena_of(number);
    static Realm::Cuda::CudaModule* const cuda =
        Realm::Runtime::get_runtime().get_module<Realm::Cuda::CudaModule>("cuda");
    device.begin_task(cuda->get_task_cuda_stream(), arena.data, arena.bytes, precision);
    cuda->set_task_ctxsync_required(false);
    if (timed) start_ = device.mark();
  }
  // When it began and ended, to be asked for by DeviceFunctions::time_of; -1 if it is not timed.
  std::pair<int, int> end() {
    const int end = start_ < 0 ? -1 : device_.mark();
    device_.end_task();
    return {start_, end};
  }

 private:
  const DeviceFunctions& device_;
  int start_ = -1;
};

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
  const Processor processor = Processor::get_executing_processor();
  const int number = MachineState::get().device_of(processor);
  context.kind = processor.kind() == Processor::TOC_PROC ? DeviceKind::gpu : DeviceKind::cpu;
  context.device = device_functions(context.kind);
  launch.placed[point] = number;
  TaskRecord record{arguments->launch, context.point, number, start, 0};
  // An exception must not leave a Legion task: the program keeps the first, and the next call from
  // outside reports it.
  try {
    std::optional<GpuTask> on_gpu;
    if (context.kind == DeviceKind::gpu)
      on_gpu.emplace(*context.device, number, executor.precision(), executor.times(launch));
    add_views(context, regions, launch, executor.regions());
    launch.body(context);
    if (on_gpu) {
      const auto [begin, end] = on_gpu->end();
      if (begin >= 0) executor.note_later(record, begin, end);
      return context;
    }
  } catch (const std::exception& e) {
    executor.report_failure(std::string(task->get_task_name()) + ": " + e.what());
  }
  record.end = now_ns();
  executor.note(record);
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
  tasks.push_back({kAnswerTask, LeafResult::metrics});
  tasks.push_back({kShareTask, LeafResult::bytes});
  return tasks;
}

void register_leaf_task(Runtime* runtime, TaskID id, const LeafTask& leaf) {
  runtime->attach_name(id, leaf.name.c_str(), false, /*local_only=*/true);
  const std::pair<Processor::Kind, VariantID> variants[] = {{Processor::LOC_PROC, kCpuVariant},
                                                            {Processor::TOC_PROC, kGpuVariant}};
  for (const auto& [kind, variant] : variants) {
    if (kind == Processor::TOC_PROC && device_functions(DeviceKind::gpu) == nullptr) continue;
    TaskVariantRegistrar registrar(id, leaf.name.c_str(), /*global=*/false);
    registrar.add_constraint(ProcessorConstraint(kind));
    registrar.set_leaf(true);
    switch (leaf.result) {
      case LeafResult::nothing:
        runtime->register_task_variant<plain_leaf>(registrar, variant);
        break;
      case LeafResult::metrics:
        runtime->register_task_variant<Metrics, metrics_leaf>(registrar, variant);
        break;
      case LeafResult::bytes:
        runtime->register_task_variant<Bytes, bytes_leaf>(registrar, variant);
        break;
    }
  }
}

}  // namespace flexlegion
