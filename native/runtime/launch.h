// An index launch as the runtime executes it, and what its tasks are given. The plan's launches and
// the runtime's own (moving data in and out) are all of this one form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "legion.h"
#include "ops/device_functions.h"
#include "ops/kernel.h"
#include "plan/places.h"
#include "runtime/recorded_work.h"
#include "support/rect.h"

namespace flexlegion {

// The argument of every leaf task; `rows` numbers of 8 bytes may follow it: rows of a batch, or of
// each of the graph's losses its label_share.
struct TaskArguments {
  std::int32_t executor = 0;
  std::int32_t launch = 0;
  std::int32_t data = -1;  // which host array, for tasks that read one
  std::int32_t round = 0;  // of the iteration
  std::int32_t turn = 0;   // as in ServiceOrder
  std::int32_t rows = 0;
  std::int64_t ticket = 0;  // of the iteration, if it is one that tasks tell of
  RunState run;
};

// A task's result of any length; Legion calls the three functions.
struct Bytes {
  std::vector<char> data;

  std::size_t legion_buffer_size() const { return sizeof(std::uint64_t) + data.size(); }
  void legion_serialize(void* buffer) const {
    const std::uint64_t size = data.size();
    std::memcpy(buffer, &size, sizeof(size));
    std::copy(data.begin(), data.end(), static_cast<char*>(buffer) + sizeof(size));
  }
  void legion_deserialize(const void* buffer) {
    std::uint64_t size = 0;
    std::memcpy(&size, buffer, sizeof(size));
    const char* const first = static_cast<const char*>(buffer) + sizeof(size);
    data.assign(first, first + size);
  }
};

struct LeafContext {
  DeviceKind kind = DeviceKind::cpu;  // where it runs
  const DeviceFunctions* device = nullptr;
  int point = 0;
  const TaskArguments* arguments = nullptr;
  const std::int64_t* rows = nullptr;
  std::vector<TensorView> views;  // one a requirement, in order
  bool views_stay = false;        // they are the same whenever the launch's task runs
  Metrics metrics;                // what a task of a loss found
  Bytes bytes;                    // what the task returns, if it returns anything (leaf_task.h)
};

struct LaunchRequirement {
  int region = 0;  // index into the executor's RegionStore
  Legion::FieldID field = 0;
  Legion::PrivilegeMode privilege = LEGION_READ_ONLY;
  std::vector<Rect> rects;  // one a task
  Legion::LogicalPartition partition = Legion::LogicalPartition::NO_PART;
  Place place = {};  // in the plan, of a requirement that the plan states
  // Of a row of elements, where tensors of any shape take turns: the tiles that lie there, and the
  // shape of the tensor. Otherwise there are none, and `rects` are the tiles.
  std::vector<Rect> tiles = {};
  std::array<std::int64_t, kMaxRegionRank> shape = {};
};

// Where the tasks of a launch run, and find their tiles.
enum class Side {
  device,
  host,    // a CPU processor of the device's rank, in its memory
  pinned,  // the same, in memory that the device reads as well
};

// The views of each task, once they are known. To ask Legion for them takes longer than many a
// task. They can be remembered because a kept footprint has one instance for as long as the program
// lives (regions.h): the mapper sees to that, and a task that used another instance's address would
// read what Legion has not brought there.
using Given = std::vector<std::vector<TensorView>>;

// A launch that another one stands for, see fusion.h.
struct FusedPart {
  int launch = 0;
  Recordable recordable = Recordable::never;
  std::vector<int> places;  // of its requirements among the other's
  Given given;
};

struct RuntimeLaunch {
  Legion::TaskID task = 0;
  std::vector<int> devices;  // one a task
  Side side = Side::device;
  int visit = 0;         // as in ServiceOrder; of those that were fused, the first one's
  bool answers = false;  // to the host: with a loss, say
  Recordable recordable = Recordable::never;
  std::vector<LaunchRequirement> requirements;
  std::function<void(LeafContext&)> body;
  std::vector<FusedPart> parts;                     // instead of a body
  std::vector<Stretch> stretches;                   // of the parts
  std::vector<std::vector<RecordedWork>> recorded;  // a task: of each stretch
  RecordedWork measured;  // of the one task whose times are logged, and how often it has that
  int measured_times = 0;
  Given given;
  // Filled when the program is complete.
  std::unique_ptr<Legion::IndexTaskLauncher> launcher;
  Legion::ShardingID sharding = 0;
  bool views_stay = false;  // the instances of all its requirements are kept
  bool issued = false;
  std::vector<std::int64_t> elapsed;         // a task: the ns that it last took here, or -1
  std::vector<std::int64_t>* log = nullptr;  // where every run's ns go; of a launch of one task
};

}  // namespace flexlegion
