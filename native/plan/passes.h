// The passes of an iteration, a row each. A row states of a pass whatever the rest of the code asks
// about it: its name, in which runs it takes part, what its launches touch and where their tasks
// run, what they are charged, and how they fuse. Plan, simulator, measurement and runtime read the
// rows; so a new pass is a new row here, a place in the order of issue (schedule.h), and a body in
// the runtime (runtime/pass_bodies.h). docs/adding-a-pass.md adds one.
#pragma once

#include <optional>
#include <vector>

#include "plan/places.h"

namespace flexlegion {

struct GraphFacts;
struct Launch;
struct Optimizer;

// The enumerators are in the order of the rows; their numbers mean nothing else.
//
// - `load` brings a batch from the host into an input tensor.
// - `gather` is there for operators whose weights' values are sharded (Sharding::weights): each
//   device copies its shards to where readers get them from. `again_gather` does so once more, for
//   the backward pass. Of several nodes, `gather_spread` and `again_spread` bring shards once to
//   each node.
// - `forward` and `backward` compute operators and their gradients.
// - `sum` combines the partial values of an operator's outputs, where the operator's configuration
//   asks for that (Sums::shards).
// - `again` runs an operator forward once more, for the backward pass to read what it computes
//   (Operator::again); `again_sum` is its `sum`.
// - `reduce` is there for operators whose weights' gradients are sharded (Sharding::gradients, and
//   weights): it sums each shard's partial gradients, in every micro-batch. `node_reduce` does so
//   before, a node for itself.
// - `update` changes weights.
// - `norm` and `clip` are there if the update needs the norm of all gradients, to clip them by it,
//   or to know whether they are finite. `norm` finds, for each task of an update, the norm of the
//   gradients that the task is about to use. `clip` is one task that finds the norm of these norms.
// - `node_sum` and `spread` are there if gradients are summed inside nodes first (shards.h). The
//   first does so, a node for itself; the second brings what was updated to the other nodes. Both
//   have the same tasks.
enum class Pass {
  load,
  gather,
  gather_spread,
  forward,
  sum,
  again_gather,
  again_spread,
  again,
  again_sum,
  backward,
  node_reduce,
  reduce,
  node_sum,
  norm,
  clip,
  update,
  spread
};
constexpr int kPasses = static_cast<int>(Pass::spread) + 1;

// In which runs a launch takes part (a bit set).
enum Runs : unsigned { kTrains = 1, kEvaluates = 2, kPredicts = 4 };
// Whether a launch is one of the forward pass: it takes part in other runs than training, too.
inline bool of_forward_pass(unsigned runs) { return (runs & ~kTrains) != 0; }

// Names a launch of the plan.
struct LaunchKey {
  Pass pass = Pass::forward;
  OpId op = {};                // none, of a load
  TensorId tensor = {};        // of a load
  Field field = Field::value;  // of a sum: what it combines
};

// What a pass has launches of: input tensors, operators, or the iteration, which has one launch.
// The key of that one names an operator all the same, whose configuration says where it runs.
enum class Of { input, op, iteration };

// What a pass's tasks share out: they are the tiles of their operator's space (or of an input), or
// each of them has a shard of the operator's outputs, or of the weights that it updates, or of
// these weights one in its node (shards.h).
enum class Shares { nothing, outputs, weights, nodes };
std::vector<int> shared_operands(const Graph& graph, const GraphFacts& facts, OpId op,
                                 Shares shares);

// What a task touches by a use that serves an operand of which it has that shard.
Rect touched_for_shard(const Graph& graph, const Use& use, const Rect& shard);

// Whether of a launch whose tasks are the tiles of an operator's space, those of the first part
// alone touch what this use is of.
bool by_first_part_alone(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                         const Use& use);

// What a task takes in the simulator: a time that the cost table states for this task, or a time
// that grows with the bytes that the task touches; or none, as it only has data brought to it.
enum class Price { of_task, of_bytes, nothing };

struct PassRow {
  Pass pass = Pass::load;
  const char* name = "";  // in plans, timelines, traces and messages
  Of of = Of::op;

  // Whether the graph asks for the launch that the key names. Of the iteration's pass: whether the
  // operator is among those that the launch is about.
  bool (*wanted)(const Graph&, const GraphFacts&, const LaunchKey&) = nullptr;
  // In which runs it takes part.
  unsigned (*runs)(const Graph&, const GraphFacts&, const LaunchKey&) = nullptr;
  // What it touches.
  std::vector<Use> (*uses)(const Graph&, const GraphFacts&, const LaunchKey&) = nullptr;
  Shares shares = Shares::nothing;
  // Gives the launch its tasks: a device each, and a rectangle for each requirement. It follows
  // from `shares`, unless that is nothing. The configuration is that of decides() (launches.h).
  void (*place)(const Graph&, const GraphFacts&, const LaunchKey&, const ParallelConfig&,
                Launch&) = nullptr;

  // The passes of the same operator whose tasks it may follow: it follows the first of them that
  // the operator has (followed_by). Task k runs on the device of task k of that pass, after it, and
  // finds in memory what that one touched.
  std::vector<Pass> follows;

  Price price = Price::of_bytes;
  Pass priced_as = Pass::update;  // which pass's price per byte, or per task, is charged

  // Whether it runs ahead of its iteration, while the one before still computes. Then it belongs to
  // no sequence of fused launches, and memory holds a second copy of what it writes.
  bool ahead = false;
  // Whether it ends an iteration: nothing but the end awaits its results, so launches that only
  // devices of one memory wait for can be delayed by fusion (fusion.h). All that its tasks take
  // depends on what they read, of weights' gradients or of the iteration (sim/flow_rules.h).
  bool closing = false;
  // Whether the launch tells the host what it found. Then it is not fused, so that its answer does
  // not wait for other launches. Null: it never does.
  bool (*answers)(const Graph&, const Optimizer&, const LaunchKey&) = nullptr;
};

const PassRow& row_of(Pass pass);
// Whether its tasks run operators forward.
inline bool runs_forward(Pass pass) { return pass == Pass::forward || pass == Pass::again; }
// The pass of its operator that a launch follows.
std::optional<Pass> followed_by(const Graph& graph, const GraphFacts& facts, const LaunchKey& key);
const std::vector<PassRow>& all_passes();

}  // namespace flexlegion
