#include "sim/task_graph.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "sim/charges.h"

namespace flexlegion {

namespace {

// What may be spent on flows that are not in use. Beyond, all of them are given up.
constexpr std::int64_t kCachedBytes = std::int64_t{256} << 20;

}  // namespace

TaskGraph::TaskGraph(const Problem& problem)
    : problem_(problem), geometry_(problem), builder_(problem.machine, geometry_) {
  find_launches();
  find_flows();
  load_.assign(static_cast<std::size_t>(problem.machine.all_devices()), 0);
  memory_.assign(static_cast<std::size_t>(problem.machine.memories), 0);
  boxes_.resize(static_cast<std::size_t>(problem.machine.memories));
  returned_.resize(static_cast<std::size_t>(problem.machine.memories));
  is_dirty_block_.assign(launches_.size(), 0);
  is_dirty_flow_.assign(flow_ids_.size(), 0);
  party_of_launch_.assign(launches_.size(), -1);
  first_end_.resize(launches_.size());
  last_end_.resize(launches_.size());
  longest_turn_.resize(launches_.size());
  turn_.assign(static_cast<std::size_t>(problem.machine.devices()), 0);
  tails_.resize(launches_.size());
  shortest_.resize(launches_.size());
  group_flows();
}

int TaskGraph::launch_of(Pass pass, int index) const {
  return launch_numbers_[static_cast<int>(pass)][static_cast<std::size_t>(index)];
}

TaskRef TaskGraph::writer_of(int flow, int writer) const {
  const auto& first = flows_[flow]->first_writer;
  const auto slot = std::upper_bound(first.begin(), first.end(), writer) - first.begin() - 1;
  return {flow_ids_[flow].parties[static_cast<std::size_t>(slot)],
          writer - first[static_cast<std::size_t>(slot)]};
}

void TaskGraph::find_launches() {
  const Graph& graph = problem_.graph;
  const GraphFacts& facts = problem_.facts;
  for (auto& numbers : launch_numbers_) {
    numbers.assign(std::max(graph.operators.size(), graph.tensors.size()), -1);
  }
  blocks_of_op_.resize(graph.operators.size());
  load_sources_.resize(graph.tensors.size());
  producers_.assign(graph.tensors.size(), {-1, -1});
  readers_.resize(graph.tensors.size());
  for (int op = 0; op < static_cast<int>(graph.operators.size()); ++op) {
    if (!(facts.runs[op] & kTrains)) continue;
    const auto& operands = graph.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      if (operands[i].role == Role::output) {
        producers_[operands[i].tensor] = {op, i};
      } else {
        readers_[operands[i].tensor].emplace_back(op, i);
      }
    }
  }
  lookups_of_.resize(graph.tensors.size());
  for (const auto& [table, ops] : facts.lookups) {
    for (int op : ops) lookups_of_[graph.operators[op].operands.front().tensor].push_back(op);
  }
  for (const LaunchId& id : facts.launches) {
    // Only what training executes is simulated.
    if (id.pass == Pass::forward && !(facts.runs[id.index] & kTrains)) continue;
    if (id.pass == Pass::load) {
      if (readers_[id.index].empty()) continue;
      load_sources_[id.index] = load_source(graph, facts, id.index);
    }
    const int launch = static_cast<int>(launches_.size());
    launch_numbers_[static_cast<int>(id.pass)][id.index] = launch;
    launches_.push_back(id);
    const int op = id.pass == Pass::load ? load_sources_[id.index].first_reader : id.index;
    blocks_of_op_[op].push_back(launch);
  }
  backward_of_.assign(launches_.size(), -1);
  for (int op = 0; op < static_cast<int>(graph.operators.size()); ++op) {
    const int forward = launch_of(Pass::forward, op);
    if (forward >= 0) backward_of_[forward] = launch_of(Pass::backward, op);
  }
  blocks_.resize(launches_.size());
}

void TaskGraph::add_flow(FlowKind kind, int index, const std::vector<int>& writers,
                         const std::vector<int>& readers, int fed, const std::vector<int>& ops) {
  const int flow = static_cast<int>(flow_ids_.size());
  FlowId id{kind, index, writers, static_cast<int>(writers.size()), fed, 0};
  for (int slot = 0; slot < id.writers; ++slot) out_flows_[writers[slot]].push_back({flow, slot});
  for (int reader : readers) {
    const auto at = std::find(id.parties.begin(), id.parties.end(), reader);
    const int party = static_cast<int>(at - id.parties.begin());
    if (at == id.parties.end()) id.parties.push_back(reader);
    in_flows_[reader].push_back({flow, party});
  }
  flow_ids_.push_back(std::move(id));
  ops_of_flow_.emplace_back();
  for (int op : ops) {
    auto& mine = flows_of_op_[op];
    if (mine.empty() || mine.back() != flow) {
      mine.push_back(flow);
      ops_of_flow_.back().push_back(op);
    }
  }
}

