#include "sim/launch_graph.h"

#include <algorithm>
#include <map>

namespace flexlegion {

LaunchGraph::LaunchGraph(const Problem& problem) {
  find_uses(problem);
  find_launches(problem);
  find_flows(problem);
  find_clipping(problem);
  group_flows(problem);
}

// Who writes and who reads each tensor in training.
void LaunchGraph::find_uses(const Problem& problem) {
  const Graph& graph = problem.graph;
  producers.assign(graph.tensors.size(), {-1, -1});
  readers.resize(graph.tensors.size());
  for (int op = 0; op < static_cast<int>(graph.operators.size()); ++op) {
    if (!(problem.facts.runs[op] & kTrains)) continue;
    const auto& operands = graph.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      if (operands[i].role == Role::output) {
        producers[operands[i].tensor] = {op, i};
      } else {
        readers[operands[i].tensor].push_back({op, i});
      }
    }
  }
  lookups_of.resize(graph.tensors.size());
  for (const auto& [table, ops] : problem.facts.lookups) {
    for (int op : ops) lookups_of[graph.operators[op].tokens()->tensor].push_back(op);
  }
}

void LaunchGraph::find_launches(const Problem& problem) {
  const Graph& graph = problem.graph;
  const GraphFacts& facts = problem.facts;
  for (auto& of_pass : numbers) {
    of_pass.assign(std::max(graph.operators.size(), graph.tensors.size()), -1);
  }
  launches_of_op.resize(graph.operators.size());
  load_sources.resize(graph.tensors.size());
  for (const LaunchId& id : facts.launches) {
    // Only what training executes is simulated.
    const bool forward = id.pass == Pass::forward || id.pass == Pass::sum;
    if (forward && !(facts.runs[id.index] & kTrains)) continue;
    if (id.pass == Pass::load) {
      if (readers[id.index].empty()) continue;
      load_sources[id.index] = load_source(graph, facts, id.index);
    }
    const int launch = static_cast<int>(launches.size());
    numbers[static_cast<int>(id.pass)][id.index] = launch;
    launches.push_back(id);
    const int op = id.pass == Pass::load ? load_sources[id.index].first_reader : id.index;
    launches_of_op[op].push_back(launch);
  }
  backward_of.assign(launches.size(), -1);
  for (int op = 0; op < static_cast<int>(graph.operators.size()); ++op) {
    const int forward = launch_of(Pass::forward, op);
    if (forward >= 0) backward_of[forward] = launch_of(Pass::backward, op);
  }
}

