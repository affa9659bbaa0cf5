// The machine as Legion found it, and our registrations with Legion (machine.h).
//
// Devices are numbered alike on every rank: first all CPU processors, then all GPUs, each sorted by
// rank and by Realm's number. The plan's device numbers are these. A CPU device is a processor of
// Realm's: one of a core each, or, where Legate was given any, a group of OpenMP threads.
//
// Ids of tasks, traces and sharding functors are reserved in blocks under the library's name, and
// given out in the same order on every rank: with control replication, each rank runs the same
// calls, and their ids have to agree.
#include "runtime/machine.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <stdexcept>

#include "ops/device_functions.h"
#include "ops/kernel.h"
#include "realm/cuda/cuda_module.h"
#include "runtime/arenas.h"
#include "runtime/leaf_task.h"
#include "runtime/mapper.h"
#include "support/error.h"

namespace flexlegion {

using namespace Legion;

namespace {

// Ids are reserved in one block a kind, under the library's name: so they agree on every rank.
constexpr const char* kLibrary = "flexlegion";
constexpr std::size_t kMaxTraces = 1 << 16;
constexpr std::size_t kMaxShardings = 1 << 12;

MachineState* state = nullptr;

// Which rank runs each point of a launch: the one that has its device.
class PointToRank : public ShardingFunctor {
 public:
  explicit PointToRank(std::vector<int> ranks) : ranks_(std::move(ranks)) {}
  ShardID shard(const DomainPoint& point, const Domain&, const std::size_t) override {
    return static_cast<ShardID>(ranks_[static_cast<std::size_t>(point[0])]);
  }

 private:
  std::vector<int> ranks_;
};

// The nearest memory of a kind, or none.
Memory memory_of(Legion::Machine machine, Processor processor, Memory::Kind kind) {
  Legion::Machine::MemoryQuery query(machine);
  query.only_kind(kind).best_affinity_to(processor);
  return query.count() > 0 ? query.first() : Memory::NO_MEMORY;
}

// Of all ranks, in an order that they share.
std::vector<Processor> processors(Legion::Machine machine, Processor::Kind kind) {
  Legion::Machine::ProcessorQuery query(machine);
  query.only_kind(kind);
  std::vector<Processor> found(query.begin(), query.end());
  std::sort(found.begin(), found.end(), [](const Processor& a, const Processor& b) {
    return std::make_pair(a.address_space(), a.id) < std::make_pair(b.address_space(), b.id);
  });
  return found;
}

// The CPU processors: groups of OpenMP threads where Legate was given any, which are to have the
// cores; else those of one core each.
std::vector<Processor> cpu_processors(Legion::Machine machine) {
  const std::vector<Processor> groups = processors(machine, Processor::OMP_PROC);
  return groups.empty() ? processors(machine, Processor::LOC_PROC) : groups;
}

// For messages: which file was loaded, for there may be several installations.
std::string file_of(void* library) {
  link_map* its = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, &its) == 0 ? its->l_name : "a library";
}

// They are a library of their own, beside this one: most machines have no GPU.
void load_gpu_kernels() {
  if (device_functions(DeviceKind::gpu) != nullptr) return;
  constexpr const char* kFile = "libflexlegion_cuda.so";
  // All symbols are resolved now, so that a missing CUDA library is noticed here and not in a task.
  void* const library = dlopen(kFile, RTLD_NOW | RTLD_NODELETE);
  if (library == nullptr) {
    throw UserMistake(std::string("Legate has GPUs, but flexlegion's kernels for them cannot be "
                                  "loaded (") +
                      dlerror() +
                      "); install flexlegion where a CUDA compiler, cuBLAS and cuDNN are, or run "
                      "with --gpus 0");
  }
  if (device_functions(DeviceKind::gpu) == nullptr) {
    throw UserMistake(file_of(library) +
                      ": flexlegion's kernels for GPUs are of another version than the rest of it; "
                      "build and install flexlegion again, or run with --gpus 0");
  }
}

void add_mapper(Legion::Machine machine, Runtime* runtime, const std::set<Processor>& local) {
  // One mapper object a processor, as Legion deletes them one by one.
  for (const Processor& processor : local) {
    runtime->add_mapper(MachineState::get().mapper_id(),
                        new PlanMapper(runtime->get_mapper_runtime(), machine, processor),
                        processor);
  }
}

}  // namespace

