#include "plan/launches.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/rules.h"

namespace flexlegion {

namespace {

using R = RequirementRole;

Use& add(std::vector<Use>& uses, R role, int operand = -1, TensorId tensor = {}) {
  Use& use = uses.emplace_back();
  use.role = role;
  use.operand = operand;
  use.tensor = tensor;
  use.field = field_of(role);
  use.privilege = privilege_of(role);
  return use;
}

R forward_role(const Tensor& tensor, const Operand& operand) {
  if (operand.role == Role::output) return R::output;
  if (tensor.is_state) return R::operator_state;
  return tensor.kind == TensorKind::weight ? R::weight : R::input;
}

void add_forward(const Graph& graph, OpId op, std::vector<Use>& uses) {
  const auto& operands = graph.operators[op].operands;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const TensorId tensor = operands[i].tensor;
    add(uses, forward_role(graph.tensors[tensor], operands[i]), i, tensor);
  }
}

void add_sum(const Graph& graph, OpId op, std::vector<Use>& uses) {
  for (int i : graph.operators[op].outputs()) {
    const TensorId tensor = graph.operators[op].operands[i].tensor;
    add(uses, R::partial, i, tensor);
    add(uses, R::summed, i, tensor);
  }
}

void add_backward(const Graph& graph, const GraphFacts& facts, OpId op, std::vector<Use>& uses) {
  const auto& operands = graph.operators[op].operands;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const Operand& o = operands[i];
    if (o.saved_for_backward) add(uses, R::saved, i, o.tensor);
    if (o.role == Role::output && facts.has_gradient[o.tensor]) {
      add(uses, R::output_gradient, i, o.tensor);
    }
    if (facts.contributes(o)) add(uses, R::contribution, i, o.tensor);
  }
}

// What tells an update, and the norm launch before it, how to change the weight that is operand `i`
// of its operator.
void add_weight_gradient(const Graph& graph, const GraphFacts& facts, int i, TensorId weight,
                         std::vector<Use>& uses) {
  const auto lookups = facts.lookups.find(weight);
  if (lookups == facts.lookups.end()) {
    add(uses, R::weight_gradient, i, weight);
    return;
  }
  for (OpId op : lookups->second) {
    const TensorId output = graph.operators[op].primary_output().tensor;
    if (!facts.has_gradient[output]) continue;
    const TensorId tokens = graph.operators[op].tokens()->tensor;
    add(uses, R::looked_up_tokens, i, tokens).lookup = op;
    add(uses, R::looked_up_gradient, i, output).lookup = op;
  }
}

void add_norm(const Graph& graph, const GraphFacts& facts, OpId op, std::vector<Use>& uses) {
  for (int i : facts.owned_weights(graph, op)) {
    add_weight_gradient(graph, facts, i, graph.operators[op].operands[i].tensor, uses);
  }
  add(uses, R::norm);
}

void add_update(const Graph& graph, const GraphFacts& facts, OpId op, std::vector<Use>& uses) {
  for (int i : facts.owned_weights(graph, op)) {
    const TensorId weight = graph.operators[op].operands[i].tensor;
    add_weight_gradient(graph, facts, i, weight, uses);
    add(uses, R::updated, i, weight);
    for (int s = 0; s < facts.optimizer.states_of(graph.tensors[weight]); ++s) {
      add(uses, R::optimizer_state, i, weight).state = s;
    }
  }
  if (facts.optimizer.needs_norm) add(uses, R::clipped_by);
}

void place_load(const Graph& graph, const GraphFacts& facts, TensorId tensor,
                const ParallelConfig& reader, Launch& launch) {
  const LoadSource source = load_source(graph, facts, tensor);
  ParallelConfig config = load_config(graph, source, reader.degrees, reader.devices);
  const Rect whole = Rect::of_shape(graph.tensors[tensor].shape);
  for (int k = 0; k < static_cast<int>(config.devices.size()); ++k) {
    launch.requirements.front().rects.push_back(tile_of(whole, config.degrees, k));
  }
  launch.devices = std::move(config.devices);
}

// Tasks that have a shard each of several operands of `op`.
std::vector<ShardTask> shard_tasks_of(const Graph& graph, OpId op, const std::vector<int>& operands,
                                      const ParallelConfig& config) {
  return shard_tasks_of(graph, op, operands, config.devices, [&](int i) {
    return distinct(accessed_rects(graph, op, graph.operators[op].operands[i], config.degrees));
  });
}