// Two flows are of one group if their operators are of the same classes in the same order and use
// the flow's tensor through the same operands.
void TaskGraph::group_flows() {
  const Graph& graph = problem_.graph;
  std::map<std::vector<int>, int> groups;
  for (std::size_t f = 0; f < flow_ids_.size(); ++f) {
    FlowId& id = flow_ids_[f];
    std::vector<int> key = {static_cast<int>(id.kind), id.writers, id.fed >= 0};
    if (id.kind == FlowKind::weights) key.push_back(-1 - id.index);  // one of a kind
    for (int party : id.parties) key.push_back(static_cast<int>(launches_[party].pass));
    for (int op : ops_of_flow_[f]) {
      key.push_back(-2);
      key.push_back(problem_.costs.class_of[op]);
      const auto& operands = graph.operators[op].operands;
      for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
        if (operands[i].tensor == id.index) key.push_back(i);
      }
    }
    id.group = groups.try_emplace(key, static_cast<int>(groups.size())).first->second;
    group_size_.resize(groups.size(), 0);
    ++group_size_[id.group];
  }
}

// Which flows there are depends on the graph alone; what they carry, on configurations
// (build_flow).
//
// - A tensor that is no weight has a flow of its value: from the launch that writes it (its
//   producer's forward launch, or the load) to all forward launches that read it. If training wants
//   its gradient, it has another: from the readers' backward launches to the producer's.
// - A weight that is not trained has a flow in which nothing moves, for the memory that it takes.
// - The weights that one operator updates share a flow: from the backward launches that contribute
//   to their gradients to the update launch, and from there to whoever reads the weights next.
//
// `ops` are the operators whose configurations a flow depends on. The flow is built again when one
// of them changes.
void TaskGraph::find_flows() {
  const Graph& graph = problem_.graph;
  const GraphFacts& facts = problem_.facts;
  out_flows_.resize(launches_.size());
  in_flows_.resize(launches_.size());
  flows_of_op_.resize(graph.operators.size());
  gradient_flows_.resize(launches_.size());
  // The launches that contribute to a tensor's gradient, in the order of issue.
  const auto contributors = [&](int tensor) {
    std::vector<int> result;
    if (!facts.differentiable[tensor]) return result;
    for (const auto& [op, operand] : readers_[tensor]) {
      if (facts.backward[op]) result.push_back(launch_of(Pass::backward, op));
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
  };
  for (int t = 0; t < static_cast<int>(graph.tensors.size()); ++t) {
    const int producer = producers_[t].first;
    if (graph.tensors[t].kind == TensorKind::weight) {
      std::vector<int> ops;
      for (const auto& [op, operand] : readers_[t]) ops.push_back(op);
      for (int op : lookups_of_[t]) ops.push_back(facts.owner[facts.table[op]]);
      if (!graph.tensors[t].needs_gradient) add_flow(FlowKind::kept, t, {}, {}, -1, ops);
      continue;
    }
    // What no other operator reads takes memory, too: what an operator saves for its own backward
    // pass, say.
    if (readers_[t].empty() && producer < 0) continue;
    std::vector<int> ops;
    for (const auto& [op, operand] : readers_[t]) ops.push_back(op);
    if (producer >= 0) {
      ops.push_back(producer);
    } else if (load_sources_[t].first_reader >= 0) {
      ops.push_back(load_sources_[t].first_reader);
    }
    const int writer =
        producer >= 0 ? launch_of(Pass::forward, producer) : launch_of(Pass::load, t);
    std::vector<int> readers;
    for (const auto& [op, operand] : readers_[t]) {
      const int launch = launch_of(Pass::forward, op);
      if (readers.empty() || readers.back() != launch) readers.push_back(launch);
    }
    for (int op : lookups_of_[t]) {
      const int owner = facts.owner[facts.table[op]];
      readers.push_back(launch_of(Pass::update, owner));
      ops.push_back(owner);
    }
    if (writer >= 0) add_flow(FlowKind::value, t, {writer}, readers, -1, ops);
    const std::vector<int> writers = contributors(t);
    if (writers.empty()) continue;
    // What was looked up in a table has its gradient in the flow of weights.
    if (producer >= 0 && facts.table[producer] >= 0) continue;
    const int fed = producer >= 0 ? launch_of(Pass::backward, producer) : -1;
    if (fed >= 0) gradient_flows_[fed].push_back(static_cast<int>(flow_ids_.size()));
    add_flow(FlowKind::gradient, t, writers, fed >= 0 ? std::vector<int>{fed} : std::vector<int>{},
             fed, ops);
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
        for (const auto& [reader, its] : readers_[source]) ops.push_back(reader);
      }
    }
    std::sort(ops.begin(), ops.end());
    std::sort(writers.begin(), writers.end());
    writers.erase(std::unique(writers.begin(), writers.end()), writers.end());
    writers.push_back(update);
    add_flow(FlowKind::weights, op, writers, {update}, update, ops);
  }
  flows_.resize(flow_ids_.size());
}

