// Holds the task graph of one strategy, and replaces what a proposal touches (task_graph.h).
//
// replace() in steps:
// 1. collect(): the launches and flows that depend on the changed operators, and the launches whose
//    time depends on what such a flow brings.
// 2. within(): a first bound of the devices' loads, before anything is built.
// 3. New blocks, then new flows, then blocks that are fed by the new flows alone. A flow is built
//    from the blocks at its ends, so blocks come first.
// 4. add_fed_times(): what tasks take for what flows bring.
//
// Loads of devices and links and bytes of memories are kept as sums: what goes is subtracted, what
// comes is added. So they cost what the change costs, not what the graph does. undo() swaps
// everything back in the same way, and never builds a flow again.
#include "sim/task_graph.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "support/side_by_side.h"

namespace flexlegion {

namespace {

// From so many tasks of launches on, flows are built by several threads.
constexpr std::int64_t kManyTasks = 200'000;

}  // namespace

TaskGraph::TaskGraph(const Problem& problem, Detail detail)
    : problem_(problem),
      detail_(detail),
      launch_graph_(problem),
      blocks_(launch_graph_.launches.size()),
      flows_(launch_graph_.flows.size()),
      load_(static_cast<std::size_t>(problem.machine.all_devices()), 0),
      memory_(static_cast<std::size_t>(problem.machine.memories), 0),
      tenants_(static_cast<std::size_t>(launch_graph_.registers)),
      local_(problem.machine, launch_graph_.registers),
      program_(problem),
      rules_(problem, launch_graph_, configs_, blocks_, flows_, detail),
      paths_(problem, launch_graph_, flows_),
      is_dirty_block_(launch_graph_.launches.size(), 0),
      is_dirty_flow_(launch_graph_.flows.size(), 0) {}

// By bisection among the writing launches.
TaskRef TaskGraph::writer_of(int flow, int writer) const {
  const auto& first = flows_[flow]->first_writer;
  const auto slot = std::upper_bound(first.begin(), first.end(), writer) - first.begin() - 1;
  return {launch_graph_.flows[flow].parties[static_cast<std::size_t>(slot)],
          writer - first[static_cast<std::size_t>(slot)]};
}

// Blocks first, since flows are built from them; then what flows add to blocks' times.
bool TaskGraph::set(const PricedStrategy& strategy, std::int64_t most,
                    std::int64_t most_transfers) {
  configs_ = strategy;
  std::fill(load_.begin(), load_.end(), 0);
  std::fill(memory_.begin(), memory_.end(), 0);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    blocks_[l] = rules_.block(static_cast<int>(l));
  }
  std::int64_t left = most / problem_.graph.micro_batches - launch_tasks();
  std::int64_t transfers_left = most_transfers / problem_.graph.micro_batches - launch_tasks();
  const std::vector<FlowPtr> ahead = built_ahead(left, transfers_left);
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    flows_[f] = ahead[f] != nullptr ? ahead[f] : rules_.flow(static_cast<int>(f));
    left -= static_cast<std::int64_t>(flows_[f]->hops.size());
    transfers_left -= flows_[f]->all_hops;
    if (left < 0 || transfers_left < 0) return false;
  }
  for (std::size_t l = 0; l < blocks_.size(); ++l) add_fed_times(static_cast<int>(l));
  for (std::size_t l = 0; l < blocks_.size(); ++l) account_block(static_cast<int>(l), 1);
  for (auto& tenants : tenants_) tenants.clear();
  local_.clear();
  for (std::size_t f = 0; f < flows_.size(); ++f) account_flow(static_cast<int>(f), 1);
  for (std::size_t l = 0; l < blocks_.size(); ++l) paths_.note(static_cast<int>(l), blocks_[l]);
  return true;
}

