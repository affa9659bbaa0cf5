// Where the tasks of each pass run, and which rectangles they touch (pass_placements.h).
//
// Two kinds of placement cover all passes. Tasks are the tiles of their operator's space (forward,
// backward, and loads with the tiles of an input). Or they share out operands: each task has one
// shard of every weight that the operator updates, or of every output that it sums (shards.h).
#include "plan/pass_placements.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/launches.h"
#include "plan/rules.h"
#include "plan/shards.h"

namespace flexlegion {

namespace {

using R = RequirementRole;

// Tasks that have a shard each of several operands of `op`.
std::vector<ShardTask> shard_tasks_of(const Graph& graph, OpId op, const std::vector<int>& operands,
                                      Shares shares, const ParallelConfig& config) {
  const Sharing sharing{op, shares, config.hierarchical, &config.devices};
  return shard_tasks_of(graph, operands, sharing, [&](int i) {
    return distinct(accessed_rects(graph, op, graph.operators[op].operands[i], config.degrees));
  });
}

// Gives the launch these tasks. The result: for each of the operands, the shard of each task.
std::map<int, std::vector<Rect>> place_shards(const Graph& graph, const std::vector<int>& operands,
                                              const ParallelConfig& config, Launch& launch) {
  const std::vector<ShardTask> tasks =
      shard_tasks_of(graph, launch.op, operands, row_of(launch.pass).shares, config);
  // A task without a shard of some operand has an empty rectangle there, of the right rank.
  std::map<int, std::vector<Rect>> shard_of;
  for (int i : operands) {
    Rect none;
    const TensorId tensor = graph.operators[launch.op].operands[i].tensor;
    none.rank = static_cast<int>(graph.tensors[tensor].shape.size());
    shard_of[i].assign(tasks.size(), none);
  }
  for (std::size_t k = 0; k < tasks.size(); ++k) {
    launch.devices.push_back(tasks[k].device);
    for (const auto& [which, rect] : tasks[k].shards) shard_of[operands[which]][k] = rect;
  }
  return shard_of;
}

}  // namespace

// Tiles of the samples, on devices of the operator that reads the batch first.
void place_load(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                const ParallelConfig& reader, Launch& launch) {
  const LoadSource source = load_source(graph, facts, key.tensor);
  ParallelConfig config = load_config(graph, source, reader.degrees, reader.devices);
  const Rect whole = Rect::of_shape(graph.tensors[key.tensor].shape);
  std::vector<Rect>& tiles = launch.in_role(R::loaded)->rects;
  for (int k = 0; k < static_cast<int>(config.devices.size()); ++k) {
    tiles.push_back(tile_of(whole, config.degrees, k));
  }
  launch.devices = std::move(config.devices);
}

void place_sum(const Graph& graph, const GraphFacts&, const LaunchKey&,
               const ParallelConfig& config, Launch& launch) {
  const Operator& op = graph.operators[launch.op];
  if (!sums_by_shards(op, config)) return;
  const auto shard_of = place_shards(graph, op.outputs(), config, launch);
  for (Requirement& r : launch.requirements) r.rects = shard_of.at(r.operand);
}

// One update launch covers all weights that the operator owns (it is the first to use them); its
// task k has at most one shard of each. A norm launch has the same tasks.
void place_update(const Graph& graph, const GraphFacts& facts, const LaunchKey&,
                  const ParallelConfig& config, Launch& launch) {
  const auto shard_of = place_shards(graph, facts.owned_weights(graph, launch.op), config, launch);
  const std::size_t tasks = launch.devices.size();
  for (Requirement& r : launch.requirements) {
    if (r.tensor.none()) {
      r.rects.assign(tasks, Rect::of_shape({1}));
      continue;
    }
    r.rects = shard_of.at(r.operand);
    for (Rect& rect : r.rects) rect = touched_for_shard(graph, r, rect);
  }
}

// A task of each node for its share of the weights. Nothing is said of weights whose gradients are
// not summed inside nodes.
void place_in_nodes(const Graph& graph, const GraphFacts& facts, const LaunchKey&,
                    const ParallelConfig& config, Launch& launch) {
  const auto shard_of = place_shards(graph, facts.owned_weights(graph, launch.op), config, launch);
  auto& all = launch.requirements;
  for (Requirement& r : all) r.rects = shard_of.at(r.operand);
  const auto has_none = [](const Requirement& r) {
    return std::all_of(r.rects.begin(), r.rects.end(), [](const Rect& its) { return its.empty(); });
  };
  all.erase(std::remove_if(all.begin(), all.end(), has_none), all.end());
}

// A task for each tile of the operator's space. Of linear inputs, all parts touch the same elements
// here; which partial values each takes is the plan's to say.
void place_operator(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                    const ParallelConfig& config, Launch& launch) {
  const Operator& op = graph.operators[launch.op];
  launch.devices = config.devices;
  launch.degrees = config.degrees;
  launch.parts = parts_of(op, config.degrees);
  for (Requirement& r : launch.requirements) {
    const Operand& operand = op.operands[r.operand];
    const bool once = by_first_part_alone(graph, facts, key, r);
    r.rects = accessed_rects(graph, launch.op, once ? of_first_part(op, operand) : operand,
                             config.degrees);
  }
}

// One task, where the first one of the operator's norm launch, or update, runs.
void place_clip(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                const ParallelConfig& config, Launch& launch) {
  const std::vector<int> owned = facts.owned_weights(graph, key.op);
  launch.devices = {shard_tasks_of(graph, key.op, owned, Shares::weights, config).front().device};
  for (Requirement& r : launch.requirements) r.rects = {Rect::of_shape({1})};
}

}  // namespace flexlegion
