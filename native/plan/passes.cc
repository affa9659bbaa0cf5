// What each pass touches, and the table of the passes.
//
// A row is a set of functions and flags (passes.h), and the rest of the code asks them instead of
// comparing passes. This file has what tasks touch, and the rows. Which launches there are is in
// pass_conditions.cc, and where tasks run in pass_placements.cc.
//
// A row states what cannot be derived: the field and the privilege of a use follow from its role
// (places.cc), and where tasks run follows from what they share out (make_rows). A pass that
// repeats another one's work takes its row, and changes what differs.
#include "plan/passes.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <utility>

#include "plan/launches.h"
#include "plan/pass_conditions.h"
#include "plan/pass_placements.h"
#include "plan/rules.h"
#include "plan/shards.h"

namespace flexlegion {

namespace {

using R = RequirementRole;
using Uses = std::vector<Use>;

// A use by its role, which says the field and the privilege. The reference is valid until the next
// one is added.
Use& add(Uses& uses, R role, int operand = -1, TensorId tensor = {}) {
  Use& use = uses.emplace_back();
  use.role = role;
  use.operand = operand;
  use.tensor = tensor;
  use.field = row_of(role).field;
  use.privilege = row_of(role).privilege;
  return use;
}

// What is touched.

Uses use_load(const Graph&, const GraphFacts&, const LaunchKey& key) {
  Uses uses;
  add(uses, R::loaded, 0, key.tensor);
  return uses;
}

// A weight may come as an input of another operator, too; it is a weight all the same.
R forward_role(const Tensor& tensor, const Operand& operand) {
  if (operand.role == Role::output) return R::output;
  if (tensor.is_state) return R::operator_state;
  return tensor.kind == TensorKind::weight ? R::weight : R::input;
}

// A weight whose value is sharded is read where it was gathered (GraphFacts::for_forward).
Uses use_forward(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  Uses uses;
  const auto& operands = graph.operators[key.op].operands;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const TensorId tensor = operands[i].tensor;
    Use& use = add(uses, forward_role(graph.tensors[tensor], operands[i]), i, tensor);
    static_cast<Place&>(use) = facts.for_forward(use);
  }
  return uses;
}

// What a gather launch copies, and what spreads it: in the backward pass, those weights alone that
// are needed there, in places of their own.
Uses use_gathers(const Graph& graph, const GraphFacts& facts, const LaunchKey& key, int index,
                 bool spreads) {
  Uses uses;
  for (int i : facts.summed_weights(graph, key.op)) {
    const TensorId weight = graph.operators[key.op].operands[i].tensor;
    if (index == kRecomputed && !facts.needed_backward[weight]) continue;
    if (spreads) {
      Use& use = add(uses, R::spread, i, weight);
      use.field = Field::copy;
      use.index = index;
    } else {
      add(uses, R::shard, i, weight);
      add(uses, R::gathered, i, weight).index = index;
    }
  }
  return uses;
}

Uses use_gather(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_gathers(graph, facts, key, 0, false);
}

Uses use_gather_spread(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_gathers(graph, facts, key, 0, true);
}

Uses use_again_gather(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_gathers(graph, facts, key, kRecomputed, false);
}

Uses use_again_spread(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_gathers(graph, facts, key, kRecomputed, true);
}

Uses use_sum(const Graph& graph, const GraphFacts&, const LaunchKey& key) {
  Uses uses;
  for (int i : graph.operators[key.op].outputs()) {
    const TensorId tensor = graph.operators[key.op].operands[i].tensor;
    add(uses, R::partial, i, tensor);
    add(uses, R::summed, i, tensor);
  }
  return uses;
}

// The backward pass has places of its own for what is computed again. What is not, stays where it
// is until then.
void move_to_backward(const GraphFacts& facts, Use& use) {
  static_cast<Place&>(use) = facts.for_backward(use);
}

Uses use_again(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  Uses uses = use_forward(graph, facts, key);
  for (Use& use : uses) move_to_backward(facts, use);
  return uses;
}

Uses use_again_sum(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  Uses uses = use_sum(graph, facts, key);
  for (Use& use : uses) move_to_backward(facts, use);
  return uses;
}

// What the forward pass saved, the gradients of outputs, and contributions to the gradients of what
// the forward pass read.
Uses use_backward(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  Uses uses;
  const auto& operands = graph.operators[key.op].operands;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    const Operand& o = operands[i];
    if (o.saved_for_backward) move_to_backward(facts, add(uses, R::saved, i, o.tensor));
    if (o.role == Role::output && facts.has_gradient[o.tensor]) {
      add(uses, R::output_gradient, i, o.tensor);
    }
    if (facts.contributes(o)) add(uses, R::contribution, i, o.tensor);
  }
  return uses;
}