// Flows of a large strategy, built side by side until they have more hops than `left`, or more than
// `transfers_left` if each transfer is looked at; of what is not built, nullptr. Each thread has
// rules of its own, as these have scratch memory. Of equal flows, the first one is built. Turns are
// not among them: they look at other flows.
std::vector<FlowPtr> TaskGraph::built_ahead(std::int64_t left, std::int64_t transfers_left) {
  std::vector<FlowPtr> flows(flows_.size());
  if (launch_tasks() < kManyTasks) return flows;
  std::unordered_map<FlowRules::Key, int, FlowRules::KeyHash> first_of;
  std::vector<int> jobs;
  std::vector<std::pair<int, int>> equal;  // a flow, and the first that is equal to it
  for (int f = 0; f < static_cast<int>(flows.size()); ++f) {
    if (flow_ids()[f].kind == FlowKind::turns) continue;
    const FlowRules::Key key = rules_.key_of(f);
    const auto [entry, is_first] = first_of.emplace(key, f);
    if (!is_first) {
      equal.emplace_back(f, entry->second);
    } else if ((flows[f] = rules_.find(key)) == nullptr) {
      jobs.push_back(f);
    }
  }
  std::atomic<std::int64_t> hops{0}, all_hops{0};
  side_by_side(static_cast<int>(jobs.size()), [&] {
    auto rules =
        std::make_unique<FlowRules>(problem_, launch_graph_, configs_, blocks_, flows_, detail_);
    return [&, rules = std::move(rules)](int job) {
      if (hops > left || all_hops > transfers_left) return;
      FlowPtr& flow = flows[jobs[job]];
      flow = rules->built(jobs[job]);
      hops += static_cast<std::int64_t>(flow->hops.size());
      all_hops += flow->all_hops;
    };
  });
  for (const auto& [f, first] : equal) flows[f] = flows[first];
  return flows;
}

// Lists and marks what a change touches: marks answer "is it listed", and lists are short.
void TaskGraph::collect(const PartialStrategy& configs) {
  dirty_blocks_.clear();
  dirty_flows_.clear();
  const auto mark = [](std::vector<char>& is, std::vector<int>& list, int index) {
    if (is[index]) return;
    is[index] = 1;
    list.push_back(index);
  };
  for (const auto& [op, config] : configs) {
    if (config == configs_[op]) continue;  // of tied operators, often one alone changes
    for (int block : launch_graph_.launches_of_op[op]) mark(is_dirty_block_, dirty_blocks_, block);
    for (int flow : launch_graph_.flows_of_op[op]) mark(is_dirty_flow_, dirty_flows_, flow);
  }
  // A register's turns come after the flows that take them, which have lower numbers.
  const auto turns = [this](int flow) { return flow_ids()[flow].kind == FlowKind::turns; };
  if (!flows_.empty() && turns(static_cast<int>(flows_.size()) - 1)) {
    std::stable_partition(dirty_flows_.begin(), dirty_flows_.end(),
                          [&](int flow) { return !turns(flow); });
  }
  for (int flow : dirty_flows_) mark_fed(flow);
  // The marks are scratch. They are cleared by list, since clearing all would cost what the graph
  // does.
  for (int flow : dirty_flows_) is_dirty_flow_[flow] = 0;
}

// The launches that take longer for what a flow, as it is, brings.
void TaskGraph::mark_fed(int flow) {
  if (flows_[flow]->fed_times.empty()) return;
  for (int fed : launch_graph_.flows[flow].fed) {
    if (is_dirty_block_[fed]) continue;
    is_dirty_block_[fed] = 1;
    dirty_blocks_.push_back(fed);
  }
}

// Whether the devices' loads stay within `limit` even if nothing but the operators' own tasks is
// counted of what changes. The new configurations are in place.
bool TaskGraph::within(std::int64_t limit) {
  const MachineModel& machine = problem_.machine;
  bound_.assign(load_.begin(), load_.begin() + machine.devices());
  for (int l : dirty_blocks_) {
    const Block& old = blocks_[l];
    const int rounds = rounds_of(l);
    for (std::size_t k = 0; k < old.device.size(); ++k) {
      bound_[old.device[k]] -= rounds * old.exe_time[k];
    }
    const auto [pass, op, loaded, field] = launch_graph_.launches[l];
    if (row_of(pass).price != Price::of_task) continue;
    const Split& split = problem_.split(op, configs_[op].split);
    for (int k = 0; k < split.tasks; ++k) {
      const int device = configs_[op].devices[k];
      bound_[device] += rounds * split.time(pass, machine.kind_of[device], k);
    }
  }
  return *std::max_element(bound_.begin(), bound_.end()) <= limit;
}