// Gives the launch these tasks. The result: for each of the operands, the shard of each task.
std::map<int, std::vector<Rect>> place_shards(const Graph& graph, const std::vector<int>& operands,
                                              const ParallelConfig& config, Launch& launch) {
  const std::vector<ShardTask> tasks = shard_tasks_of(graph, launch.op, operands, config);
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

void place_sum(const Graph& graph, const ParallelConfig& config, Launch& launch) {
  const Operator& op = graph.operators[launch.op];
  if (!sums_by_shards(op, config)) return;
  const auto shard_of = place_shards(graph, op.outputs(), config, launch);
  for (Requirement& r : launch.requirements) r.rects = shard_of.at(r.operand);
}

// One update launch covers all weights that the operator owns (it is the first to use them); its
// task k has at most one shard of each. A norm launch has the same tasks.
void place_update(const Graph& graph, const GraphFacts& facts, const ParallelConfig& config,
                  Launch& launch) {
  const auto shard_of = place_shards(graph, facts.owned_weights(graph, launch.op), config, launch);
  const std::size_t tasks = launch.devices.size();
  for (Requirement& r : launch.requirements) {
    if (r.tensor.none()) {
      r.rects.assign(tasks, Rect::of_shape({1}));
      continue;
    }
    r.rects = shard_of.at(r.operand);
    for (Rect& rect : r.rects) {
      if (r.role == R::looked_up_gradient) {
        rect = looked_up_gradient(graph, r.lookup, rect);
      } else if (r.role == R::looked_up_tokens) {
        const bool none = rect.empty();
        rect = looked_up_tokens(graph, r.lookup);
        if (none) rect.hi = rect.lo;
      }
    }
  }
}

// A forward or backward launch. Of linear inputs, all parts touch the same elements here; which
// partial values each takes is the plan's to say.
void place_operator(const Graph& graph, const GraphFacts& facts, const ParallelConfig& config,
                    Launch& launch) {
  const Operator& op = graph.operators[launch.op];
  const bool idle = launch.pass == Pass::backward && facts.first_part_alone(op);
  launch.devices = config.devices;
  launch.degrees = config.degrees;
  launch.parts = parts_of(op, config.degrees);
  for (Requirement& r : launch.requirements) {
    const Operand& operand = op.operands[r.operand];
    const bool once = idle || (r.role == R::contribution && of_first_part_alone(op, operand));
    r.rects = accessed_rects(graph, launch.op, once ? of_first_part(op, operand) : operand,
                             config.degrees);
  }
}

void place_clip(const Graph& graph, const GraphFacts& facts, OpId op, const ParallelConfig& config,
                Launch& launch) {
  const std::vector<int> owned = facts.owned_weights(graph, op);
  launch.devices = {shard_tasks_of(graph, op, owned, config).front().device};
  for (Requirement& r : launch.requirements) r.rects = {Rect::of_shape({1})};
}

}  // namespace

unsigned runs_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  if (key.pass == Pass::forward || key.pass == Pass::sum) return facts.runs[key.op];
  if (key.pass != Pass::load) return kTrains;
  unsigned runs = 0;
  for (OpId op : graph.operators.ids()) {
    for (const Operand& o : graph.operators[op].operands) {
      if (o.tensor == key.tensor) runs |= facts.runs[op];
    }
  }
  return runs;
}

Field field_of(RequirementRole role) {
  switch (role) {
    case R::partial:
      return Field::partial;
    case R::output_gradient:
    case R::contribution:
    case R::weight_gradient:
    case R::looked_up_gradient:
      return Field::gradient;
    case R::optimizer_state:
      return Field::state;
    case R::norm:
    case R::all_norms:
      return Field::norms;
    case R::total_norm:
    case R::clipped_by:
      return Field::total_norm;
    default:
      return Field::value;
  }
}

DataType type_of(const Graph& graph, TensorId tensor, Field field) {
  switch (field) {
    case Field::value:
    case Field::partial:
      return graph.tensors[tensor].type;
    case Field::gradient:
      return graph.tensors[tensor].gradient_type();
    default:
      return kStateType;
  }
}

Privilege privilege_of(RequirementRole role) {
  switch (role) {
    case R::loaded:
    case R::output:
    case R::summed:
    case R::contribution:  // read_write where some task adds
    case R::norm:
    case R::total_norm:
      return Privilege::write;
    case R::operator_state:
    case R::updated:
    case R::optimizer_state:
      return Privilege::read_write;
    default:
      return Privilege::read;
  }
}

bool first_part_alone(const Operator& op, const Launch& backward) {
  const auto& all = backward.requirements;
  return std::all_of(all.begin(), all.end(), [&op](const Requirement& r) {
    return r.role != R::contribution || of_first_part_alone(op, op.operands[r.operand]);
  });
}

bool touch_alike(const std::vector<Rect>& a, const std::vector<Rect>& b) {
  return &a == &b ||
         std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Rect& x, const Rect& y) {
           return x == y || (x.empty() && y.empty());
         });
}

std::vector<Use> uses_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  std::vector<Use> uses;
  switch (key.pass) {
    case Pass::load:
      add(uses, R::loaded, 0, key.tensor);
      break;
    case Pass::forward:
      add_forward(graph, key.op, uses);
      break;
    case Pass::sum:
      add_sum(graph, key.op, uses);
      break;
    case Pass::backward:
      add_backward(graph, facts, key.op, uses);
      break;
    case Pass::norm:
      add_norm(graph, facts, key.op, uses);
      break;
    case Pass::clip:
      add(uses, R::all_norms);
      add(uses, R::total_norm);
      break;
    case Pass::update:
      add_update(graph, facts, key.op, uses);
      break;
  }
  return uses;
}

OpId decides(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return key.pass == Pass::load ? load_source(graph, facts, key.tensor).first_reader : key.op;
}

Launch launch_of(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                 const ParallelConfig& config) {
  Launch launch;
  if (key.pass != Pass::clip) launch.op = key.op;
  launch.pass = key.pass;
  launch.runs = runs_of(graph, facts, key);
  for (const Use& use : uses_of(graph, facts, key)) launch.requirements.push_back({use, {}, {}});
  switch (key.pass) {
    case Pass::load:
      place_load(graph, facts, key.tensor, config, launch);
      break;
    case Pass::forward:
    case Pass::backward:
      place_operator(graph, facts, config, launch);
      break;
    case Pass::sum:
      place_sum(graph, config, launch);
      break;
    case Pass::norm:
    case Pass::update:
      place_update(graph, facts, config, launch);
      break;
    case Pass::clip:
      place_clip(graph, facts, key.op, config, launch);
      break;
  }
  return launch;
}

}  // namespace flexlegion