void TaskGraph::set(const std::vector<Config>& strategy) {
  configs_ = strategy;
  std::fill(load_.begin(), load_.end(), 0);
  std::fill(memory_.begin(), memory_.end(), 0);
  for (std::size_t l = 0; l < launches_.size(); ++l) {
    blocks_[l] = build_block(static_cast<int>(l));
  }
  for (std::size_t f = 0; f < flow_ids_.size(); ++f) flows_[f] = build_flow(static_cast<int>(f));
  for (std::size_t l = 0; l < launches_.size(); ++l) add_sums(static_cast<int>(l));
  for (const Block& block : blocks_) account(block, 1);
  for (const FlowPtr& flow : flows_) account(*flow, 1);
  for (std::size_t l = 0; l < launches_.size(); ++l) note_times(static_cast<int>(l));
}

void TaskGraph::collect(const std::vector<std::pair<int, Config>>& configs) {
  dirty_blocks_.clear();
  dirty_flows_.clear();
  const auto mark = [](std::vector<char>& is, std::vector<int>& list, int index) {
    if (is[index]) return;
    is[index] = 1;
    list.push_back(index);
  };
  for (const auto& [op, config] : configs) {
    for (int block : blocks_of_op_[op]) mark(is_dirty_block_, dirty_blocks_, block);
    for (int flow : flows_of_op_[op]) mark(is_dirty_flow_, dirty_flows_, flow);
  }
  for (int flow : dirty_flows_) {
    const int fed = flow_ids_[flow].fed;
    if (fed >= 0) mark(is_dirty_block_, dirty_blocks_, fed);
  }
  for (int block : dirty_blocks_) is_dirty_block_[block] = 0;
  for (int flow : dirty_flows_) is_dirty_flow_[flow] = 0;
}

// Whether the devices' loads stay within `limit` even if nothing but the operators' own tasks is
// counted of what changes. The new configurations are in place.
bool TaskGraph::within(std::int64_t limit) {
  const MachineModel& machine = problem_.machine;
  bound_.assign(load_.begin(), load_.begin() + machine.devices());
  for (int l : dirty_blocks_) {
    const Block& old = blocks_[l];
    for (std::size_t k = 0; k < old.device.size(); ++k) bound_[old.device[k]] -= old.exe_time[k];
    const auto [pass, op] = launches_[l];
    if (pass != Pass::forward && pass != Pass::backward) continue;
    const Split& split = problem_.split(op, configs_[op].split);
    for (int k = 0; k < split.tasks; ++k) {
      const int device = configs_[op].devices[k];
      bound_[device] += split.time(pass, machine.kind_of[device], k);
    }
  }
  return *std::max_element(bound_.begin(), bound_.end()) <= limit;
}

bool TaskGraph::replace(const std::vector<std::pair<int, Config>>& configs, std::int64_t limit,
                        Change& change) {
  change.configs = configs;
  change.blocks.clear();
  change.flows.clear();
  collect(configs);
  for (auto& [op, config] : change.configs) std::swap(configs_[op], config);
  if (!within(limit)) {
    undo(change);
    return false;
  }
  for (int l : dirty_blocks_) {
    account(blocks_[l], -1);
    change.blocks.emplace_back(l, std::move(blocks_[l]));
    blocks_[l] = build_block(l);
  }
  for (int f : dirty_flows_) {
    account(*flows_[f], -1);
    change.flows.emplace_back(f, std::move(flows_[f]));
    flows_[f] = build_flow(f);
    account(*flows_[f], 1);
  }
  for (int l : dirty_blocks_) {
    add_sums(l);
    account(blocks_[l], 1);
    note_times(l);
  }
  return true;
}

void TaskGraph::undo(Change& change) {
  // In reverse order: of an operator that stands there twice, the first entry has the old one.
  for (std::size_t i = change.configs.size(); i-- > 0;) {
    std::swap(configs_[change.configs[i].first], change.configs[i].second);
  }
  for (auto& [l, block] : change.blocks) {
    account(blocks_[l], -1);
    std::swap(blocks_[l], block);
    account(blocks_[l], 1);
    note_times(l);
  }
  for (auto& [f, flow] : change.flows) {
    account(*flows_[f], -1);
    std::swap(flows_[f], flow);
    account(*flows_[f], 1);
  }
}

void TaskGraph::account(const Block& block, int sign) {
  for (std::size_t k = 0; k < block.device.size(); ++k) {
    load_[block.device[k]] += sign * block.exe_time[k];
  }
}