// What is replaced goes into `change`, by which undo() brings it back.
bool TaskGraph::replace(const PartialStrategy& configs, std::int64_t limit, Change& change) {
  change.configs = configs;
  change.blocks.clear();
  change.flows.clear();
  collect(configs);
  for (auto& [op, config] : change.configs) std::swap(configs_[op], config);
  const bool fits = within(limit);
  std::size_t replaced = 0;
  const auto replace_blocks = [&] {
    for (; replaced < dirty_blocks_.size(); ++replaced) {
      const int l = dirty_blocks_[replaced];
      account_block(l, -1);
      change.blocks.emplace_back(l, std::move(blocks_[l]));
      blocks_[l] = rules_.block(l);
    }
  };
  if (fits) {
    replace_blocks();
    for (int f : dirty_flows_) {
      account_flow(f, -1);
      change.flows.emplace_back(f, std::move(flows_[f]));
      flows_[f] = rules_.flow(f);
      account_flow(f, 1);
    }
    // A new flow may feed launches that the old one did not: of partial values that appear, say.
    for (int f : dirty_flows_) mark_fed(f);
    replace_blocks();
  }
  for (int l : dirty_blocks_) is_dirty_block_[l] = 0;
  if (!fits) {
    undo(change);
    return false;
  }
  for (int l : dirty_blocks_) {
    add_fed_times(l);
    account_block(l, 1);
    paths_.note(l, blocks_[l]);
  }
  return true;
}

void TaskGraph::undo(Change& change) {
  // In reverse order: of an operator that stands there twice, the first entry has the old one.
  for (std::size_t i = change.configs.size(); i-- > 0;) {
    std::swap(configs_[change.configs[i].first], change.configs[i].second);
  }
  for (auto& [l, block] : change.blocks) {
    account_block(l, -1);
    std::swap(blocks_[l], block);
    account_block(l, 1);
    paths_.note(l, blocks_[l]);
  }
  for (auto& [f, flow] : change.flows) {
    account_flow(f, -1);
    std::swap(flows_[f], flow);
    account_flow(f, 1);
  }
}

int TaskGraph::rounds_of(int launch) const {
  return row_of(launches()[launch].pass).closing ? 1 : problem_.graph.micro_batches;
}

int TaskGraph::rounds_of(int f, const Transfer& transfer) const {
  if (flow_ids()[f].in_rounds) return problem_.graph.micro_batches;
  return rounds_of_transfers(f, writer_of(f, transfer.writer).party);
}

// The rows that were looked up in a table travel each time.
int TaskGraph::rounds_of_transfers(int f, int writer) const {
  const FlowId& id = flow_ids()[f];
  if (id.in_rounds) return problem_.graph.micro_batches;
  return id.of_each_round ? rounds_of(writer) : 1;
}

int TaskGraph::first_told(int f, int writer, int reader) const {
  const int rounds = problem_.graph.micro_batches;
  if (rounds_of(reader) == rounds) return 0;
  const bool apart = flow_ids()[f].of_each_round && rounds_of(writer) == rounds;
  return apart ? 0 : rounds - 1;
}

void TaskGraph::account_block(int l, int sign) {
  const Block& block = blocks_[l];
  const std::int64_t times = sign * rounds_of(l);
  for (std::size_t k = 0; k < block.device.size(); ++k) {
    load_[block.device[k]] += times * block.exe_time[k];
  }
}

// Where transfers differ in their rounds, each is looked at.
void TaskGraph::account_flow(int f, int sign) {
  const Flow& flow = *flows_[f];
  const int devices = problem_.machine.devices();
  const bool mixed = problem_.graph.micro_batches > 1 && flow_ids()[f].of_each_round;
  if (mixed) {
    for (const Hop& hop : flow.hops) {
      load_[devices + hop.link] += sign * rounds_of(f, flow.transfers[hop.transfer]) * hop.time;
    }
  } else {
    const std::int64_t times = flow_ids()[f].in_rounds ? problem_.graph.micro_batches : 1;
    for (const auto& [link, time] : flow.link_load) load_[devices + link] += sign * times * time;
  }
  if (!flow.local.empty()) {
    local_.change(flow_ids()[f].registers.local, flow.tenant, flow.local, sign, memory_);
    return;
  }
  if (!turns_up(f, sign)) return;
  for (const Held& held : flow.memory) memory_[held.memory] += sign * held.bytes;
}

