#include "sim/launch_graph.h"

#include <algorithm>
#include <map>

#include "plan/schedule.h"

namespace flexlegion {

namespace {

template <typename Number>
std::vector<Number> in_order(std::vector<Number> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

}  // namespace

LaunchGraph::LaunchGraph(const Problem& problem) {
  find_launches(problem);
  find_uses(problem);
  for (TensorId t : problem.graph.tensors.ids()) find_tensor_flows(problem, t);
  find_weight_flows(problem);
  find_iteration_flows();
  group_flows(problem);
}

void LaunchGraph::find_launches(const Problem& problem) {
  const Graph& graph = problem.graph;
  const GraphFacts& facts = problem.facts;
  for (auto& of_pass : numbers) of_pass.assign(graph.operators.size(), -1);
  load_of.assign(graph.tensors.size(), -1);
  launches_of_op.resize(graph.operators.size());
  closing.resize(graph.operators.size());
  load_sources.resize(graph.tensors.size());
  for (const LaunchKey& key : issue_order(graph, facts)) {
    const bool load = row_of(key.pass).of == Of::input;
    if (load) load_sources[key.tensor] = load_source(graph, facts, key.tensor);
    if (!(runs_of(graph, facts, key) & kTrains)) continue;
    const int launch = static_cast<int>(launches.size());
    (load ? load_of[key.tensor] : numbers[static_cast<int>(key.pass)][key.op]) = launch;
    launches.push_back(key);
    const PassRow& row = row_of(key.pass);
    if (row.closing && row.of == Of::op) closing[key.op].push_back(launch);
    deciding_.push_back(decides(graph, facts, key));
    launches_of_op[deciding_.back()].push_back(launch);
  }
  follower_of.assign(launches.size(), -1);
  for (int l = 0; l < static_cast<int>(launches.size()); ++l) {
    const auto followed = row_of(launches[l].pass).follows;
    if (followed) follower_of[launch_of(*followed, launches[l].op)] = l;
  }
  out_flows.resize(launches.size());
  in_flows.resize(launches.size());
  feeding.resize(launches.size());
  flows_of_op.resize(graph.operators.size());
}

// Who writes and who reads each field of each tensor, as the launches themselves say; and who does
// in prediction or evaluation alone, which has no launch here.
void LaunchGraph::find_uses(const Problem& problem) {
  const Graph& graph = problem.graph;
  producers.resize(graph.tensors.size());
  readers.resize(graph.tensors.size());
  other_readers.resize(graph.tensors.size());
  lookups_of.resize(graph.tensors.size());
  const auto add = [](std::vector<int>& to, int launch) {
    if (to.empty() || to.back() != launch) to.push_back(launch);
  };
  for (int l = 0; l < static_cast<int>(launches.size()); ++l) {
    const auto [pass, op, loaded, field, round] = launches[l];
    for (const Use& use : uses_of(graph, problem.facts, launches[l])) {
      Users& users = users_[{use.tensor, use.field}];
      if (use.privilege != Privilege::read) add(users.writers, l);
      if (use.privilege != Privilege::write) add(users.readers, l);
      if (use.role == RequirementRole::output) {
        producers[use.tensor] = {op, use.operand};
      } else if (pass == Pass::forward) {
        readers[use.tensor].push_back({op, use.operand});
      } else if (use.role == RequirementRole::looked_up_tokens) {
        std::vector<OpId>& ops = lookups_of[use.tensor];
        if (std::find(ops.begin(), ops.end(), use.lookup) == ops.end()) ops.push_back(use.lookup);
      }
    }
  }
  for (const LaunchKey& key : issue_order(graph, problem.facts)) {
    if (key.pass != Pass::forward || launch_of(key.pass, key.op) >= 0) continue;
    for (const Use& use : uses_of(graph, problem.facts, key)) {
      if (use.role == RequirementRole::output) {
        producers[use.tensor] = {key.op, use.operand};
      } else {
        other_readers[use.tensor].push_back({key.op, use.operand});
      }
    }
  }
}

// The operators whose configurations decide what tasks these launches have.
std::vector<OpId> LaunchGraph::deciding(std::initializer_list<const std::vector<int>*> of) const {
  std::vector<OpId> ops;
  for (const std::vector<int>* some : of) {
    for (int launch : *some) ops.push_back(deciding_[launch]);
  }
  return in_order(std::move(ops));
}

// Who has read a tensor forward finds it in its memory backward, and the update finds there what
// launches before it read of the same gradients. Not so with partial values. Its producer wrote one
// of these, or none of the value; and whoever reads them combines them for itself, forward and
// again backward.
void LaunchGraph::find_tensor_flows(const Problem& problem, TensorId t) {
  const Users &value = users_[{t, Field::value}], &gradient = users_[{t, Field::gradient}],
              &partial = users_[{t, Field::partial}];
  std::vector<OpId> ops = deciding({&value.writers, &value.readers});
  for (const OperandRef& use : other_readers[t]) ops.push_back(use.op);
  for (OpId op : {producers[t].op, load_sources[t].first_reader}) {
    if (!op.none()) ops.push_back(op);
  }
  ops = in_order(std::move(ops));
  // What no other operator reads takes memory, too: what an operator saves for its own backward
  // pass, say.
  const bool weight = problem.graph.tensors[t].kind == TensorKind::weight;
  if (weight ? problem.facts.owner[t].none() : value.writers.empty() && !ops.empty()) {
    add_flow({FlowKind::kept, {}, t}, {}, {}, {}, ops);
  }
  if (weight || value.writers.empty()) return;
  const bool combined = !partial.readers.empty();
  std::vector<int> to, fed;
  for (int reader : value.readers) {
    const auto [pass, op, loaded, field, round] = launches[reader];
    if (row_of(pass).closing && first_reader(op) != reader) continue;
    if (combined) fed.push_back(reader);
    if (pass != Pass::backward || (combined && op == producers[t].op)) to.push_back(reader);
  }
  add_flow({FlowKind::value, {}, t}, value.writers, to, fed, ops);
  if (combined) {
    add_flow({FlowKind::partial, {}, t}, {value.writers.front()}, partial.readers, {},
             {producers[t].op});
  }
  if (gradient.writers.empty()) return;
  // What was looked up in a table has its gradient in the flow of weights.
  const std::vector<int>& of = gradient.readers;
  if (!of.empty() && launches[of.front()].pass != Pass::backward) return;
  add_flow({FlowKind::gradient, {}, t}, gradient.writers, of, of,
           deciding({&gradient.writers, &of}));
}

// The weights that an operator updates share a flow, with all gradients that the update reads.
void LaunchGraph::find_weight_flows(const Problem& problem) {
  for (int update = 0; update < static_cast<int>(launches.size()); ++update) {
    const auto [pass, op, loaded, field, round] = launches[update];
    if (op.none() || closing[op].empty() || closing[op].back() != update) continue;
    std::vector<int> writers, ends;
    std::vector<OpId> ops;
    const auto append = [](auto& to, const auto& more) {
      to.insert(to.end(), more.begin(), more.end());
    };
    for (const Use& use : uses_of(problem.graph, problem.facts, launches[update])) {
      const Users& users = users_[{use.tensor, use.field}];
      if (use.field == Field::gradient) append(writers, users.writers);
      if (use.role != RequirementRole::updated) continue;
      append(ends, users.readers);
      for (const OperandRef& reader : other_readers[use.tensor]) ops.push_back(reader.op);
    }
    append(ends, writers);
    append(ops, deciding({&ends}));
    writers = in_order(std::move(writers));
    writers.push_back(update);
    add_flow({FlowKind::weights, op}, writers, {first_reader(op)}, closing[op],
             in_order(std::move(ops)));
  }
}

void LaunchGraph::find_iteration_flows() {
  for (const auto& [place, users] : users_) {
    if (!of_iteration(place.second)) continue;
    FlowId id{FlowKind::iteration};
    id.field = place.second;
    std::vector<int> fed;  // the time of an operator's launches depends on other flows
    for (int reader : users.readers) {
      if (row_of(launches[reader].pass).of == Of::iteration) fed.push_back(reader);
    }
    add_flow(id, users.writers, users.readers, fed, deciding({&users.writers, &users.readers}));
  }
}

void LaunchGraph::add_flow(FlowId id, const std::vector<int>& writers, const std::vector<int>& to,
                           const std::vector<int>& fed, const std::vector<OpId>& ops) {
  const int flow = static_cast<int>(flows.size());
  id.parties = writers;
  id.writers = static_cast<int>(writers.size());
  id.fed = fed;
  for (int slot = 0; slot < id.writers; ++slot) out_flows[writers[slot]].push_back({flow, slot});
  for (int reader : to) {
    const auto at = std::find(id.parties.begin(), id.parties.end(), reader);
    const int party = static_cast<int>(at - id.parties.begin());
    if (at == id.parties.end()) id.parties.push_back(reader);
    in_flows[reader].push_back({flow, party});
  }
  for (int launch : fed) feeding[launch].push_back(flow);
  for (OpId decisive : ops) {
    auto& mine = flows_of_op[decisive];
    if (!mine.empty() && mine.back() == flow) continue;
    mine.push_back(flow);
    id.ops.push_back(decisive);
  }
  flows.push_back(std::move(id));
}

// Two flows are of one group if their operators are of the same classes in the same order and use
// the flow's tensor through the same operands.
void LaunchGraph::group_flows(const Problem& problem) {
  std::map<std::vector<int>, int> groups;
  for (FlowId& id : flows) {
    std::vector<int> key = {static_cast<int>(id.kind), id.writers, static_cast<int>(id.fed.size())};
    const bool of_tensor =
        id.kind == FlowKind::value || id.kind == FlowKind::partial || id.kind == FlowKind::gradient;
    if (!of_tensor) key.push_back(-1 - number_of(id));  // one of a kind
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
    group_sizes.resize(groups.size(), 0);
    ++group_sizes[id.group];
  }
}

}  // namespace flexlegion
