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

// Bringing a tile of a batch from the host.
std::int64_t load_time(const Problem& problem, int device, std::int64_t bytes);

// Summing `partial` bytes, the partial values of a tile of `own` bytes. A tile that has one value
// for each of its elements, or none, is not summed.
std::int64_t sum_time(const Problem& problem, int device, std::int64_t partial, std::int64_t own);

// What a sum task writes, in bytes: of these outputs of `op`, the shards that it has.
std::int64_t summed_bytes(const Graph& graph, OpId op, const std::vector<int>& outputs,
                          const ShardTask& task);

// The tasks of an update of `weights`, operands of `op`, by the devices of its configuration.
std::vector<ShardTask> shard_tasks_of(const Problem& problem, Geometry& geometry, OpId op,
                                      const std::vector<int>& weights, const PricedConfig& config);

// What an update reads and writes of a shard, in bytes: its value, and its states. The partial
// gradients that it sums come on top.
std::int64_t updated(const Problem& problem, TensorId tensor, const Rect& shard);
// An update task that touches so many bytes.
std::int64_t update_time(const Problem& problem, int device, std::int64_t bytes);

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
