// The mapper: it places every point task on the device that the plan names, and gives every tensor
// field an instance in each memory that uses it, which all processors of that memory share. Where
// what is read and what is written there lie far apart, each has its own (regions.h).
#pragma once

#include <cstdint>

#include "legion.h"
#include "mappers/default_mapper.h"
#include "runtime/regions.h"

namespace flexlegion {

// The kinds of processors that tasks run on, and the variant of a leaf task for each.
struct Variant {
  Legion::Processor::Kind kind;
  Legion::VariantID id;
};
constexpr Variant kVariants[] = {{Legion::Processor::LOC_PROC, 1},
                                 {Legion::Processor::OMP_PROC, 2},
                                 {Legion::Processor::TOC_PROC, 3}};

class PlanMapper : public Legion::Mapping::DefaultMapper {
 public:
  PlanMapper(Legion::Mapping::MapperRuntime* runtime, Legion::Machine machine,
             Legion::Processor local);

  void select_task_options(Legion::Mapping::MapperContext ctx, const Legion::Task& task,
                           TaskOptions& output) override;
  void slice_task(Legion::Mapping::MapperContext ctx, const Legion::Task& task,
                  const SliceTaskInput& input, SliceTaskOutput& output) override;
  void map_task(Legion::Mapping::MapperContext ctx, const Legion::Task& task,
                const MapTaskInput& input, MapTaskOutput& output) override;
  void select_task_sources(Legion::Mapping::MapperContext ctx, const Legion::Task& task,
                           const SelectTaskSrcInput& input, SelectTaskSrcOutput& output) override;
  void select_sharding_functor(Legion::Mapping::MapperContext ctx, const Legion::Task& task,
                               const SelectShardingFunctorInput& input,
                               SelectShardingFunctorOutput& output) override;
  void map_inline(Legion::Mapping::MapperContext ctx, const Legion::InlineMapping& inline_op,
                  const MapInlineInput& input, MapInlineOutput& output) override;
  void memoize_operation(Legion::Mapping::MapperContext ctx, const Legion::Mappable& mappable,
                         const MemoizeInput& input, MemoizeOutput& output) override;
  void report_profiling(Legion::Mapping::MapperContext ctx, const Legion::Task& task,
                        const TaskProfilingInfo& input) override;
  using DefaultMapper::report_profiling;
  using DefaultMapper::select_sharding_functor;

 private:
  Legion::Mapping::PhysicalInstance instance_for(Legion::Mapping::MapperContext ctx,
                                                 const Legion::Task& task,
                                                 const Legion::RegionRequirement& requirement,
                                                 Legion::Memory memory);
  Legion::Mapping::PhysicalInstance instance_of(Legion::Mapping::MapperContext ctx,
                                                Legion::Memory memory, const Footprint& footprint,
                                                Legion::FieldID field);
};

// Counts the bytes that Legion copies to bring tasks their data, from the next mapping on.
void count_copies(bool on);
std::int64_t copied_bytes();
std::int64_t copied_bytes(Legion::Memory from, Legion::Memory to);

}  // namespace flexlegion