// What tells an update, and the norm launch before it, how to change the weight that is operand `i`
// of its operator: the weight's gradient. The gradient of a table is written nowhere. In its place
// are, for each operator that looks rows up, its tokens and the gradient of its output.
void add_weight_gradient(const Graph& graph, const GraphFacts& facts, int i, TensorId weight,
                         Uses& uses) {
  const auto lookups = facts.lookups.find(weight);
  if (lookups == facts.lookups.end()) {
    Use& use = add(uses, R::weight_gradient, i, weight);
    if (facts.reduces(weight)) use.field = Field::reduced;
    return;
  }
  for (OpId op : lookups->second) {
    const TensorId output = graph.operators[op].primary_output().tensor;
    if (!facts.has_gradient[output]) continue;
    const TensorId tokens = graph.operators[op].tokens()->tensor;
    // What every micro-batch looked up. Tokens that are constant are the same in each.
    const bool constant = graph.tensors[tokens].kind == TensorKind::weight;
    for (int round = 0; round < graph.micro_batches; ++round) {
      if (round == 0 || !constant) {
        Use& named = add(uses, R::looked_up_tokens, i, tokens);
        named.lookup = op;
        named.buffer = round;
      }
      Use& rows = add(uses, R::looked_up_gradient, i, output);
      rows.lookup = op;
      rows.buffer = round;
    }
  }
}

// Uses in these roles of each weight whose gradient is summed.
Uses use_summed_weights(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                        std::initializer_list<R> roles) {
  Uses uses;
  for (int i : facts.summed_weights(graph, key.op)) {
    for (R role : roles) add(uses, role, i, graph.operators[key.op].operands[i].tensor);
  }
  return uses;
}

Uses use_node_sum(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_summed_weights(graph, facts, key, {R::node_gradient, R::node_sum});
}

Uses use_reduce(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_summed_weights(graph, facts, key, {R::partial_gradient, R::reduced});
}

Uses use_spread(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  return use_summed_weights(graph, facts, key, {R::spread});
}

// A norm launch reads the same gradients as the update after it.
Uses use_norm(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  Uses uses;
  for (int i : facts.owned_weights(graph, key.op)) {
    add_weight_gradient(graph, facts, i, graph.operators[key.op].operands[i].tensor, uses);
  }
  add(uses, R::norm);
  return uses;
}

Uses use_update(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  Uses uses;
  for (int i : facts.owned_weights(graph, key.op)) {
    // For each weight: its gradient, the value, and the optimizer's states; with clipping, the norm
    // of all gradients.
    const TensorId weight = graph.operators[key.op].operands[i].tensor;
    add_weight_gradient(graph, facts, i, weight, uses);
    add(uses, R::updated, i, weight);
    for (int s = 0; s < facts.optimizer.states_of(graph.tensors[weight]); ++s) {
      add(uses, R::optimizer_state, i, weight).index = s;
    }
  }
  if (facts.optimizer.needs_norm) add(uses, R::clipped_by);
  return uses;
}

Uses use_clip(const Graph&, const GraphFacts&, const LaunchKey&) {
  Uses uses;
  add(uses, R::all_norms);
  add(uses, R::total_norm);
  return uses;
}

// The table.