// First the flows of tensors, in their order, then those of weights, in the order of updates. For
// each, the launches at its ends are looked up among the tensor's uses, and the operators whose
// configurations decide what it carries are noted: of its ends, and of the launches that share
// memory with them.
void LaunchGraph::find_flows(const Problem& problem) {
  const Graph& graph = problem.graph;
  const GraphFacts& facts = problem.facts;
  out_flows.resize(launches.size());
  in_flows.resize(launches.size());
  feeding.resize(launches.size());
  flows_of_op.resize(graph.operators.size());
  const auto readers_of = [this](int tensor) {
    std::vector<int> ops;
    for (const OperandRef& use : readers[tensor]) ops.push_back(use.op);
    return ops;
  };
  // The launches that contribute to a tensor's gradient, in the order of issue.
  const auto contributors = [&](int tensor) {
    std::vector<int> result;
    if (!facts.differentiable[tensor]) return result;
    for (const OperandRef& use : readers[tensor]) {
      if (facts.backward[use.op]) result.push_back(launch_of(Pass::backward, use.op));
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
  };
  for (int t = 0; t < static_cast<int>(graph.tensors.size()); ++t) {
    const int producer = producers[t].op;
    std::vector<int> ops = readers_of(t);
    if (graph.tensors[t].kind == TensorKind::weight) {
      for (int op : lookups_of[t]) ops.push_back(facts.owner[facts.table[op]]);
      if (!graph.tensors[t].needs_gradient) add_flow(FlowKind::kept, t, {}, {}, {}, ops);
      continue;
    }
    // What no other operator reads takes memory, too: what an operator saves for its own backward
    // pass, say.
    if (readers[t].empty() && producer < 0) continue;
    if (producer >= 0) {
      ops.push_back(producer);
    } else if (load_sources[t].first_reader >= 0) {
      ops.push_back(load_sources[t].first_reader);
    }
    const int writer =
        producer >= 0 ? launch_of(Pass::forward, producer) : launch_of(Pass::load, t);
    std::vector<int> to;
    for (const OperandRef& use : readers[t]) {
      const int launch = launch_of(Pass::forward, use.op);
      if (to.empty() || to.back() != launch) to.push_back(launch);
    }
    for (int op : lookups_of[t]) {
      const int owner = facts.owner[facts.table[op]];
      to.push_back(first_reader(owner));
      ops.push_back(owner);
    }
    const int sum = producer >= 0 ? launch_of(Pass::sum, producer) : -1;
    if (sum >= 0) {
      add_combined_value(problem, t, std::move(to), ops);
    } else if (writer >= 0) {
      add_flow(FlowKind::value, t, {writer}, to, {}, ops);
    }
    const std::vector<int> writers = contributors(t);
    if (writers.empty()) continue;
    // What was looked up in a table has its gradient in the flow of weights.
    if (producer >= 0 && facts.table[producer] >= 0) continue;
    std::vector<int> fed;
    if (producer >= 0) fed.push_back(launch_of(Pass::backward, producer));
    add_flow(FlowKind::gradient, t, writers, fed, fed, ops);
  }
  for (int op = static_cast<int>(graph.operators.size()) - 1; op >= 0; --op) {
    const int update = launch_of(Pass::update, op);
    if (update < 0) continue;
    std::vector<int> writers, ops;
    for (int operand : facts.owned_weights(graph, op)) {
      const int tensor = graph.operators[op].operands[operand].tensor;
      std::vector<int> sources = {tensor};
      if (facts.is_table(tensor)) {
        for (int lookup : facts.lookups.at(tensor)) {
          sources.push_back(graph.operators[lookup].primary_output().tensor);
        }
      }
      for (int source : sources) {
        const std::vector<int> more = contributors(source);
        writers.insert(writers.end(), more.begin(), more.end());
        for (int reader : readers_of(source)) ops.push_back(reader);
      }
    }
    std::sort(ops.begin(), ops.end());
    std::sort(writers.begin(), writers.end());
    writers.erase(std::unique(writers.begin(), writers.end()), writers.end());
    writers.push_back(update);
    std::vector<int> fed = {first_reader(op)};
    if (fed.front() != update) fed.push_back(update);
    add_flow(FlowKind::weights, op, writers, {fed.front()}, fed, ops);
  }
}

// Of a tensor that may have partial values. Backward tasks that saw the tensor forward find it in
// their memory, as ever; but not those of its producer, which wrote one of the partial values, or
// none of the value. Whoever reads partial values combines them for itself, forward and again
// backward.
void LaunchGraph::add_combined_value(const Problem& problem, int tensor, std::vector<int> to,
                                     const std::vector<int>& ops) {
  const auto [producer, output] = producers[tensor];
  const auto saved = [&](const OperandRef& use) {
    return problem.facts.backward[use.op] &&
           problem.graph.operators[use.op].operands[use.operand].saved_for_backward;
  };
  std::vector<int> fed = to;
  for (const OperandRef& use : readers[tensor]) {
    if (saved(use)) fed.push_back(launch_of(Pass::backward, use.op));
  }
  if (saved({producer, output})) {
    to.push_back(launch_of(Pass::backward, producer));
    fed.push_back(to.back());
  }
  std::sort(fed.begin(), fed.end());
  fed.erase(std::unique(fed.begin(), fed.end()), fed.end());
  const int forward = launch_of(Pass::forward, producer), sum = launch_of(Pass::sum, producer);
  add_flow(FlowKind::value, tensor, {forward, sum}, to, fed, ops);
  add_flow(FlowKind::partial, tensor, {forward}, {sum}, {}, {producer});
}

void LaunchGraph::find_clipping(const Problem& problem) {
  if (!problem.facts.optimizer.clips) return;
  std::vector<int> norms, updates, ops;
  int clip = -1;
  for (int l = 0; l < static_cast<int>(launches.size()); ++l) {
    const auto [pass, op] = launches[l];
    if (pass == Pass::norm) norms.push_back(l);
    if (pass == Pass::norm) ops.push_back(op);
    if (pass == Pass::clip) clip = l;
    if (pass == Pass::update) updates.push_back(l);
  }
  if (clip < 0) return;  // nothing is trained
  const int op = launches[clip].index;
  add_flow(FlowKind::norms, op, norms, {clip}, {clip}, ops);
  add_flow(FlowKind::total_norm, op, {clip}, updates, {}, ops);
}

void LaunchGraph::add_flow(FlowKind kind, int index, const std::vector<int>& writers,
                           const std::vector<int>& to, const std::vector<int>& fed,
                           const std::vector<int>& ops) {
  const int flow = static_cast<int>(flows.size());
  FlowId id{kind, index, writers, static_cast<int>(writers.size()), fed, {}, 0};
  for (int slot = 0; slot < id.writers; ++slot) out_flows[writers[slot]].push_back({flow, slot});
  for (int reader : to) {
    const auto at = std::find(id.parties.begin(), id.parties.end(), reader);
    const int party = static_cast<int>(at - id.parties.begin());
    if (at == id.parties.end()) id.parties.push_back(reader);
    in_flows[reader].push_back({flow, party});
  }
  for (int launch : fed) feeding[launch].push_back(flow);
  for (int op : ops) {
    auto& mine = flows_of_op[op];
    if (!mine.empty() && mine.back() == flow) continue;
    mine.push_back(flow);
    id.ops.push_back(op);
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
    if (!of_tensor) key.push_back(-1 - id.index);  // one of a kind
    for (int party : id.parties) key.push_back(static_cast<int>(launches[party].pass));
    for (int op : id.ops) {
      key.push_back(-2);
      key.push_back(problem.costs.class_of[op]);
      const auto& operands = problem.graph.operators[op].operands;
      for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
        if (operands[i].tensor == id.index) key.push_back(i);
      }
    }
    id.group = groups.try_emplace(key, static_cast<int>(groups.size())).first->second;
    group_sizes.resize(groups.size(), 0);
    ++group_sizes[id.group];
  }
}

}  // namespace flexlegion