// Whether what a flow holds is held when it comes, or no more when it goes: tenants that share a
// register hold it once.
bool TaskGraph::turns_up(int f, int sign) {
  const std::uint64_t key = flows_[f]->tenant;
  if (key == 0) return true;
  auto& tenants = tenants_[launch_graph_.flows[f].registers.alike];
  const auto found = std::find_if(tenants.begin(), tenants.end(),
                                  [key](const Tenants& its) { return its.key == key; });
  if (found == tenants.end()) {
    tenants.push_back({key, 1});
    return true;
  }
  found->count += sign;
  if (found->count > 0) return false;
  *found = tenants.back();
  tenants.pop_back();
  return true;
}

std::int64_t TaskGraph::heaviest_load() const {
  return *std::max_element(load_.begin(), load_.end());
}

// Summed over memories, so that a search can go downhill from a strategy that does not fit.
std::int64_t TaskGraph::missing_memory() const {
  if (problem_.program_capacity >= 0) {
    return std::max<std::int64_t>(0, program_.bytes(configs_) - problem_.program_capacity);
  }
  std::int64_t missing = 0;
  for (int m = 0; m < problem_.machine.memories; ++m) {
    missing += std::max<std::int64_t>(0, memory_[m] - problem_.machine.capacity[m]);
  }
  return missing;
}

std::int64_t TaskGraph::crossings() const {
  std::int64_t count = 0;
  for (int f = 0; f < static_cast<int>(flows_.size()); ++f) {
    for_each_crossing(f, [&](int, int) { ++count; });
  }
  return count;
}

std::vector<std::int64_t> TaskGraph::computation() const {
  std::vector<std::int64_t> times(kPasses, 0);
  for (int l = 0; l < static_cast<int>(blocks_.size()); ++l) {
    const std::vector<std::int64_t>& its = blocks_[l].exe_time;
    times[static_cast<std::size_t>(launches()[l].pass)] +=
        rounds_of(l) * std::accumulate(its.begin(), its.end(), std::int64_t{0});
  }
  return times;
}

std::vector<std::int64_t> TaskGraph::moved_bytes() const {
  std::vector<std::int64_t> bytes(kPasses, 0);
  for (int f = 0; f < static_cast<int>(flows_.size()); ++f) {
    for (int t = 0; t < flows_[f]->transfer_count(); ++t) {
      const Transfer& transfer = flows_[f]->transfers[t];
      const LaunchKey& key = launches()[writer_of(f, transfer.writer).party];
      bytes[static_cast<std::size_t>(key.pass)] += rounds_of(f, transfer) * transfer.bytes;
    }
  }
  return bytes;
}

std::int64_t TaskGraph::launch_tasks() const {
  std::int64_t tasks = 0;
  for (const Block& block : blocks_) tasks += static_cast<std::int64_t>(block.device.size());
  return tasks;
}

std::int64_t TaskGraph::tasks() const {
  std::int64_t tasks = launch_tasks();
  for (const FlowPtr& flow : flows_) tasks += static_cast<std::int64_t>(flow->hops.size());
  return tasks * problem_.graph.micro_batches;
}

std::int64_t TaskGraph::all_tasks() const {
  std::int64_t tasks = launch_tasks();
  for (const FlowPtr& flow : flows_) tasks += flow->all_hops;
  return tasks * problem_.graph.micro_batches;
}

// What a launch's tasks take for what flows bring them.
// Blocks hold both: what tasks compute, and what they do for what flows bring.
void TaskGraph::add_fed_times(int launch) {
  for (int f : launch_graph_.feeding[launch]) {
    const std::vector<int>& fed = launch_graph_.flows[f].fed;
    for (std::size_t i = 0; i < flows_[f]->fed_times.size(); ++i) {
      if (fed[i] != launch) continue;
      const auto& times = flows_[f]->fed_times[i];
      for (std::size_t k = 0; k < times.size(); ++k) blocks_[launch].exe_time[k] += times[k];
    }
  }
}

}  // namespace flexlegion