PassRow load_row() {
  PassRow row;
  row.name = "load";
  row.of = Of::input;
  row.wanted = is_loaded;
  row.runs = runs_of_readers;
  row.uses = use_load;
  row.place = place_load;
  row.priced_as = Pass::load;
  // The next batch comes while the present one computes.
  row.ahead = true;
  return row;
}

PassRow forward_row() {
  PassRow row;
  row.name = "forward";
  row.wanted = takes_part;
  row.runs = runs_of_operator;
  row.uses = use_forward;
  row.place = place_operator;
  row.price = Price::of_task;
  row.priced_as = Pass::forward;
  row.answers = is_loss;
  return row;
}

PassRow sum_row() {
  PassRow row;
  row.name = "sum";
  row.wanted = can_have_partial_values;
  row.runs = runs_of_operator;
  row.uses = use_sum;
  row.shares = Shares::outputs;
  row.priced_as = Pass::sum;
  return row;
}

PassRow gather_row() {
  PassRow row;
  row.name = "gather";
  row.wanted = gathers;
  row.runs = runs_of_users;
  row.uses = use_gather;
  row.shares = Shares::weights;
  row.priced_as = Pass::sum;
  return row;
}

// Its tasks compute nothing. They are there so that a shard comes to each node once and goes on
// from there; what that takes are the transfers.
PassRow gather_spread_row() {
  PassRow row;
  row.name = "gather_spread";
  row.wanted = gathers_by_nodes;
  row.runs = runs_of_users;
  row.uses = use_gather_spread;
  row.shares = Shares::nodes;
  row.price = Price::nothing;
  row.priced_as = Pass::spread;
  return row;
}

PassRow again_gather_row() {
  PassRow row = gather_row();
  row.name = "again_gather";
  row.wanted = gathers_again;
  row.runs = training;
  row.uses = use_again_gather;
  return row;
}

PassRow again_spread_row() {
  PassRow row = gather_spread_row();
  row.name = "again_spread";
  row.wanted = gathers_again_by_nodes;
  row.runs = training;
  row.uses = use_again_spread;
  return row;
}

PassRow again_row() {
  PassRow row = forward_row();
  row.name = "again";
  row.wanted = runs_again;
  row.runs = training;
  row.uses = use_again;
  row.follows = {Pass::forward};
  // No loss is run again (check_config), so the host hears nothing of it.
  row.answers = nullptr;
  return row;
}

PassRow again_sum_row() {
  PassRow row = sum_row();
  row.name = "again_sum";
  row.wanted = can_have_partial_values_again;
  row.runs = training;
  row.uses = use_again_sum;
  return row;
}

PassRow backward_row() {
  PassRow row;
  row.name = "backward";
  row.wanted = runs_backward;
  row.runs = training;
  row.uses = use_backward;
  row.place = place_operator;
  // The first of these that the operator has: if it is run again, backward reads what that left.
  row.follows = {Pass::again, Pass::forward};
  row.price = Price::of_task;
  row.priced_as = Pass::backward;
  return row;
}

PassRow norm_row() {
  PassRow row;
  row.name = "norm";
  row.wanted = has_norms;
  row.runs = training;
  row.uses = use_norm;
  row.shares = Shares::weights;
  row.closing = true;
  return row;
}

PassRow clip_row() {
  PassRow row;
  row.name = "clip";
  row.of = Of::iteration;
  row.wanted = has_norms;
  row.runs = training;
  row.uses = use_clip;
  row.place = place_clip;
  row.closing = true;
  row.answers = finds_overflows;
  return row;
}

// The row's defaults price an update by the bytes that it touches; norm and clip have its rate.
PassRow update_row() {
  PassRow row;
  row.name = "update";
  row.wanted = owns_weights;
  row.runs = training;
  row.uses = use_update;
  row.shares = Shares::weights;
  row.closing = true;
  return row;
}

