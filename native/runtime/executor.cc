// How launches are prepared once and issued again and again (executor.h).
//
// seal() does what must not be done in every iteration: it derives the instances that memories will
// hold, compares them with the memories' capacities, makes partitions, and builds a launcher for
// each launch. issue() then only fills in the arguments. In a trace, Legion replays its dependence
// analysis as well.
//
// Executors are known by a number, for a task's arguments are plain bytes, which may come to
// another rank. All ranks create their executors in the same order, so a number means the same on
// each.
//
// A task that throws must not unwind into Legion: its message is kept, and the next call from
// outside throws it.
#include "runtime/executor.h"

#include <chrono>
#include <cstring>
#include <shared_mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/machine.h"
#include "runtime/memory_needs.h"
#include "support/error.h"

namespace flexlegion {

using namespace Legion;

namespace {

// Every task looks its executor up, and few are made or destroyed: readers share the lock.
std::shared_mutex executors_mutex;
std::vector<Executor*> executors;  // by id; null once destroyed

int add_executor(Executor* executor) {
  const std::unique_lock<std::shared_mutex> lock(executors_mutex);
  executors.push_back(executor);
  return static_cast<int>(executors.size()) - 1;
}

}  // namespace

Executor::Executor(Precision precision) : id_(add_executor(this)), precision_(precision) {}

// First the regions, while tasks can still be found; then the number is free of meaning, and is not
// used again.
Executor::~Executor() {
  regions_.destroy();
  const std::unique_lock<std::shared_mutex> lock(executors_mutex);
  executors[static_cast<std::size_t>(id_)] = nullptr;
}

// By the number in a task's arguments. The executor outlives its tasks: it waits for them.
Executor& Executor::find(int id) {
  const std::shared_lock<std::shared_mutex> lock(executors_mutex);
  return *executors[static_cast<std::size_t>(id)];
}

int Executor::add_launch(RuntimeLaunch launch) {
  const std::size_t tasks = launch.devices.size();
  launch.elapsed.assign(tasks, -1);
  launch.given.resize(tasks);
  for (FusedPart& part : launch.parts) part.given.resize(tasks);
  for (std::size_t k = 0; k < tasks; ++k) launch.recorded.emplace_back(launch.stretches.size());
  launches_.push_back(std::move(launch));
  return static_cast<int>(launches_.size()) - 1;
}

// Footprints of all launches, then whether memories hold them, then launchers: an instance's
// extents must be known before anything is issued.
void Executor::seal(const std::string& what) {
  MachineState& machine = MachineState::get();
  for (const RuntimeLaunch& launch : launches_) {
    for (const LaunchRequirement& r : launch.requirements) {
      for (std::size_t k = 0; k < r.rects.size(); ++k) {
        const Device& device = machine.devices()[launch.devices[k]];
        const Memory memory = memory_for(device, launch.side);
        // Where a task of the host reads or writes for a GPU, the GPU's instance stays; the host's
        // may be discarded.
        const bool kept = launch.side != Side::host || memory == device.memory;
        regions_.touch(r.region, r.field, memory, r.privilege == LEGION_READ_ONLY, r.rects[k],
                       kept);
      }
    }
  }
  // Before Legion would fail in the middle of an iteration, with a message about an instance.
  check_memory(what);
  await_memory();
  regions_.seal();
  for (RuntimeLaunch& launch : launches_) {
    launch.views_stay = true;
    for (const LaunchRequirement& r : launch.requirements) {
      for (int d : launch.devices) {
        const Memory memory = memory_for(machine.devices()[d], launch.side);
        // Where every instance stays, its address does too, and the views of a task are built once.
        launch.views_stay &= RegionStore::footprint(regions_.region(r.region), r.field, memory,
                                                    r.privilege == LEGION_READ_ONLY)
                                 .kept;
      }
    }
    std::vector<int> ranks;
    for (int device : launch.devices) ranks.push_back(machine.devices()[device].rank);
    if (machine.ranks() > 1) launch.sharding = machine.sharding_of(ranks);
    launch.launcher = std::make_unique<IndexTaskLauncher>(
        launch.task, RegionStore::colors(static_cast<std::int64_t>(launch.devices.size())),
        UntypedBuffer(), ArgumentMap(), Predicate::TRUE_PRED, /*must=*/false, machine.mapper_id());
    launch.launcher->elide_future_return = !machine.returns(launch.task);
    for (LaunchRequirement& r : launch.requirements) {
      const LogicalPartition partition = regions_.partition(r.region, r.rects);
      launch.launcher->add_region_requirement(RegionRequirement(
          partition, /*projection=*/0, r.privilege, LEGION_EXCLUSIVE, regions_.region(r.region)));
      launch.launcher->region_requirements.back().add_field(r.field);
    }
  }
}

// Several programs may be alive, such as one that trains and one that measures.
std::map<Memory, std::int64_t> Executor::bytes_of_others() const {
  const std::shared_lock<std::shared_mutex> lock(executors_mutex);
  std::map<Memory, std::int64_t> total;
  for (const Executor* executor : executors) {
    if (executor == nullptr || executor == this) continue;
    for (const auto& [memory, bytes] : executor->regions_.bytes()) total[memory] += bytes;
  }
  return total;
}

void Executor::check_memory(const std::string& what) const {
  const std::map<Memory, std::int64_t> others_take = bytes_of_others();
  for (const auto& [memory, bytes] : regions_.bytes()) {
    const auto taken = others_take.find(memory);
    const std::int64_t others = taken == others_take.end() ? 0 : taken->second;
    if (static_cast<std::size_t>(bytes + others) <= memory.capacity()) continue;
    std::string which =
        "a memory of " + std::to_string(memory.capacity() >> 20) + " MiB (" + name_of(memory) + ")";
    if (others > 0) which += ", of which " + std::to_string(others >> 20) + " are taken";
    throw UserMistake(
        what + " needs " + std::to_string(bytes >> 20) + " MiB in " + which +
            "; use more devices, a smaller batch or recomputation (+again behind a strategy's "
            "name), or give Legate more memory (" +
            option_of(memory) + ")",
        memory_needs(regions_.bytes_by_content(), others_take));
  }
}

// Legion gives memory back some time after its regions were destroyed, on busy cores late. Each
// rank waits for its own memories; it issues nothing meanwhile, as ranks may wait for different
// times.
void Executor::await_memory() const {
  constexpr auto kPatience = std::chrono::seconds(20);
  constexpr auto kPause = std::chrono::milliseconds(2);
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  // If the memory does not come back in time, Legion itself will say what it lacks.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (const auto& [memory, bytes] : regions_.bytes()) {
    // Only the rank that owns a memory can ask how much of it is free.
    if (static_cast<int>(memory.address_space()) != MachineState::get().rank()) continue;
    while (runtime->query_available_memory(ctx, memory) < static_cast<std::size_t>(bytes) &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

// Only the arguments differ from call to call. Legion copies the buffer.
FutureMap Executor::issue(int index, const RunState& state, int data,
                          const std::vector<std::int64_t>* rows, std::int64_t ticket, int round) {
  RuntimeLaunch& launch = launches_[static_cast<std::size_t>(index)];
  launch.issued = true;
  for (const FusedPart& part : launch.parts) {
    launches_[static_cast<std::size_t>(part.launch)].issued = true;
  }
  TaskArguments arguments;
  arguments.executor = id_;
  arguments.launch = index;
  arguments.data = data;
  arguments.ticket = ticket;
  arguments.round = round;
  arguments.turn = service_.turn(launch.visit, round);
  arguments.rows = rows == nullptr ? 0 : static_cast<std::int32_t>(rows->size());
  arguments.run = state;
  const std::size_t row_bytes = static_cast<std::size_t>(arguments.rows) * sizeof(std::int64_t);
  argument_buffer_.resize(sizeof(arguments) + row_bytes);
  std::memcpy(argument_buffer_.data(), &arguments, sizeof(arguments));
  if (row_bytes > 0) {
    std::memcpy(argument_buffer_.data() + sizeof(arguments), rows->data(), row_bytes);
  }
  launch.launcher->global_arg = UntypedBuffer(argument_buffer_.data(), argument_buffer_.size());
  return Runtime::get_runtime()->execute_index_space(Runtime::get_context(), *launch.launcher);
}

void Executor::wait() {
  wait_quietly();
  raise_failure();
}

void Executor::wait_quietly() {
  Runtime::get_runtime()
      ->issue_execution_fence(Runtime::get_context())
      .get_void_result(/*silence_warnings=*/true);
  settle();
}

void Executor::record(bool on) {
  const std::lock_guard<std::mutex> lock(records_mutex_);
  records_.clear();
  recording_ = on;
}

// Called by tasks of all processors. Each has its own element of `elapsed`, so only the common list
// needs a lock.
void Executor::note(const TaskRecord& record) {
  RuntimeLaunch& launch = launches_[static_cast<std::size_t>(record.launch)];
  const std::int64_t took = record.end - record.start;
  launch.elapsed[static_cast<std::size_t>(record.part)] = took;
  if (launch.log != nullptr) launch.log->push_back(record.computed);
  if (!recording_) return;
  const std::lock_guard<std::mutex> lock(records_mutex_);
  records_.push_back(record);
}

void Executor::note_later(const TaskRecord& record, int begin, int end, int times) {
  const std::lock_guard<std::mutex> lock(records_mutex_);
  pending_.push_back({record, begin, end, times});
}

// GPUs' times are events on their streams; asking for one waits until it has passed. So they are
// asked for when everything else is done.
void Executor::settle() {
  std::vector<Pending> pending;
  {
    const std::lock_guard<std::mutex> lock(records_mutex_);
    pending.swap(pending_);
  }
  if (pending.empty()) return;
  const DeviceFunctions& device = *device_functions(DeviceKind::gpu);
  for (Pending& task : pending) {
    task.record.start = device.time_of(task.begin);
    task.record.computed = (device.time_of(task.end) - task.record.start) / task.times;
    task.record.end = task.record.start + task.record.computed;
    note(task.record);
  }
}

std::vector<TaskRecord> Executor::noted() {
  settle();
  const std::lock_guard<std::mutex> lock(records_mutex_);
  return records_;
}

int Executor::node_of(Memory memory) const { return static_cast<int>(memory.address_space()); }

void Executor::report_failure(const std::string& what) {
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_.empty()) failure_ = what;
  }
  on_failure();
}

bool Executor::failed() {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return !failure_.empty();
}

void Executor::raise_failure() {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failure_.empty()) return;
  // Reported once: what comes after it is another failure.
  throw std::runtime_error(std::exchange(failure_, std::string()));
}

}  // namespace flexlegion
