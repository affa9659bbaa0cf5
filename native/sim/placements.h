// Where the tasks of launches run and what they touch, as the operators are configured at the
// moment. The plan's own rules say it (plan/passes.h); but a proposal leaves most of it as it was,
// so it is looked up here, and not written down again for every launch.
#pragma once

#include <memory>
#include <vector>

#include "plan/plan.h"
#include "sim/geometry.h"
#include "sim/launch_graph.h"

namespace flexlegion {

class Placements {
 public:
  // Of the strategy that `configs` hold when something is asked for.
  Placements(const Problem& problem, const LaunchGraph& launch_graph,
             const PricedStrategy& configs);

  Geometry& geometry() { return geometry_; }

  // The device of each task.
  std::vector<int> devices(const LaunchKey& key);
  // The tasks of a launch that share out operands.
  const std::vector<ShardTask>& shard_tasks(const LaunchKey& key);
  // The rectangle that each task touches by a use of a tensor: of partial values or gradients, in
  // whatever slot.
  const Partition& tiles(const LaunchKey& key, const Use& use);
  // Which nodes sum the gradient of a weight first; none, if it is not summed inside nodes. Until
  // its owner is configured otherwise.
  const SummingNodes& nodes(TensorId weight);
  // How the value of a tensor is written, and how tasks of a launch touch it.
  ValueStack stack(TensorId tensor) const;
  TermUse terms(const LaunchKey& key, const Use& use) const;
  // How many registers rounds take in turn of a place.
  Buffers buffers(const Place& place) const;

 private:
  // The tasks that share out the outputs or weights of an operator as it was configured last, and
  // what they touch.
  struct Sharded {
    PricedConfig config;
    std::vector<ShardTask> tasks;
    struct Touched {
      Use use;
      std::unique_ptr<Partition> tiles;
    };
    std::vector<Touched> touched;
    std::vector<std::pair<TensorId, SummingNodes>> nodes;  // of each weight
  };

  Sharded& sharded(OpId op, Shares shares);
  std::vector<int> load_devices(TensorId tensor) const;

  const Problem& problem_;
  const LaunchGraph& launch_graph_;
  const PricedStrategy& configs_;
  Geometry geometry_;
  IdVector<TensorId, LoadSource> load_sources_;
  IdVector<OpId, Sharded> outputs_, weights_, nodes_;
};

}  // namespace flexlegion
