// What happens when Legion runs a task of ours (leaf_task.h), from its arguments to the kernel and
// back.
//
// 1. Find the executor and launch by their numbers, and the device by the processor that runs.
// 2. Pin the thread to its device's cores, treat subnormal numbers as zeros, and let it lead its
//    team (ops/team.h).
// 3. Turn each region into a view: an address and strides. Asking Legion takes microseconds, longer
//    than many a task, so views are remembered where instances stay (launch.h).
// 4. Run the body: on a CPU it computes, on a GPU it issues work to the task's stream and returns.
//    A fused launch has several bodies, which on GPUs are replayed from recordings where they
//    repeat (recorded_work.h).
// 5. Note when it ran, if somebody wants to know: a CPU's by the clock, a GPU's by events.
//
// Variants for CPU cores, groups of OpenMP threads and GPUs are this same function.
#include "runtime/leaf_task.h"

#include <immintrin.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "ops/device_functions.h"
#include "ops/team.h"
#include "realm/cuda/cuda_module.h"
#include "runtime/arenas.h"
#include "runtime/executor.h"
#include "runtime/launch.h"
#include "runtime/machine.h"
#include "runtime/mapper.h"
#include "runtime/pass_bodies.h"
#include "runtime/views.h"
#include "support/huge_pages.h"

namespace flexlegion {

using namespace Legion;

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

namespace {

// Asked once a thread, as it takes a system call.
std::int32_t thread_number() {
  thread_local const auto number = static_cast<std::int32_t>(syscall(SYS_gettid));
  return number;
}

}  // namespace

// The processor's time of this thread: what waiting for a core takes is not in it.
std::int64_t thread_time_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// A write discards: Legion need not bring what was there. Everything else that writes reads, too.
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

// What a task is given: a view a requirement, of the region at that place.
void add_views(LeafContext& context, const std::vector<PhysicalRegion>& regions,
               const std::vector<int>* places, const RuntimeLaunch& launch,
               const RegionStore& store, Given& given) {
  // Nobody else looks here meanwhile: a task writes something, so it never runs twice at a time.
  std::vector<TensorView>& known = given[static_cast<std::size_t>(context.point)];
  if (!known.empty()) {
    context.views = known;
    return;
  }
  for (std::size_t i = 0; i < launch.requirements.size(); ++i) {
    const LaunchRequirement& r = launch.requirements[i];
    const Rect& rect = r.rects[static_cast<std::size_t>(context.point)];
    const std::size_t place = places == nullptr ? i : static_cast<std::size_t>((*places)[i]);
    TensorView view;  // of nothing, if the task has no part of that tensor
    view.tile = rect;
    const DataType type = store.type(r.region, r.field);
    if (!rect.empty()) view = view_of(regions[place], r.field, rect, type);
    if (!r.tiles.empty()) {
      const Rect& tile = r.tiles[static_cast<std::size_t>(context.point)];
      view = dense_view(view.data, tile, r.shape, type);
    }
    view.type = type;
    if (r.privilege != LEGION_READ_ONLY && context.kind == DeviceKind::cpu) {
      prefer_huge_pages(view);
    }
    view.shape = r.tiles.empty() ? store.shape(r.region) : r.shape;
    context.views.push_back(view);
  }
  if (context.views_stay) known = context.views;
}

// Has the calling thread keep to its device's cores, and with it the threads that it comes to lead,
// which begin where their leader may run.
void keep_to_cores(const Device& device) {
  thread_local const Device* kept = nullptr;
  if (device.cores.empty() || kept == &device) return;
  kept = &device;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : device.cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);  // if it fails, the operating system decides
}

// While it lives, numbers below the least normal one (1e-38) count as zeros: an operation with one
// takes a processor a hundred times as long as with others, and softmaxes with masks are full of
// them. The threads that the calling one comes to lead do as it did when they began.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush); }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8040;  // of results, and of operands
  const unsigned before_;
};

