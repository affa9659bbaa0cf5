// What an iteration is charged besides the operators' own tasks: loads, sums of partial values,
// updates, and the ways of transfers. Each rule stands here alone; the task graph, the bounds of
// the exhaustive search and OptCNN's summed costs all ask here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/geometry.h"
#include "sim/problem.h"

namespace flexlegion {

// A task of a pass whose price is of bytes, which touches so many. Whose price it is, the pass's
// row says (PassRow::priced_as).
std::int64_t time_of_bytes(const Problem& problem, Pass pass, int device, std::int64_t bytes);

// Bringing a batch of an input tensor from the host: each of the tasks on `devices` its tile.
std::vector<std::int64_t> load_times(const Problem& problem, Geometry& geometry, TensorId tensor,
                                     const std::vector<int>& devices);

// Summing `partial` bytes, the partial values of a tile of `own` bytes. A tile that has one value
// for each of its elements, or none, is not summed.
std::int64_t sum_time(const Problem& problem, int device, std::int64_t partial, std::int64_t own);

// The same, of all `values` partial values of each element.
std::int64_t combining_time(const Problem& problem, int device, std::int64_t own, int values);

// A sum task of `op`, which has so many partial values: of each of its outputs, a shard.
std::int64_t sum_task_time(const Problem& problem, OpId op, int values, const ShardTask& task);

// The tasks that share out `operands` of `op`, weights or outputs, by the devices of its
// configuration.
std::vector<ShardTask> shard_tasks_of(const Problem& problem, Geometry& geometry, OpId op,
                                      const std::vector<int>& operands, Shares shares,
                                      const PricedConfig& config);

// A gradient that an update reads to change a weight: that of the weight, or of a table, that of
// the output of an operator which looks rows up in it.
struct GradientSource {
  TensorId tensor;
  OpId lookup;  // none: it is the weight's own
};
std::vector<GradientSource> gradient_sources(const Problem& problem, TensorId weight);
// What it reads of that gradient to change a shard.
Rect gradient_rect(const Graph& graph, const GradientSource& source, const Rect& shard);

// What a task of an update touches, in bytes; or of a pass that reads the same, and changes
// nothing.
struct UpdateBytes {
  std::int64_t gathered = 0;  // partial gradients, which it sums, or norms
  std::int64_t changed = 0;   // values and optimizer states, read and written

  void change(const Problem& problem, TensorId weight, const Rect& shard);
  std::int64_t time(const Problem& problem, Pass pass, int device) const;
};

// The update of `weights`, operands of `op`, if nobody but the operator's own tasks contributes to
// their gradients.
struct OwnUpdate {
  // What one of the operator's tasks sends to an update task, and what it gets back, in bytes. What
  // is sent of a table is the gradient of the operator's output.
  struct Share {
    std::int64_t gradients = 0, values = 0;
  };

  std::vector<ShardTask> tasks;
  std::vector<UpdateBytes> bytes;          // one an update task
  std::vector<std::vector<Share>> shares;  // [update task][the operator's task]
};
OwnUpdate own_update(const Problem& problem, Geometry& geometry, OpId op,
                     const std::vector<int>& weights, const PricedConfig& config);

// A transfer passes its links cut-through, as one hop a link: a hop is ready when the one before it
// has begun (the first: when the writing task has ended) and the link's latency has passed, and
// does not end before the one before it.
inline std::int64_t hop_time(const CommunicationDevice& link, std::int64_t bytes) {
  return std::max<std::int64_t>(1, transfer_time(bytes, link.bandwidth));
}
inline std::int64_t hop_ready(const CommunicationDevice& link, std::int64_t begun) {
  return begun + link.latency;
}
inline std::int64_t hop_end(std::int64_t end, std::int64_t end_before) {
  return std::max(end, end_before);
}

// How long all hops of a transfer take together, if each link is free.
class Passage {
 public:
  void pass(const CommunicationDevice& link, std::int64_t time) {
    begun_ = hop_ready(link, begun_);
    end_ = hop_end(begun_ + time, end_);
  }
  std::int64_t time() const { return end_; }

 private:
  std::int64_t begun_ = 0, end_ = 0;
};
// From the end of a task to the arrival of what it wrote in the memory of another device, in ns; 0
// where they share one.
std::int64_t arrival(const MachineModel& machine, int from, int to, std::int64_t bytes);

}  // namespace flexlegion
