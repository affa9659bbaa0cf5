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

std::shared_mutex executors_mutex;
std::vector<Executor*> executors;  // by id; null once destroyed

int add_executor(Executor* executor) {
  const std::unique_lock<std::shared_mutex> lock(executors_mutex);
  executors.push_back(executor);
  return static_cast<int>(executors.size()) - 1;
}

}  // namespace

Executor::Executor(Precision precision) : id_(add_executor(this)), precision_(precision) {}

Executor::~Executor() {
  regions_.destroy();
  const std::unique_lock<std::shared_mutex> lock(executors_mutex);
  executors[static_cast<std::size_t>(id_)] = nullptr;
}

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
  check_memory(what);
  await_memory();
  regions_.seal();
  for (RuntimeLaunch& launch : launches_) {
    launch.views_stay = true;
    for (const LaunchRequirement& r : launch.requirements) {
      for (int d : launch.devices) {
        const Memory memory = memory_for(machine.devices()[d], launch.side);
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
    throw UserMistake(what + " needs " + std::to_string(bytes >> 20) + " MiB in " + which +
                          "; use more devices, a smaller batch, or give Legate more memory (" +
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
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (const auto& [memory, bytes] : regions_.bytes()) {
    if (static_cast<int>(memory.address_space()) != MachineState::get().rank()) continue;
    while (runtime->query_available_memory(ctx, memory) < static_cast<std::size_t>(bytes) &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

FutureMap Executor::issue(int index, const RunState& state, int data,
                          const std::vector<std::int64_t>* rows, std::int64_t ticket) {
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
  throw std::runtime_error(std::exchange(failure_, std::string()));
}

}  // namespace flexlegion