// For a GPU, host tasks run on the CPU processor beside it.
Processor processor_for(const Device& device, Side side) {
  return side == Side::device ? device.processor : device.host;
}

Memory memory_for(const Device& device, Side side) {
  return side == Side::device ? device.memory
         : side == Side::host ? device.host_memory
                              : device.pinned;
}

MachineState& MachineState::get() {
  if (state == nullptr) throw std::logic_error("the runtime was not started");
  return *state;
}

MachineState& MachineState::start(const std::vector<int>& threads, const std::vector<int>& cores,
                                  std::int64_t worth_sharing) {
  if (state == nullptr) {
    if (!Runtime::has_runtime()) {
      throw std::runtime_error(
          "no Legion runtime is running in this process; use the legate command");
    }
    // An exception cannot leave a static initialiser, so a kernel's registration keeps its mistake
    // until here.
    if (!registration_mistake().empty()) throw UserMistake(registration_mistake());
    state = new MachineState;  // lives as long as Legion does, which may outlive static objects
    // The order matters: registrations name kernels of GPUs, and arenas are launches of registered
    // tasks.
    state->find_devices();
    state->share_cores(threads, cores);
    state->worth_sharing_ = worth_sharing;
    state->register_all();
    reserve_arenas();
  }
  return *state;
}

void MachineState::find_devices() {
  Legion::Machine machine = Legion::Machine::get_machine();
  Runtime* runtime = Runtime::get_runtime();
  rank_ =
      static_cast<int>(runtime->get_executing_processor(Runtime::get_context()).address_space());
  ranks_ = static_cast<int>(machine.get_address_space_count());
  const std::vector<Processor> cpus = cpu_processors(machine);
  for (const Processor& processor : cpus) {
    const Memory memory = memory_of(machine, processor, Memory::SYSTEM_MEM);
    add_device({DeviceKind::cpu, static_cast<int>(processor.address_space()), processor, memory,
                processor, memory, memory});
  }
  const std::vector<Processor> gpus = processors(machine, Processor::TOC_PROC);
  has_gpus_ = !gpus.empty();
  if (!has_gpus_) return;
  load_gpu_kernels();
  for (const Processor& processor : gpus) {
    // The processor of the same rank that stages batches and stores weights for this GPU.
    const auto host = std::find_if(cpus.begin(), cpus.end(), [&](const Processor& cpu) {
      return cpu.address_space() == processor.address_space();
    });
    if (host == cpus.end()) {
      throw UserMistake("a rank with GPUs needs a CPU processor beside them; give it --cpus 1");
    }
    const Memory memory = memory_of(machine, *host, Memory::SYSTEM_MEM);
    const Memory pinned = memory_of(machine, processor, Memory::Z_COPY_MEM);
    add_device({DeviceKind::gpu, static_cast<int>(processor.address_space()), processor,
                memory_of(machine, processor, Memory::GPU_FB_MEM), *host, memory,
                pinned.exists() ? pinned : memory});
  }
}

// A device's number is its place in the list, which is the same on every rank.
void MachineState::add_device(const Device& device) {
  index_[device.processor] = static_cast<int>(devices_.size());
  devices_.push_back(device);
}

// Processors take their cores from the front. If these are too few, the operating system decides;
// of a group of OpenMP threads, Realm did.
void MachineState::share_cores(const std::vector<int>& threads, const std::vector<int>& cores) {
  std::vector<Device*> mine;
  for (Device& device : devices_) {
    // Other ranks share out their own cores.
    if (device.rank != rank_) continue;
    device.threads = 1;
    if (device.kind == DeviceKind::cpu) mine.push_back(&device);
  }
  if (threads.size() != 1 && threads.size() != mine.size()) {
    throw UserMistake(std::to_string(threads.size()) + " numbers of threads for " +
                      std::to_string(mine.size()) +
                      " CPU processors of a rank; give one for all, or one for each");
  }
  std::size_t wanted = 0;
  bool placed = false;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const int asked = threads[threads.size() == 1 ? 0 : i];
    mine[i]->threads = asked > 0 ? asked : mine[i]->processor.get_num_cores();
    placed = placed || asked == 0;
    wanted += static_cast<std::size_t>(mine[i]->threads);
  }
  // One thread each is how Realm places them already.
  if (placed || wanted == mine.size() || wanted > cores.size()) return;
  auto next = cores.begin();
  for (Device* device : mine) {
    device->cores.assign(next, next + device->threads);
    next += device->threads;
  }
}

