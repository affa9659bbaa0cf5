// The tasks of a launch are the tiles of its operator's space, the parts of an input that is
// loaded, or tasks that have shards (rules.h). The rectangles of tiles depend on how the operator
// is split alone, so Geometry knows them; those of shards depend on devices, too, and are kept here
// until the operator is configured otherwise.
#include "sim/placements.h"

#include "sim/charges.h"

namespace flexlegion {

Placements::Placements(const Problem& problem, const LaunchGraph& launch_graph,
                       const PricedStrategy& configs)
    : problem_(problem),
      launch_graph_(launch_graph),
      configs_(configs),
      geometry_(problem),
      load_sources_(problem.graph.tensors.size()),
      outputs_(problem.graph.operators.size()),
      weights_(problem.graph.operators.size()),
      nodes_(problem.graph.operators.size()) {
  for (const auto* launches : {&launch_graph.launches, &launch_graph.others}) {
    for (const LaunchKey& key : *launches) {
      if (key.tensor.none()) continue;
      load_sources_[key.tensor] = load_source(problem.graph, problem.facts, key.tensor);
    }
  }
}

std::vector<int> Placements::devices(const LaunchKey& key) {
  const PassRow& row = row_of(key.pass);
  if (row.of == Of::input) return load_devices(key.tensor);
  if (row.of == Of::op && row.shares == Shares::nothing) return configs_[key.op].devices;
  std::vector<int> devices;
  for (const ShardTask& task : shard_tasks(key)) devices.push_back(task.device);
  // That of the iteration has one task, where the first of its operator's is.
  if (row.of == Of::iteration) devices.resize(1);
  return devices;
}

const std::vector<ShardTask>& Placements::shard_tasks(const LaunchKey& key) {
  static const std::vector<ShardTask> none;
  const Shares shares = row_of(key.pass).shares;
  if (shares == Shares::outputs && configs_[key.op].sums == Sums::readers) return none;
  if (shares == Shares::nodes && !configs_[key.op].hierarchical) return none;
  return sharded(key.op, shares == Shares::nothing ? Shares::weights : shares).tasks;
}

// The operator's shards as it is configured now. They are found again only if the configuration has
// changed.
Placements::Sharded& Placements::sharded(OpId op, Shares shares) {
  Sharded& its = (shares == Shares::outputs ? outputs_
                  : shares == Shares::nodes ? nodes_
                                            : weights_)[op];
  // The configuration is compared, not a flag: a proposal that is rejected brings the old one back.
  if (its.config == configs_[op]) return its;
  its.config = configs_[op];
  const auto operands = shared_operands(problem_.graph, problem_.facts, op, shares);
  its.tasks = shard_tasks_of(problem_, geometry_, op, operands, shares, its.config);
  its.touched.clear();
  its.nodes.clear();
  return its;
}

// None unless the weight's owner is hierarchical. Found once for all weights of the operator.
const SummingNodes& Placements::nodes(TensorId weight) {
  static const SummingNodes none;
  const OpId op = problem_.facts.owner[weight];
  if (op.none() || !configs_[op].hierarchical) return none;
  Sharded& its = sharded(op, Shares::weights);
  if (its.nodes.empty()) {
    const Sharing sharing{op, Shares::weights, true, &its.config.devices};
    for (int i : problem_.facts.owned_weights(problem_.graph, op)) {
      const TensorId tensor = problem_.graph.operators[op].operands[i].tensor;
      const DistinctRects& parts = geometry_.partition(op, i, its.config.split).parts;
      its.nodes.emplace_back(tensor,
                             flexlegion::summing_nodes(problem_.graph, tensor, parts, sharing));
    }
  }
  for (const auto& [tensor, nodes] : its.nodes) {
    if (tensor == weight) return nodes;
  }
  return none;
}

// Of whole tiles, Geometry's own partition. Of shards, one that is made when it is first asked for,
// and kept until the configuration changes.
const Partition& Placements::tiles(const LaunchKey& key, const Use& use) {
  const PassRow& row = row_of(key.pass);
  if (row.of == Of::input) {
    return geometry_.load_partition(use.tensor, static_cast<int>(load_devices(use.tensor).size()));
  }
  // Tiles of the operator's space depend on how it is split, which Geometry keeps.
  if (row.shares == Shares::nothing) {
    return geometry_.partition(key.op, use.operand, configs_[key.op].split,
                               by_first_part_alone(problem_.graph, problem_.facts, key, use));
  }
  // Whatever a task does with its shard of an operand, it touches the same rectangle.
  Sharded& its = sharded(key.op, row.shares);
  const bool looked_up = !use.lookup.none();
  for (const Sharded::Touched& known : its.touched) {
    const bool same = known.use.operand == use.operand && known.use.lookup == use.lookup &&
                      (!looked_up || known.use.role == use.role);
    if (same) return *known.tiles;
  }
  Rect none;
  none.rank = static_cast<int>(problem_.graph.tensors[use.tensor].shape.size());
  std::vector<Rect> rects(its.tasks.size(), none);
  const std::vector<int> operands =
      shared_operands(problem_.graph, problem_.facts, key.op, row.shares);
  for (std::size_t k = 0; k < rects.size(); ++k) {
    for (const auto& [which, shard] : its.tasks[k].shards) {
      if (operands[static_cast<std::size_t>(which)] != use.operand) continue;
      rects[k] = touched_for_shard(problem_.graph, use, shard);
    }
  }
  its.touched.push_back({use, geometry_.shards(rects)});
  // Tokens that different operators look up may overlap.
  if (use.role == RequirementRole::looked_up_tokens) its.touched.back().tiles->disjoint = false;
  return *its.touched.back().tiles;
}

// A batch is loaded where its first reader's tasks run.
std::vector<int> Placements::load_devices(TensorId tensor) const {
  const LoadSource& source = load_sources_[tensor];
  const PricedConfig& reader = configs_[source.first_reader];
  return load_config(problem_.graph, source,
                     problem_.split(source.first_reader, reader.split).degrees, reader.devices)
      .devices;
}

// How many partial values the producer's split gives, and whether a sum launch combines them.
ValueStack Placements::stack(TensorId tensor) const {
  const auto [op, output] = launch_graph_.producers[tensor];
  if (op.none()) return {};
  const PricedConfig& config = configs_[op];
  return {problem_.split(op, config.split).partial_values, config.sums == Sums::shards,
          problem_.graph.operators[op].operands[output].combine};
}

TermUse Placements::terms(const LaunchKey& key, const Use& use) const {
  if (key.op.none()) return {};
  const Operand& operand = problem_.graph.operators[key.op].operands[use.operand];
  const bool cut = row_of(key.pass).shares == Shares::nothing;
  const int parts = cut ? problem_.split(key.op, configs_[key.op].split).parts : 1;
  return term_use(stack(use.tensor), use.role, operand, parts);
}

// As the producer is configured; of an input, the first reader.
Buffers Placements::buffers(const Place& place) const {
  if (place.tensor.none()) return {};
  const Tensor& tensor = problem_.graph.tensors[place.tensor];
  if (tensor.kind == TensorKind::weight) return {};
  const OpId op = tensor.kind == TensorKind::input ? load_sources_[place.tensor].first_reader
                                                   : launch_graph_.producers[place.tensor].op;
  if (op.none() || problem_.graph.micro_batches == 1) return {};
  const auto devices_of = [this](OpId its) -> const auto& { return configs_[its].devices; };
  const bool stays = stays_on_devices(problem_.facts, place, op, devices_of);
  const int configured = configs_[op].buffers;
  return {buffers_of(problem_.graph, problem_.facts, place, configured, stays), configured};
}

}  // namespace flexlegion