PassRow node_sum_row() {
  PassRow row;
  row.name = "node_sum";
  row.wanted = sums_inside_nodes;
  row.runs = training;
  row.uses = use_node_sum;
  row.shares = Shares::nodes;
  row.priced_as = Pass::sum;
  row.closing = true;
  return row;
}

// A node sum in every micro-batch, with the reduce launch after it: it does not end the iteration.
PassRow node_reduce_row() {
  PassRow row = node_sum_row();
  row.name = "node_reduce";
  row.wanted = reduces_inside_nodes;
  row.closing = false;
  return row;
}

PassRow reduce_row() {
  PassRow row;
  row.name = "reduce";
  row.wanted = reduces;
  row.runs = training;
  row.uses = use_reduce;
  row.shares = Shares::weights;
  row.priced_as = Pass::sum;
  return row;
}

// As gather_spread, but for the next iteration: it brings what was updated to the other nodes.
PassRow spread_row() {
  PassRow row;
  row.name = "spread";
  row.wanted = sums_inside_nodes;
  row.runs = training;
  row.uses = use_spread;
  row.shares = Shares::nodes;
  row.price = Price::nothing;
  row.priced_as = Pass::spread;
  row.closing = true;
  return row;
}

std::vector<PassRow> make_rows() {
  // In the order of the enumerators, by which row_of() finds a row.
  std::vector<PassRow> rows = {
      load_row(),         gather_row(),       gather_spread_row(), forward_row(),   sum_row(),
      again_gather_row(), again_spread_row(), again_row(),         again_sum_row(), backward_row(),
      node_reduce_row(),  reduce_row(),       node_sum_row(),      norm_row(),      clip_row(),
      update_row(),       spread_row(),
  };
  for (std::size_t p = 0; p < rows.size(); ++p) {
    PassRow& row = rows[p];
    row.pass = static_cast<Pass>(p);
    // How tasks are placed follows from what they share, unless the row says it itself.
    if (row.shares == Shares::outputs) row.place = place_sum;
    if (row.shares == Shares::weights) row.place = place_update;
    if (row.shares == Shares::nodes) row.place = place_in_nodes;
  }
  return rows;
}

}  // namespace

// A sum shares out its operator's outputs; all others share out the weights that the operator owns.
std::vector<int> shared_operands(const Graph& graph, const GraphFacts& facts, OpId op,
                                 Shares shares) {
  return shares == Shares::outputs ? graph.operators[op].outputs() : facts.owned_weights(graph, op);
}

// An update of a table's shard reads all tokens, and the gradient's columns that belong to the
// shard.
Rect touched_for_shard(const Graph& graph, const Use& use, const Rect& shard) {
  if (use.role == R::looked_up_gradient) return looked_up_gradient(graph, use.lookup, shard);
  if (use.role != R::looked_up_tokens) return shard;
  Rect tokens = looked_up_tokens(graph, use.lookup);
  if (shard.empty()) tokens.hi = tokens.lo;
  return tokens;
}

// The parts of a linear input share out the terms of a sum. The gradient of every term is that of
// the sum, so backward one part contributes it for all.
bool by_first_part_alone(const Graph& graph, const GraphFacts& facts, const LaunchKey& key,
                         const Use& use) {
  const Operator& op = graph.operators[key.op];
  if (key.pass != Pass::backward || op.part() < 0) return false;
  return facts.first_part_alone(op) ||
         (use.role == R::contribution && of_first_part_alone(op, op.operands[use.operand]));
}

const std::vector<PassRow>& all_passes() {
  static const std::vector<PassRow> rows = make_rows();
  return rows;
}

// The first pass in the row's list of which the graph wants a launch of that operator.
std::optional<Pass> followed_by(const Graph& graph, const GraphFacts& facts, const LaunchKey& key) {
  for (Pass pass : row_of(key.pass).follows) {
    LaunchKey before = key;
    before.pass = pass;
    if (row_of(pass).wanted(graph, facts, before)) return pass;
  }
  return {};
}

const PassRow& row_of(Pass pass) { return all_passes()[static_cast<std::size_t>(pass)]; }

}  // namespace flexlegion
