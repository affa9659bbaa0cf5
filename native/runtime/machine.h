// The machine that the Legion runtime found, and what this library registers with that runtime:
// leaf tasks, the mapper, sharding functors. Started once a process, on every rank alike.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "legion.h"
#include "ops/device_functions.h"
#include "runtime/launch.h"

namespace flexlegion {

// A processor that tasks can be placed on, and the memory in which they find their tiles.
// Processors of one memory share every instance in it.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int rank = 0;  // the process that owns it
  Legion::Processor processor = Legion::Processor::NO_PROC;
  Legion::Memory memory = Legion::Memory::NO_MEMORY;
  // Where the host works for it: a CPU processor of its rank, memory, and memory that the device
  // reads without a copy by the host. Of a CPU processor: itself, and its own memory.
  Legion::Processor host = Legion::Processor::NO_PROC;
  Legion::Memory host_memory = Legion::Memory::NO_MEMORY, pinned = Legion::Memory::NO_MEMORY;
  // Of this rank's: how many threads compute a task, and the cores that they keep to, if any.
  int threads = 0;
  std::vector<int> cores = {};
};

// Where the tasks of a launch on that side run for a device, and where their tiles lie.
Legion::Processor processor_for(const Device& device, Side side);
Legion::Memory memory_for(const Device& device, Side side);

class MachineState {
 public:
  // Finds the devices and registers everything. Must run inside the top-level task; the first call
  // starts, the others return the same object. Throws UserMistake unless `threads` has one number
  // for all CPU processors of this rank, or one for each.
  static MachineState& start(const std::vector<int>& threads, const std::vector<int>& cores,
                             std::int64_t worth_sharing);
  static MachineState& get();  // after start()

  const std::vector<Device>& devices() const { return devices_; }
  bool has_gpus() const { return has_gpus_; }                    // any rank
  int device_of(Legion::Processor processor) const;              // -1 if it is none of ours
  std::int64_t worth_sharing() const { return worth_sharing_; }  // ops/team.h
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  Legion::MapperID mapper_id() const { return mapper_id_; }
  // The Legion task of that name, e.g. "conv2d.backward".
  Legion::TaskID task_id(const std::string& name) const;
  bool returns(Legion::TaskID task) const { return returning_.count(task) > 0; }
  Legion::TraceID next_trace_id();
  // The functor that sends point k of a launch to shard `ranks[k]`; the same functor for the same
  // ranks.
  Legion::ShardingID sharding_of(const std::vector<int>& ranks);

 private:
  MachineState() = default;
  void find_devices();
  void add_device(const Device& device);
  void share_cores(const std::vector<int>& threads, const std::vector<int>& cores);
  void register_all();

  std::vector<Device> devices_;
  bool has_gpus_ = false;
  std::map<Legion::Processor, int> index_;
  std::int64_t worth_sharing_ = 0;
  int ranks_ = 1;
  int rank_ = 0;
  Legion::MapperID mapper_id_ = 0;
  std::map<std::string, Legion::TaskID> tasks_;
  std::set<Legion::TaskID> returning_;
  Legion::TraceID first_trace_ = 0, used_traces_ = 0;
  Legion::ShardingID first_sharding_ = 0;
  std::map<std::vector<int>, Legion::ShardingID> shardings_;
};

// Of each device, the bytes of its memory that Legion has given out; of other ranks', -1. Waits for
// all that was issued.
std::vector<std::int64_t> memory_in_use();

// What a GPU of this rank is; and how it reaches another's memory, see DeviceFunctions::peer_class.
GpuFacts describe_gpu(int device);
int peer_class(int from, int to);

}  // namespace flexlegion