// While it lives, a GPU's task issues its work: Realm finds out by its stream when that is done.
class GpuTask {
 public:
  GpuTask(const DeviceFunctions& device, int number, Precision precision) : device_(device) {
    const Arena arena = arena_of(number);
    static Realm::Cuda::CudaModule* const cuda =
        Realm::Runtime::get_runtime().get_module<Realm::Cuda::CudaModule>("cuda");
    device.begin_task(cuda->get_task_cuda_stream(), arena.data, arena.bytes, precision);
    // Realm would otherwise wait for the whole device after each task.
    cuda->set_task_ctxsync_required(false);
  }
  ~GpuTask() { device_.end_task(); }
  GpuTask(const GpuTask&) = delete;
  GpuTask& operator=(const GpuTask&) = delete;

 private:
  const DeviceFunctions& device_;
};

// Of a task shorter than that, an iteration's recording has many: what a GPU takes to begin one is
// no part of its time.
constexpr std::int64_t kShortTask = 50'000;  // ns
constexpr int kTimes = 8;

// Runs a GPU's task that is measured, and that programs record, as they run it: by a recording,
// which has short tasks several times. False if it has to be run otherwise.
bool run_measured(Executor& executor, RuntimeLaunch& launch, const LeafContext& context,
                  const TaskRecord& record) {
  if (launch.log == nullptr || launch.recordable == Recordable::never) return false;
  // The first run has libraries load and choose their kernels: it tells nothing of the next ones.
  const std::int64_t last = launch.elapsed[static_cast<std::size_t>(context.point)];
  if (last < 0) return false;
  if (launch.measured.empty()) launch.measured_times = last < kShortTask ? kTimes : 1;
  const Stretch stretch{0, launch.measured_times, launch.recordable};
  const RecordingKey key(*context.arguments, context.rows, launch.recordable);
  const auto issue = [&](int) {
    LeafContext own = context;
    launch.body(own);
  };
  const auto replay = [&](const Recording& recording) {
    const GpuTask task(*context.device, record.device, executor.precision());
    const int begin = context.device->mark();
    context.device->replay(recording);
    executor.note_later(record, begin, context.device->mark(), launch.measured_times);
  };
  return launch.measured.run(*context.device, key, arena_of(record.device), executor.precision(),
                             issue, stretch, replay);
}

// Runs a launch's own code, and notes when.
void run_body(Executor& executor, int index, LeafContext& context, int device,
              const std::vector<PhysicalRegion>& regions, const std::vector<int>* places,
              Given& given) {
  RuntimeLaunch& launch = executor.launch(index);
  // Clocks and events are left out of iterations that nobody measures.
  const bool timed = executor.times(launch);
  const std::int64_t computed = timed ? thread_time_ns() : 0;
  TaskRecord record{index,           context.point, device, context.arguments->round,
                    thread_number(), now_ns(),      0,      0};
  add_views(context, regions, places, launch, executor.regions(), given);
  if (context.kind == DeviceKind::cpu) {
    launch.body(context);
    record.end = now_ns();
    if (timed) record.computed = thread_time_ns() - computed;
    executor.note(record);
    return;
  }
  if (run_measured(executor, launch, context, record)) return;
  const GpuTask task(*context.device, device, executor.precision());
  const int begin = timed ? context.device->mark() : -1;
  launch.body(context);
  if (timed) executor.note_later(record, begin, context.device->mark());
}

// Runs the parts of a fused launch; of a GPU's, those that repeat by their recordings. Parts that
// repeat alike make one stretch, for which one recording is replayed. Parts whose times are asked
// for are run one by one.
void run_parts(Executor& executor, RuntimeLaunch& launch, const LeafContext& context, int device,
               const std::vector<PhysicalRegion>& regions) {
  const auto replay = [&](const Recording& recording) {
    const GpuTask task(*context.device, device, executor.precision());
    context.device->replay(recording);
  };
  const auto issue = [&](int i) {
    FusedPart& part = launch.parts[static_cast<std::size_t>(i)];
    RuntimeLaunch& its = executor.launch(part.launch);
    LeafContext own = context;
    add_views(own, regions, &part.places, its, executor.regions(), part.given);
    its.body(own);
  };
  for (std::size_t s = 0; s < launch.stretches.size(); ++s) {
    const Stretch& stretch = launch.stretches[s];
    const auto first = static_cast<std::size_t>(stretch.first);
    if (context.kind == DeviceKind::gpu && stretch.recordable != Recordable::never &&
        !executor.times(executor.launch(launch.parts[first].launch))) {
      const RecordingKey key(*context.arguments, context.rows, stretch.recordable);
      RecordedWork& recorded = launch.recorded[static_cast<std::size_t>(context.point)][s];
      if (recorded.run(*context.device, key, arena_of(device), executor.precision(), issue, stretch,
                       replay)) {
        continue;
      }
    }
    for (int i = stretch.first; i < stretch.last; ++i) {
      FusedPart& part = launch.parts[static_cast<std::size_t>(i)];
      LeafContext its = context;
      run_body(executor, part.launch, its, device, regions, &part.places, part.given);
    }
  }
}

