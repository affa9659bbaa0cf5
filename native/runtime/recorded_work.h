// What a GPU does in a fused launch is nearly the same at each iteration: the same kernels, on the
// same memory. To issue hundreds of them takes the host longer than the GPU needs for them. So
// parts that repeat are issued twice, the second time into a recording (a CUDA graph), and from
// then on the GPU is given the recording, at the cost of one kernel.
//
// A recording is good for iterations that differ in nothing that it depends on: it has a key. Parts
// that do not repeat, such as dropout, stand between recordings and are issued each time.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ops/device_functions.h"
#include "ops/precision.h"
#include "runtime/arenas.h"

namespace flexlegion {

struct FusedPart;
struct TaskArguments;

// Whether a launch's tasks ask a GPU for the same work at each iteration.
enum class Recordable { never, at_one_rate, always };  // as long as the learning rate stays

// Neighbours among a fused launch's parts that repeat alike.
struct Stretch {
  int first = 0, last = 0;  // parts [first, last)
  Recordable recordable = Recordable::never;
};
std::vector<Stretch> stretches_of(const std::vector<FusedPart>& parts);

// What parts depend on of an iteration.
struct RecordingKey {
  std::int64_t valid_samples = 0, batch_samples = 0;
  double learning_rate = 0, loss_scale = 0;
  std::uint64_t seed = 0;
  std::int32_t training = 0;
  std::vector<std::int64_t> shares;  // of losses, as they follow a task's arguments

  RecordingKey() = default;
  RecordingKey(const TaskArguments& arguments, const std::int64_t* rows, Recordable recordable);
  bool operator==(const RecordingKey& other) const;
};

// The recordings of a stretch, of one task.
class RecordedWork {
 public:
  // Has the GPU do what `issue` issues part by part, by a recording if there is one for that key,
  // or makes one. False if the parts have to be issued now.
  bool run(const DeviceFunctions& device, const RecordingKey& key, const Arena& arena,
           Precision precision, const std::function<void(int part)>& issue, const Stretch& stretch,
           const std::function<void(const Recording&)>& replay);
  // Whether there is none yet.
  bool empty() const { return known_.empty(); }

 private:
  static constexpr std::size_t kMost = 4;  // keys: whole and last batches, training or not; rates

  std::vector<std::pair<RecordingKey, Recording>> known_;
  RecordingKey last_;  // of what was issued
  bool issued_ = false, refused_ = false;
};

}  // namespace flexlegion