void MachineState::register_all() {
  Runtime* runtime = Runtime::get_runtime();
  mapper_id_ = runtime->generate_library_mapper_ids(kLibrary, 1);
  first_trace_ = runtime->generate_library_trace_ids(kLibrary, kMaxTraces);
  first_sharding_ = runtime->generate_library_sharding_ids(kLibrary, kMaxShardings);
  const std::vector<LeafTask> leaves = leaf_tasks();
  TaskID id = runtime->generate_library_task_ids(kLibrary, leaves.size());
  for (const LeafTask& leaf : leaves) {
    tasks_[leaf.name] = id;
    // Launches of all other tasks leave out their futures, which cost Legion time.
    if (leaf.result != LeafResult::nothing) returning_.insert(id);
    register_leaf_task(runtime, id++, leaf);
  }
  Runtime::perform_registration_callback(add_mapper, /*global=*/false);
}

// By the processor that runs a task; -1: it is none of ours.
int MachineState::device_of(Processor processor) const {
  const auto found = index_.find(processor);
  return found == index_.end() ? -1 : found->second;
}

TaskID MachineState::task_id(const std::string& name) const {
  const auto found = tasks_.find(name);
  if (found == tasks_.end()) throw std::invalid_argument("no kernel is registered for " + name);
  return found->second;
}

// A trace for each kind of run of each program. Ids are never used again, since Legion remembers
// traces.
TraceID MachineState::next_trace_id() {
  if (used_traces_ == kMaxTraces) throw std::runtime_error("too many programs in one process");
  return first_trace_ + used_traces_++;
}

// Launches with the same ranks share a functor: Legion keeps functors for good.
ShardingID MachineState::sharding_of(const std::vector<int>& ranks) {
  const auto found = shardings_.find(ranks);
  if (found != shardings_.end()) return found->second;
  if (shardings_.size() == kMaxShardings) {
    throw std::runtime_error("too many different ways to place tasks on ranks in one process");
  }
  const ShardingID id = first_sharding_ + static_cast<ShardingID>(shardings_.size());
  Runtime::get_runtime()->register_sharding_functor(id, new PointToRank(ranks), true);
  return shardings_[ranks] = id;
}

namespace {

// CUDA's number of a GPU of this rank.
int ordinal_of(int device) {
  const MachineState& machine = MachineState::get();
  const Device& gpu = machine.devices().at(static_cast<std::size_t>(device));
  int ordinal = -1;
  auto* const cuda = Realm::Runtime::get_runtime().get_module<Realm::Cuda::CudaModule>("cuda");
  if (gpu.kind != DeviceKind::gpu || gpu.rank != machine.rank() || cuda == nullptr ||
      !cuda->get_cuda_device_id(gpu.processor, &ordinal)) {
    throw std::invalid_argument("device " + std::to_string(device) + " is no GPU of this rank");
  }
  return ordinal;
}

}  // namespace

GpuFacts describe_gpu(int device) {
  return device_functions(DeviceKind::gpu)->describe(ordinal_of(device));
}

int peer_class(int from, int to) {
  const int here = ordinal_of(from), there = ordinal_of(to);
  return device_functions(DeviceKind::gpu)->peer_class(here, there);
}

std::vector<std::int64_t> memory_in_use() {
  const MachineState& machine = MachineState::get();
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  // What was given back lies there until Legion has come to that.
  runtime->issue_execution_fence(ctx).get_void_result(/*silence_warnings=*/true);
  std::vector<std::int64_t> bytes;
  for (const Device& device : machine.devices()) {
    const bool here = device.rank == machine.rank();
    const std::size_t left = here ? runtime->query_available_memory(ctx, device.memory) : 0;
    bytes.push_back(here ? static_cast<std::int64_t>(device.memory.capacity() - left) : -1);
  }
  return bytes;
}

}  // namespace flexlegion