void TaskGraph::account(const Flow& flow, int sign) {
  const int devices = problem_.machine.devices();
  for (const auto& [link, time] : flow.link_load) load_[devices + link] += sign * time;
  for (const Held& held : flow.memory) memory_[held.memory] += sign * held.bytes;
}

std::int64_t TaskGraph::heaviest_load() const {
  return *std::max_element(load_.begin(), load_.end());
}

int TaskGraph::overfull_memory() const {
  for (int m = 0; m < problem_.machine.memories; ++m) {
    if (memory_[m] > problem_.machine.capacity[m]) return m;
  }
  return -1;
}

std::int64_t TaskGraph::bytes_moved() const {
  std::int64_t bytes = 0;
  for (const FlowPtr& flow : flows_) bytes += flow->bytes;
  return bytes;
}

std::int64_t TaskGraph::tasks() const {
  std::int64_t tasks = 0;
  for (const Block& block : blocks_) tasks += static_cast<std::int64_t>(block.device.size());
  for (const FlowPtr& flow : flows_) tasks += static_cast<std::int64_t>(flow->hops.size());
  return tasks;
}

Block TaskGraph::build_block(int launch) {
  const MachineModel& machine = problem_.machine;
  const auto [pass, index] = launches_[launch];
  Block block;
  if (pass == Pass::update) {  // build_weights() knows the times
    const std::vector<int> owned = problem_.facts.owned_weights(problem_.graph, index);
    for (const UpdateTask& task :
         update_tasks_of(problem_, geometry_, index, owned, configs_[index])) {
      block.device.push_back(task.device);
    }
    block.exe_time.assign(block.device.size(), 1);
    return block;
  }
  if (pass == Pass::load) {
    const LoadSource& source = load_sources_[index];
    const Config& reader = configs_[source.first_reader];
    block.device =
        load_config(problem_.graph, source,
                    problem_.split(source.first_reader, reader.split).degrees, reader.devices)
            .devices;
    const int parts = static_cast<int>(block.device.size());
    const Family& family = geometry_.load_family(index, parts);
    for (int k = 0; k < parts; ++k) {
      const Rect& tile = family.parts.rects[family.parts.of_part[k]];
      block.exe_time.push_back(load_time(problem_, block.device[k], tile.volume()));
    }
    return block;
  }
  const Config& config = configs_[index];
  const Split& split = problem_.split(index, config.split);
  block.device = config.devices;
  for (int k = 0; k < split.tasks; ++k) {
    block.exe_time.push_back(split.time(pass, machine.kind_of[block.device[k]], k));
  }
  return block;
}

// A backward task sums the partial values of its outputs' gradients before it starts on them.
void TaskGraph::add_sums(int launch) {
  for (int f : gradient_flows_[launch]) {
    const auto& sums = flows_[f]->sum_time;
    for (std::size_t k = 0; k < sums.size(); ++k) blocks_[launch].exe_time[k] += sums[k];
  }
}

FlowPtr TaskGraph::build_flow(int f) {
  const FlowId& id = flow_ids_[f];
  if (id.kind == FlowKind::weights) return std::make_shared<const Flow>(build_weights(id));
  if (id.kind == FlowKind::kept) return std::make_shared<const Flow>(build_kept(id));
  const bool shared = group_size_[id.group] > 1;
  std::pair<std::uint64_t, std::uint64_t> key{0x9E3779B97F4A7C15u,
                                              static_cast<std::uint64_t>(id.group)};
  if (shared) {
    // 128 bits, so that two different keys do not meet in the life of a search.
    const auto mix = [&key](std::uint64_t value) {
      key.first = (key.first ^ value) * 0xFF51AFD7ED558CCDu;
      key.first ^= key.first >> 32;
      key.second = (key.second + value) * 0xC4CEB9FE1A85EC53u;
      key.second ^= key.second >> 29;
    };
    mix(static_cast<std::uint64_t>(id.group));
    for (int op : ops_of_flow_[f]) {
      mix(static_cast<std::uint64_t>(configs_[op].split) + 1);
      for (int device : configs_[op].devices) mix(static_cast<std::uint64_t>(device) + 3);
    }
    const auto found = built_.find(key);
    if (found != built_.end()) return found->second;
  }
  auto flow = std::make_shared<const Flow>(id.kind == FlowKind::value ? build_value(id)
                                                                      : build_gradient(id));
  if (shared) {
    built_bytes_ += static_cast<std::int64_t>(
        sizeof(Flow) + flow->hops.size() * sizeof(Hop) + flow->consumers.size() * sizeof(TaskRef) +
        flow->edges.size() * sizeof(TaskRef) + flow->transfers.size() * sizeof(Transfer));
    if (built_bytes_ > kCachedBytes) {
      built_.clear();
      built_bytes_ = 0;
    }
    built_.emplace(key, flow);
  }
  return flow;
}

}  // namespace flexlegion
