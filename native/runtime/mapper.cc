// Legion's questions about where tasks run and their data lies, answered from the plan (mapper.h).
//
// A default mapper balances load and chooses layouts by heuristics. Here everything is decided
// before: point k of a launch runs on the plan's device for task k, and the tasks of a memory that
// read a field share one instance there, as do those that write it (regions.h; mostly both are
// one). So there is nothing to search, and no task is stolen. What moves is what the simulator
// counts too: the overlap of what was written in one instance and what is read in another.
//
// The mapping of an iteration is memoised with its trace, so these functions run for the first
// iterations, and rarely afterwards.
#include "runtime/mapper.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "runtime/executor.h"
#include "runtime/launch.h"
#include "runtime/machine.h"
#include "runtime/memory_needs.h"

namespace flexlegion {

using namespace Legion;
using namespace Legion::Mapping;

namespace {

std::atomic<bool> counting_copies{false};
std::mutex copies_mutex;
std::map<std::pair<Memory, Memory>, std::int64_t> bytes_copied;

const RuntimeLaunch& launch_of(const Task& task) {
  const auto* arguments = static_cast<const TaskArguments*>(task.args);
  return Executor::find(arguments->executor).launch(arguments->launch);
}

const Device& device_of(const RuntimeLaunch& launch, const DomainPoint& point) {
  return MachineState::get().devices()[launch.devices[static_cast<std::size_t>(point[0])]];
}

VariantID variant_for(Processor processor) {
  for (const Variant& variant : kVariants) {
    if (variant.kind == processor.kind()) return variant.id;
  }
  throw std::logic_error("a device's processor is of a kind that no task is registered for");
}

// Row-major, one field: the layout that the kernels' views expect. It begins at a cache line (a
// pair of them, as they are fetched): else each vector that is loaded or stored straddles two.
LayoutConstraintSet row_major(int rank, FieldID field) {
  constexpr std::size_t kAlignment = 128;
  std::vector<DimensionKind> order;
  for (int d = rank - 1; d >= 0; --d) order.push_back(static_cast<DimensionKind>(LEGION_DIM_X + d));
  order.push_back(LEGION_DIM_F);
  LayoutConstraintSet constraints;
  constraints.add_constraint(SpecializedConstraint(LEGION_AFFINE_SPECIALIZE))
      .add_constraint(OrderingConstraint(order, /*contiguous=*/false))
      .add_constraint(FieldConstraint(std::vector<FieldID>{field}, /*contiguous=*/false))
      .add_constraint(AlignmentConstraint(field, LEGION_EQ_EK, kAlignment));
  return constraints;
}

// Programs check their memory before they start (Executor::check_memory), so something else took
// it. Legion offers no way back from here.
[[noreturn]] void memory_is_full(Memory memory) {
  std::fprintf(stderr,
               "flexlegion: no room is left in a memory of %zu bytes, as something else in this "
               "process uses it; "
               "give Legate more with %s\n",
               memory.capacity(), option_of(memory));
  std::_Exit(2);
}

}  // namespace

void count_copies(bool on) {
  counting_copies = on;
  const std::lock_guard<std::mutex> lock(copies_mutex);
  bytes_copied.clear();
}

std::int64_t copied_bytes() {
  const std::lock_guard<std::mutex> lock(copies_mutex);
  std::int64_t bytes = 0;
  for (const auto& [way, its] : bytes_copied) bytes += its;
  return bytes;
}

std::int64_t copied_bytes(Memory from, Memory to) {
  const std::lock_guard<std::mutex> lock(copies_mutex);
  const auto found = bytes_copied.find({from, to});
  return found == bytes_copied.end() ? 0 : found->second;
}

PlanMapper::PlanMapper(MapperRuntime* runtime, Legion::Machine machine, Processor local)
    : DefaultMapper(runtime, machine, local, "flexlegion") {}

void PlanMapper::select_task_options(MapperContext, const Task& task, TaskOptions& output) {
  output.initial_proc = task.current_proc;
  output.inline_task = false;
  output.stealable = false;
  output.map_locally = false;
  output.valid_instances = false;  // instances are known: see instance_for
  output.memoize = true;
}

// A slice a point: each goes to its own processor.
void PlanMapper::slice_task(MapperContext, const Task& task, const SliceTaskInput& input,
                            SliceTaskOutput& output) {
  const RuntimeLaunch& launch = launch_of(task);
  for (Domain::DomainPointIterator p(input.domain); p; ++p) {
    output.slices.emplace_back(Domain(p.p, p.p), processor_for(device_of(launch, p.p), launch.side),
                               /*recurse=*/false, /*stealable=*/false);
  }
}

void PlanMapper::map_task(MapperContext ctx, const Task& task, const MapTaskInput&,
                          MapTaskOutput& output) {
  const RuntimeLaunch& launch = launch_of(task);
  const Device& device = device_of(launch, task.index_point);
  const Processor processor = processor_for(device, launch.side);
  output.chosen_variant = variant_for(processor);
  output.target_procs.push_back(processor);
  // Micro-batches take turns as in the simulator (sim/rounds.h).
  const auto* arguments = static_cast<const TaskArguments*>(task.args);
  output.task_priority = output.copy_fill_priority = -arguments->turn;
  const Memory memory = memory_for(device, launch.side);
  for (std::size_t i = 0; i < task.regions.size(); ++i) {
    output.chosen_instances[i] = {instance_for(ctx, task, task.regions[i], memory)};
  }
  if (counting_copies) {
    output.copy_prof_requests.add_measurement<Realm::ProfilingMeasurements::OperationMemoryUsage>();
  }
}

// The instance of a field in a memory covers all that the tasks of that memory ever read of it, or,
// for those that write, all that they ever write (the region's footprint there). So all readers map
// to the same instance, and all writers do; where both footprints are one, nothing is copied within
// the memory.
PhysicalInstance PlanMapper::instance_for(MapperContext ctx, const Task& task,
                                          const RegionRequirement& requirement, Memory memory) {
  const FieldID field = *requirement.privilege_fields.begin();
  const bool reads = requirement.privilege == LEGION_READ_ONLY;
  const Footprint footprint = RegionStore::footprint(requirement.parent, field, memory, reads);
  const PhysicalInstance instance = instance_of(ctx, memory, footprint, field);
  if (!RegionStore::stays(requirement.parent, field, memory, reads, instance.get_instance_id())) {
    const auto* arguments = static_cast<const TaskArguments*>(task.args);
    Executor::find(arguments->executor)
        .report_failure(std::string(task.get_task_name()) +
                        ": Legion has moved an instance that was to stay");
  }
  return instance;
}

// The bounds are tight: an instance that covers more than the footprint is not it. There can be
// one, which an inline mapping of the whole tensor left. A task mapped to it would be told so by
// Legion, but it remembers the address of the footprint's instance, and would compute with what an
// earlier run left there.
PhysicalInstance PlanMapper::instance_of(MapperContext ctx, Memory memory,
                                         const Footprint& footprint, FieldID field) {
  PhysicalInstance instance;
  bool created = false;
  const bool found = runtime->find_or_create_physical_instance(
      ctx, memory, row_major(footprint.region.get_dim(), field), {footprint.region}, instance,
      created, /*acquire=*/true,
      footprint.kept ? LEGION_GC_NEVER_PRIORITY : LEGION_GC_DEFAULT_PRIORITY,
      /*tight_region_bounds=*/true);
  if (!found) memory_is_full(memory);
  return instance;
}

// Where a weight is spread over nodes, each node has it: what a task lacks comes from its own, as
// the plan has it, and not from wherever it lies, too.
void PlanMapper::select_task_sources(MapperContext ctx, const Task& task,
                                     const SelectTaskSrcInput& input, SelectTaskSrcOutput& output) {
  DefaultMapper::select_task_sources(ctx, task, input, output);
  const auto* arguments = static_cast<const TaskArguments*>(task.args);
  const Executor& executor = Executor::find(arguments->executor);
  const int node = executor.node_of(input.target.get_location());
  std::stable_partition(output.chosen_ranking.begin(), output.chosen_ranking.end(),
                        [&](const PhysicalInstance& source) {
                          return executor.node_of(source.get_location()) == node;
                        });
}

void PlanMapper::select_sharding_functor(MapperContext, const Task& task,
                                         const SelectShardingFunctorInput&,
                                         SelectShardingFunctorOutput& output) {
  output.chosen_functor = launch_of(task).sharding;
}

// Inline mappings read a whole tensor on the host: in the instance of this memory's tasks, if that
// covers the tensor, or in one that Legion may discard afterwards.
void PlanMapper::map_inline(MapperContext ctx, const InlineMapping& inline_op,
                            const MapInlineInput&, MapInlineOutput& output) {
  Legion::Machine::MemoryQuery query(machine);
  query.only_kind(Memory::SYSTEM_MEM).local_address_space();
  const Memory memory = query.first();
  const RegionRequirement& requirement = inline_op.requirement;
  const FieldID field = *requirement.privilege_fields.begin();
  const Footprint footprint = RegionStore::whole(requirement.region, field, memory);
  output.chosen_instances = {instance_of(ctx, memory, footprint, field)};
}

void PlanMapper::memoize_operation(MapperContext, const Mappable&, const MemoizeInput&,
                                   MemoizeOutput& output) {
  output.memoize = true;
}

// Each copy that Legion makes for a task reports its source, target and size.
void PlanMapper::report_profiling(MapperContext, const Task&, const TaskProfilingInfo& input) {
  using Realm::ProfilingMeasurements::OperationMemoryUsage;
  OperationMemoryUsage usage;
  if (!input.fill_response && input.profiling_responses.get_measurement(usage)) {
    const std::lock_guard<std::mutex> lock(copies_mutex);
    bytes_copied[{usage.source, usage.target}] += static_cast<std::int64_t>(usage.size);
  }
}

}  // namespace flexlegion