// Every leaf task begins here: find the executor and the launch by the numbers in the arguments,
// the device by the processor, and run the launch's code, or its parts one after the other.
LeafContext run_leaf(const Task* task, const std::vector<PhysicalRegion>& regions) {
  const auto* arguments = static_cast<const TaskArguments*>(task->args);
  Executor& executor = Executor::find(arguments->executor);
  const Processor processor = Processor::get_executing_processor();
  const MachineState& machine = MachineState::get();
  const int device = machine.device_of(processor);
  const Device& here = machine.devices()[static_cast<std::size_t>(device)];
  keep_to_cores(here);
  // Both settings are the thread's, and hold for all that the task calls.
  const WithoutSubnormals flushing;
  const Team team(here.threads, machine.worth_sharing());
  LeafContext context;
  context.point = static_cast<int>(task->index_point[0]);
  context.arguments = arguments;
  context.rows = reinterpret_cast<const std::int64_t*>(arguments + 1);
  context.kind = processor.kind() == Processor::TOC_PROC ? DeviceKind::gpu : DeviceKind::cpu;
  context.device = device_functions(context.kind);
  // An exception must not leave a Legion task: the program keeps the first, and the next call from
  // outside reports it.
  try {
    RuntimeLaunch& launch = executor.launch(arguments->launch);
    context.views_stay = launch.views_stay;
    if (!launch.parts.empty()) {
      run_parts(executor, launch, context, device, regions);
    } else {
      run_body(executor, arguments->launch, context, device, regions, nullptr, launch.given);
    }
  } catch (const std::exception& e) {
    executor.report_failure(std::string(task->get_task_name()) + ": " + e.what());
  }
  return context;
}

void plain_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context, Runtime*) {
  run_leaf(task, regions);
}

Bytes bytes_leaf(const Task* task, const std::vector<PhysicalRegion>& regions, Context, Runtime*) {
  return run_leaf(task, regions).bytes;
}

}  // namespace

// All tasks that Legion has to know before any program is made: one for each kernel and pass, and
// the runtime's own.
std::vector<LeafTask> leaf_tasks() {
  std::vector<LeafTask> tasks;
  for (const std::string& name : pass_task_names()) tasks.push_back({name});
  for (const char* name : {kStageTask, kFeedTask, kStoreTask, kSaveTask, kZeroTask, kFillTask,
                           kTouchTask, kAnswerTask, kFusedTask, kTellTask}) {
    tasks.push_back({name});
  }
  tasks.push_back({kBytesTask, LeafResult::bytes});
  return tasks;
}

void register_leaf_task(Runtime* runtime, TaskID id, const LeafTask& leaf) {
  runtime->attach_name(id, leaf.name.c_str(), false, /*local_only=*/true);
  for (const auto& [kind, variant] : kVariants) {
    if (kind == Processor::TOC_PROC && device_functions(DeviceKind::gpu) == nullptr) continue;
    TaskVariantRegistrar registrar(id, leaf.name.c_str(), /*global=*/false);
    registrar.add_constraint(ProcessorConstraint(kind));
    registrar.set_leaf(true);
    switch (leaf.result) {
      case LeafResult::nothing:
        runtime->register_task_variant<plain_leaf>(registrar, variant);
        break;
      case LeafResult::bytes:
        runtime->register_task_variant<Bytes, bytes_leaf>(registrar, variant);
        break;
    }
  }
}

}  // namespace flexlegion
