// How flows follow from the graph:
//
// 1. The launches of a training iteration, in the order of issue; and those of other runs, which
//    hold memory, but wait for nobody here.
// 2. Of each place, who uses it, as each launch says it (uses_of), and how the tasks come by it:
//    they write it, wait for who wrote it, find it in memory, or get it for the next iteration.
// 3. Places whose data travel together make a flow. Its parties are the launches that write, or
//    wait.
#include "sim/launch_graph.h"

#include <algorithm>
#include <map>

#include "plan/launches.h"
#include "plan/schedule.h"

namespace flexlegion {

namespace {

using R = RequirementRole;

// Sorted, each once.
template <typename Number>
std::vector<Number> in_order(std::vector<Number> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

bool writes(const Use& use) { return use.privilege != Privilege::read; }
bool spreads(const Use& use) { return use.role == R::spread; }

}  // namespace

// Built once a problem: a search changes configurations, and none of this depends on them.
LaunchGraph::LaunchGraph(const Problem& problem) {
  find_launches(problem);
  registers_ = registers_of(problem.graph, problem.facts);
  for (const auto& [place, its] : registers_) {
    registers = std::max({registers, its.alike + 1, its.local + 1});
  }
  find_uses(problem);
  for (TensorId t : problem.graph.tensors.ids()) find_tensor_flows(problem, t);
  find_weight_flows(problem);
  find_iteration_flows();
  find_turns();
  // Last, when the parties and operators of all flows are known.
  group_flows(problem);
}

// Numbers launches in the order of issue. Of each pass and operator there is one at most, so a
// table finds it.
void LaunchGraph::find_launches(const Problem& problem) {
  const Graph& graph = problem.graph;
  const GraphFacts& facts = problem.facts;
  for (auto& of_pass : numbers) of_pass.assign(graph.operators.size(), -1);
  load_of.assign(graph.tensors.size(), -1);
  launches_of_op.resize(graph.operators.size());
  std::vector<OpId> deciding_on_others;
  for (const LaunchKey& key : issue_order(graph, facts)) {
    if (!(runs_of(graph, facts, key) & kTrains)) {
      others.push_back(key);
      deciding_on_others.push_back(decides(graph, facts, key));
      continue;
    }
    const int launch = static_cast<int>(launches.size());
    const bool load = row_of(key.pass).of == Of::input;
    (load ? load_of[key.tensor] : numbers[static_cast<int>(key.pass)][key.op]) = launch;
    launches.push_back(key);
    deciding_.push_back(decides(graph, facts, key));
    launches_of_op[deciding_.back()].push_back(launch);
  }
  // Launches of other runs are numbered after those of training.
  deciding_.insert(deciding_.end(), deciding_on_others.begin(), deciding_on_others.end());
  follower_of.assign(launches.size(), -1);
  followed_by.assign(launches.size(), -1);
  for (int l = 0; l < static_cast<int>(launches.size()); ++l) {
    const auto followed = flexlegion::followed_by(graph, facts, launches[l]);
    if (!followed) continue;
    followed_by[l] = launch_of(*followed, launches[l].op);
    follower_of[followed_by[l]] = l;
  }
  out_flows.resize(launches.size());
  in_flows.resize(launches.size());
  feeding.resize(launches.size());
  tenants.resize(launches.size());
  flows_of_op.resize(graph.operators.size());
}

// Who uses each place, as the launches themselves say. Whether a tensor has partial values is the
// strategy's to decide: what computes its value is here among the uses of both places. So it is
// with the sums of nodes, which an update reads in place of all partial gradients.
void LaunchGraph::find_uses(const Problem& problem) {
  const Graph& graph = problem.graph;
  producers.resize(graph.tensors.size());
  std::vector<std::vector<Use>> of_launch;
  for (int l = 0; l < static_cast<int>(launches.size() + others.size()); ++l) {
    const LaunchKey& key = key_of(l);
    of_launch.push_back(uses_of(graph, problem.facts, key));
    for (const Use& use : of_launch.back()) {
      if (use.buffer > 0) continue;  // as the first micro-batch's
      uses_[use].push_back({use, l});
      if (use.sums_gradient()) {
        Place sums = use;
        sums.field = Field::node_sums;
        uses_[sums].push_back({use, l});
      }
      if (use.role != R::output) continue;
      producers[use.tensor] = {key.op, use.operand};
      if (graph.operators[key.op].reductions.empty()) continue;
      Place partial = use;
      partial.field = Field::partial;
      uses_[partial].push_back({use, l});
    }
  }
  for (auto& [place, uses] : uses_) {
    for (FlowUse& use : uses) use.comes = comes_by(use, use.launch, of_launch);
  }
}

// A launch finds in memory what the one that it follows has touched; and of launches that share out
// the same weights, the first alone waits for what all of them read. For everything else the order
// of issue decides. What a launch before has written is waited for. If only later launches write
// the place, what is read is of the iteration before, as a weight's value is in the forward pass.
Comes LaunchGraph::comes_by(const Use& use, int launch,
                            const std::vector<std::vector<Use>>& of_launch) const {
  if (launch >= static_cast<int>(launches.size())) return Comes::held;
  if (writes(use)) return Comes::writes;
  if (spreads(use)) return Comes::spreads;
  const LaunchKey& key = launches[launch];
  const PassRow& row = row_of(key.pass);
  const auto used_by = [&](int before) -> const Use* {
    for (const Use& other : of_launch[static_cast<std::size_t>(before)]) {
      const bool same = other.operand == use.operand && other.lookup == use.lookup;
      if (same && static_cast<const Place&>(other) == use) return &other;
    }
    return nullptr;
  };
  if (followed_by[launch] >= 0) {
    if (const Use* before = used_by(followed_by[launch])) {
      // Its own output: as it wrote it, it has it, unless it wrote partial values and the value is
      // summed elsewhere.
      return before->privilege == Privilege::write ? Comes::found_unless_partial : Comes::found;
    }
  }
  if (row.shares == Shares::weights) {
    for (int alike : launches_sharing(key.op, {Shares::weights})) {
      const Use* before = alike < launch ? used_by(alike) : nullptr;
      if (before != nullptr && !writes(*before)) return Comes::found;
    }
  }
  Comes comes = Comes::held;
  for (const FlowUse& other : uses_.at(use)) {
    if (!writes(other) || other.launch >= static_cast<int>(launches.size())) continue;
    comes = other.launch < launch ? Comes::waits : comes == Comes::held ? Comes::next : comes;
  }
  return comes;
}

// The launches whose tasks share out the weights that an operator updates, in one of these ways; in
// the order of issue.
std::vector<int> LaunchGraph::launches_sharing(OpId op, std::initializer_list<Shares> which) const {
  std::vector<int> its;
  for (const PassRow& row : all_passes()) {
    const int launch = row.of == Of::op ? launch_of(row.pass, op) : -1;
    const bool shares = std::find(which.begin(), which.end(), row.shares) != which.end();
    if (shares && launch >= 0) its.push_back(launch);
  }
  return in_order(std::move(its));
}

// The uses of a place in the order in which FlowRules carries it: those that write, those that
// spread, the others; each in the order of issue, which a stable partition keeps.
PlaceUses LaunchGraph::uses_at(const Place& place) const {
  PlaceUses its{place, {}};
  const auto found = uses_.find(place);
  if (found == uses_.end()) return its;
  its.uses = found->second;
  const auto others = std::stable_partition(its.uses.begin(), its.uses.end(), writes);
  std::stable_partition(others, its.uses.end(), spreads);
  return its;
}

// Whether some strategy lets sum tasks of training combine the partial values. Which strategy is
// held is not known here.
bool LaunchGraph::is_summed(const Place& place) const {
  const OpId op = producers[place.tensor].op;
  const Pass sum = place.index == kRecomputed ? Pass::again_sum : Pass::sum;
  return !op.none() && launch_of(sum, op) >= 0;
}

// The flows of one tensor: its value, its gradient, and, of a weight that is sharded, what is
// gathered and reduced. A weight that is trained travels in its owner's flow (find_weight_flows).
void LaunchGraph::find_tensor_flows(const Problem& problem, TensorId t) {
  const int trained = static_cast<int>(launches.size());
  const auto written = [&](const PlaceUses& its) {
    return !its.uses.empty() && writes(its.uses.front()) && its.uses.front().launch < trained;
  };
  PlaceUses value = uses_at({t, Field::value}), partial = uses_at({t, Field::partial});
  PlaceUses gradient = uses_at({t, Field::gradient});
  const bool weight = problem.graph.tensors[t].kind == TensorKind::weight;
  if (weight && problem.facts.reduces(t)) find_shard_flows(problem, t);
  // What no other operator reads takes memory, too: what an operator saves for its own backward
  // pass, say.
  const bool kept = weight ? problem.facts.owner[t].none() : !written(value);
  if (kept && !value.uses.empty()) {
    for (PlaceUses* its : {&value, &partial}) {
      for (FlowUse& use : its->uses) {
        if (use.comes != Comes::writes) use.comes = Comes::held;
      }
    }
    FlowId id{FlowKind::kept, {}, t};
    id.places = {value, partial};
    add_flow(std::move(id));
  }
  if (weight || !written(value)) return;
  add_value_flows(std::move(value), std::move(partial));
  if (problem.facts.recomputed[t]) {
    add_value_flows(uses_at({t, Field::value, kRecomputed}),
                    uses_at({t, Field::partial, kRecomputed}));
  }
  if (!written(gradient)) return;
  add_gradient_flow(std::move(gradient), false);
}

// Gradients go the way back, and their reader sums the partial ones: it is fed.
void LaunchGraph::add_gradient_flow(PlaceUses gradient, bool takes_turns) {
  FlowId back{FlowKind::gradient, {}, gradient.place.tensor};
  back.takes_turns = takes_turns;
  for (const FlowUse& use : gradient.uses) {
    if (!writes(use)) back.fed.push_back(use.launch);
  }
  // What was looked up in a table has its gradient in the flow of weights.
  if (!back.fed.empty() && row_of(launches[back.fed.front()].pass).closing) return;
  back.places = {std::move(gradient)};
  add_flow(std::move(back));
}

// What is gathered of a weight is like a value that the gather launch computes, and its gradient is
// summed like one of an activation, be it by way of nodes' sums. The shards themselves are in the
// flow of the weights that the operator updates.
void LaunchGraph::find_shard_flows(const Problem& problem, TensorId t) {
  for (int index : {0, kRecomputed}) {
    PlaceUses copy = uses_at({t, Field::copy, index});
    if (!copy.uses.empty()) add_value_flows(std::move(copy), {});
  }
  add_gradient_flow(uses_at({t, Field::gradient}), true);
  if (problem.graph.has_several_nodes()) add_gradient_flow(uses_at({t, Field::node_sums}), true);
}

// A value goes to who reads it. Where a reduction can be split, there are two flows: partial values
// to who sums them, and the value, or partial values, to who reads it.
void LaunchGraph::add_value_flows(PlaceUses value, PlaceUses partial) {
  const bool summed = is_summed(value.place);
  FlowId id{FlowKind::value, {}, value.place.tensor};
  id.takes_turns = value.place.field == Field::copy || value.place.index == kRecomputed;
  id.places = {std::move(value)};
  for (const FlowUse& use : id.places.front().uses) {
    const bool reads = use.launch < static_cast<int>(launches.size()) && !writes(use);
    // Who reads partial values combines them for itself, forward and again backward.
    if (summed && reads && row_of(launches[use.launch].pass).price == Price::of_task) {
      id.fed.push_back(use.launch);
    }
  }
  add_flow(std::move(id));
  if (!summed) return;
  FlowId summing{FlowKind::partial, {}, partial.place.tensor};
  summing.takes_turns = partial.place.index == kRecomputed;
  summing.places = {std::move(partial)};
  add_flow(std::move(summing));
}

// A flow of turns for each register where somebody has to wait until it is free: what is computed
// again, gathered or contributed could be there long before (FlowId::takes_turns). The other
// tenants of a register need no such wait, since they come after the tenants before them anyway.
void LaunchGraph::find_turns() {
  const auto waits = [this](int f) { return flows[f].takes_turns; };
  const auto begins = [this](int f) { return flows[f].places.front().uses.front().launch; };
  for (const bool local : {false, true}) {
    std::map<int, std::vector<int>> tenants_of;  // a register: flows
    for (int f = 0; f < static_cast<int>(flows.size()); ++f) {
      const int number = local ? flows[f].registers.local : flows[f].registers.alike;
      if (number >= 0) tenants_of[number].push_back(f);
    }
    for (auto& [number, tenants] : tenants_of) {
      if (tenants.size() < 2 || std::none_of(tenants.begin(), tenants.end(), waits)) continue;
      std::sort(tenants.begin(), tenants.end(),
                [&](int a, int b) { return begins(a) < begins(b); });
      FlowId id{FlowKind::turns};
      id.register_number = number;
      id.local = local;
      id.tenants = tenants;
      add_flow(std::move(id));
    }
  }
}

// The weights that an operator updates share a flow, with all gradients that the update reads.
void LaunchGraph::find_weight_flows(const Problem& problem) {
  for (int update = 0; update < static_cast<int>(launches.size()); ++update) {
    const auto [pass, op, loaded, field] = launches[update];
    if (pass != Pass::update) continue;
    FlowId id{FlowKind::weights, op};
    for (const Use& use : uses_of(problem.graph, problem.facts, launches[update])) {
      if (use.buffer > 0) continue;
      const bool travels =
          use.field == Field::gradient || use.field == Field::reduced || writes(use);
      if (travels) id.places.push_back(uses_at(use));
      if (!use.sums_gradient()) continue;
      Place sums = use;
      sums.field = Field::node_sums;
      id.places.push_back(uses_at(sums));
    }
    for (int launch : launches_sharing(op, {Shares::weights, Shares::nodes})) {
      const PassRow& row = row_of(launches[launch].pass);
      // Updates, norms and nodes' sums take as long as what the flow brings them says.
      if (row.closing && row.price == Price::of_bytes) id.fed.push_back(launch);
    }
    add_flow(std::move(id));
  }
}

// One flow for each field of the iteration. The iteration's own launch takes as long as all that it
// reads of the field; what else reads it, as updates read the norm, is charged for other things.
void LaunchGraph::find_iteration_flows() {
  for (const auto& [place, uses] : uses_) {
    if (!of_iteration(place.field)) continue;
    FlowId id{FlowKind::iteration};
    id.field = place.field;
    id.places = {uses_at(place)};
    for (const FlowUse& use : uses) {
      const bool reads = !writes(use);
      if (reads && row_of(launches[use.launch].pass).of == Of::iteration) {
        id.fed.push_back(use.launch);
      }
    }
    add_flow(std::move(id));
  }
}

// Completes a flow: its parties, and what its places and their uses decide. Parties that write come
// first, in the order of issue; then those that only wait. Tasks are named by the places of their
// launches in this list (TaskRef), so that flows between other launches can be equal.
void LaunchGraph::add_flow(FlowId id) {
  const int flow = static_cast<int>(flows.size());
  const bool kept = id.kind == FlowKind::kept;
  std::vector<int> writers, waiting;
  std::vector<OpId> ops;
  for (const PlaceUses& its : id.places) {
    for (const FlowUse& use : its.uses) {
      ops.push_back(deciding_[use.launch]);
      if (kept) continue;
      const bool partial_alone = use.comes == Comes::found_unless_partial &&
                                 id.kind == FlowKind::value && is_summed(its.place);
      const bool spreads = use.comes == Comes::spreads;
      if (use.comes == Comes::writes || spreads) writers.push_back(use.launch);
      if (use.comes == Comes::waits || spreads || partial_alone) waiting.push_back(use.launch);
    }
  }
  // Who used a value before hands its register on, and who writes the next one waits. What training
  // does not run only decides on who shares the register.
  for (int tenant : id.tenants) {
    for (const FlowUse& use : flows[tenant].places.front().uses) {
      ops.push_back(deciding_[use.launch]);
      if (use.launch >= static_cast<int>(launches.size())) continue;
      writers.push_back(use.launch);
      if (use.comes == Comes::writes) waiting.push_back(use.launch);
    }
  }
  id.fed = in_order(std::move(id.fed));
  id.ops = in_order(std::move(ops));
  id.parties = in_order(std::move(writers));
  id.writers = static_cast<int>(id.parties.size());
  id.waits.assign(id.parties.size(), 0);
  for (int slot = 0; slot < id.writers; ++slot) out_flows[id.parties[slot]].push_back({flow, slot});
  const auto party_of = [&id](int launch) {
    const auto at = std::find(id.parties.begin(), id.parties.end(), launch);
    return at == id.parties.end() ? -1 : static_cast<int>(at - id.parties.begin());
  };
  // A launch may be both: those that spread a weight wait for its update, and others wait for them.
  // It is one party then.
  for (int reader : in_order(std::move(waiting))) {
    if (party_of(reader) < 0) {
      id.parties.push_back(reader);
      id.waits.push_back(0);
    }
    const int party = party_of(reader);
    id.waits[party] = 1;
    in_flows[reader].push_back({flow, party});
  }
  for (PlaceUses& its : id.places) {
    for (FlowUse& use : its.uses) {
      use.party = kept ? -1 : party_of(use.launch);
      id.of_each_round = id.of_each_round || !use.lookup.none();
    }
  }
  id.in_rounds = std::none_of(id.parties.begin(), id.parties.end(), [this](int launch) {
    return row_of(launches[static_cast<std::size_t>(launch)].pass).closing;
  });
  for (int launch : id.fed) feeding[launch].push_back(flow);
  const auto its =
      id.places.size() == 1 ? registers_.find(id.places.front().place) : registers_.end();
  if (its != registers_.end()) {
    id.registers = its->second;
    const auto& uses = id.places.front().uses;
    for (int u = 0; u < static_cast<int>(uses.size()); ++u) {
      const auto launch = static_cast<std::size_t>(uses[static_cast<std::size_t>(u)].launch);
      if (launch < launches.size()) tenants[launch].push_back({flow, u});
    }
  }
  for (OpId op : id.ops) flows_of_op[op].push_back(flow);
  flows.push_back(std::move(id));
}

// Uses come in the order of issue, so a follower is found after whom it follows.
std::vector<int> LaunchGraph::last_uses(const FlowId& id) const {
  std::vector<int> last_use(id.parties.begin(), id.parties.end());
  for (const FlowUse& use : id.places.front().uses) {
    const bool trained = use.launch >= 0 && use.launch < static_cast<int>(launches.size());
    if (!trained || (use.comes != Comes::found && use.comes != Comes::found_unless_partial)) {
      continue;
    }
    for (int& its : last_use) {
      if (follower_of[its] == use.launch) its = use.launch;
    }
  }
  return last_use;
}

// Two flows are of one group if their operators are of the same classes in the same order and use
// the flow's tensor through the same operands. Within a group, equal configurations have to give
// equal flows, since FlowRules builds one for all. So the key has whatever else decides on a flow;
// but for who sums the shards of outputs, of which only some configurations have any (key_of).
void LaunchGraph::group_flows(const Problem& problem) {
  std::map<std::vector<int>, int> groups;
  for (FlowId& id : flows) {
    std::vector<int> key = {static_cast<int>(id.kind), id.writers, static_cast<int>(id.fed.size())};
    // Flows of weights and of the iteration are one of a kind: they have several tensors, or none,
    // and which devices have shards goes by the operator.
    const bool of_weight =
        !id.tensor.none() && problem.graph.tensors[id.tensor].kind == TensorKind::weight;
    const bool of_tensor =
        !of_weight && (id.kind == FlowKind::value || id.kind == FlowKind::partial ||
                       id.kind == FlowKind::gradient);
    if (!of_tensor) key.push_back(-1 - number_of(id));  // one of a kind
    key.push_back((id.registers.alike >= 0 ? 1 : 0) + (id.registers.local >= 0 ? 2 : 0));
    for (int party : id.parties) key.push_back(static_cast<int>(launches[party].pass));
    for (OpId op : id.ops) {
      key.push_back(-2);
      key.push_back(problem.costs.class_of[op].value);
      key.push_back(problem.facts.runs[op] & kTrains ? 1 : 0);
      const auto& operands = problem.graph.operators[op].operands;
      for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
        if (operands[i].tensor == id.tensor) key.push_back(i);
      }
    }
    id.group = groups.try_emplace(key, static_cast<int>(groups.size())).first->second;
  }
}

}  // namespace flexlegion
