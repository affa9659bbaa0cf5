#include "search/proposals.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

namespace flexlegion {

namespace {

constexpr int kAllSubsets = 8;  // devices; with more, there are too many sets to try each

// Whether devices a and b can be exchanged without changing any time: every route becomes another
// route, and each of its links one with the same rates.
bool exchangeable(const MachineModel& machine, int a, int b) {
  const int from = machine.memory_of[a], to = machine.memory_of[b];
  if (machine.kind_of[a] != machine.kind_of[b] || from == to ||
      machine.capacity[from] != machine.capacity[to]) {
    return false;
  }
  for (int d = 0; d < machine.devices(); ++d) {
    if (d != a && d != b && (machine.memory_of[d] == from || machine.memory_of[d] == to)) {
      return false;
    }
  }
  const auto image = [from, to](int memory) {
    return memory == from ? to : memory == to ? from : memory;
  };
  std::vector<int> onto(machine.links.size(), -1);
  for (int x = 0; x < machine.memories; ++x) {
    for (int y = 0; y < machine.memories; ++y) {
      if (x == y) continue;
      const auto& route = machine.route(x, y);
      const auto& other = machine.route(image(x), image(y));
      if (route.size() != other.size()) return false;
      for (std::size_t h = 0; h < route.size(); ++h) {
        const CommunicationDevice& one = machine.links[static_cast<std::size_t>(route[h])];
        const CommunicationDevice& its = machine.links[static_cast<std::size_t>(other[h])];
        int& mapped = onto[static_cast<std::size_t>(route[h])];
        if (mapped < 0) mapped = other[h];
        if (mapped != other[h] || one.bandwidth != its.bandwidth || one.latency != its.latency) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

std::vector<int> symmetric_devices(const MachineModel& machine) {
  std::vector<int> first(static_cast<std::size_t>(machine.devices()));
  std::iota(first.begin(), first.end(), 0);
  // Neighbours in number suffice where machines are numbered node by node.
  for (int d = 1; d < machine.devices(); ++d) {
    if (exchangeable(machine, d - 1, d)) first[d] = first[d - 1];
  }
  return first;
}

void Proposals::make_canonical(const std::vector<Config>& strategy, Configs& configs) const {
  std::vector<char> used(static_cast<std::size_t>(devices_), 0);
  std::vector<char> changes(strategy.size(), 0);
  for (const auto& [op, config] : configs) changes[op] = 1;
  int unused = devices_;
  for (int op : operators_) {
    if (changes[op]) continue;
    for (int device : strategy[op].devices) {
      unused -= !used[device];
      used[device] = 1;
    }
    if (unused == 0) return;  // as a rule, after a few operators
  }
  std::vector<int> onto(static_cast<std::size_t>(devices_));
  std::iota(onto.begin(), onto.end(), 0);
  std::vector<char> taken = used;
  const std::vector<int>& devices = configs.front().second.devices;  // the same in all of them
  bool moved = false;
  for (int device : devices) {
    if (taken[device] && onto[device] != device) continue;  // a device that repeats
    if (used[device]) continue;
    int least = symmetric_[device];
    while (least < device && (taken[least] || symmetric_[least] != symmetric_[device])) ++least;
    taken[least] = 1;
    onto[device] = least;
    moved = moved || least != device;
  }
  if (!moved) return;
  for (auto& [op, config] : configs) {
    for (int& device : config.devices) device = onto[device];
    std::sort(config.devices.begin(), config.devices.end());
  }
}

Proposals::Proposals(const Problem& problem, std::vector<int> groups)
    : problem_(problem),
      devices_(problem.machine.devices()),
      symmetric_(symmetric_devices(problem.machine)),
      groups_(std::move(groups)) {
  const Graph& graph = problem.graph;
  const int n = static_cast<int>(graph.operators.size());
  splits_.resize(graph.operators.size());
  neighbours_.resize(graph.operators.size());
  std::map<int, int> numbers;
  for (int& group : groups_) {
    group = numbers.try_emplace(group, static_cast<int>(numbers.size())).first->second;
  }
  members_.resize(numbers.size());
  std::vector<int> producer(graph.tensors.size(), -1);
  for (int op = 0; op < n; ++op) {
    if (!(problem.facts.runs[op] & kTrains)) continue;
    operators_.push_back(op);
    auto& members = members_[groups_[op]];
    if (!members.empty() && problem.costs.class_of[members.front()] != problem.costs.class_of[op]) {
      throw std::invalid_argument("operators '" + graph.operators[op].name + "' and '" +
                                  graph.operators[members.front()].name +
                                  "' are tied, but differ in more than name");
    }
    members.push_back(op);
    const auto& splits = problem.costs.splits[problem.costs.class_of[op]];
    for (int s = 0; s < static_cast<int>(splits.size()); ++s) {
      if (splits[s].tasks <= devices_) splits_[op].push_back(s);
    }
    if (splits_[op].empty()) {
      throw std::invalid_argument("the cost table has no split of operator '" +
                                  graph.operators[op].name + "' for this machine");
    }
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role == Role::output) {
        producer[o.tensor] = op;
      } else if (o.role == Role::input && producer[o.tensor] >= 0) {
        neighbours_[op].push_back(producer[o.tensor]);
        neighbours_[producer[o.tensor]].push_back(op);
      }
    }
  }
  if (operators_.empty()) throw std::invalid_argument("the graph has no operator to train");
}

std::vector<int> Proposals::random_devices(Random& random, int tasks) const {
  std::vector<int> devices(static_cast<std::size_t>(tasks));
  const int kind = random.below(4);
  if (kind < 2) {  // a block; aligned, where that is possible
    const int blocks = devices_ / tasks;
    const int start =
        devices_ % tasks == 0 ? random.below(blocks) * tasks : random.below(devices_ - tasks + 1);
    std::iota(devices.begin(), devices.end(), start);
  } else if (kind == 2) {  // every stride-th device
    const int stride = devices_ / tasks;
    const int start = random.below(devices_ - stride * (tasks - 1));
    for (int k = 0; k < tasks; ++k) devices[k] = start + k * stride;
  } else {  // any set
    int left = tasks;
    auto next = devices.begin();
    for (int d = 0; d < devices_ && left > 0; ++d) {
      if (random.below(devices_ - d) >= left) continue;
      *next++ = d;
      --left;
    }
  }
  return devices;
}

Config Proposals::random_config(Random& random, int op) const {
  const auto& splits = splits_[op];
  Config config;
  config.split = splits[random.below(static_cast<int>(splits.size()))];
  config.devices = random_devices(random, problem_.split(op, config.split).tasks);
  return config;
}

// Takes a neighbour's devices, and its degrees if the operator can be split by the same.
bool Proposals::copy_neighbour(Random& random, int op, const std::vector<Config>& strategy,
                               Config& config) const {
  const auto& neighbours = neighbours_[op];
  if (neighbours.empty()) return false;
  const int other = neighbours[random.below(static_cast<int>(neighbours.size()))];
  const Split& theirs = problem_.split(other, strategy[other].split);
  const Split& mine = problem_.split(op, strategy[op].split);
  config.devices = strategy[other].devices;
  const auto& table = problem_.costs.number_of[problem_.costs.class_of[op]];
  if (theirs.degrees.size() == mine.degrees.size()) {
    const auto same = table.find(theirs.degrees);
    if (same != table.end()) {
      config.split = same->second;
      return true;
    }
  }
  // Otherwise as many tasks, along the first dimension that can be cut into so many parts.
  for (std::size_t d = 0; d < mine.degrees.size(); ++d) {
    std::vector<int> degrees(mine.degrees.size(), 1);
    degrees[d] = theirs.tasks;
    const auto along = table.find(degrees);
    if (along == table.end()) continue;
    config.split = along->second;
    return true;
  }
  return false;
}

Configs Proposals::draw_uniform(Random& random) const {
  const int op = operators_[random.below(static_cast<int>(operators_.size()))];
  const auto kind = static_cast<std::size_t>(problem_.costs.class_of[op]);
  if (all_of_class_.size() <= kind) all_of_class_.resize(kind + 1);
  std::vector<Config>& configs = all_of_class_[kind];
  if (configs.empty()) configs = all(op);
  return {{op, configs[random.below(static_cast<int>(configs.size()))]}};
}

Configs Proposals::draw(Random& random, const std::vector<Config>& strategy, const Moves& moves,
                        const std::vector<int>& critical) const {
  if (moves.uniform) return draw_uniform(random);
  int op;
  if (moves.critical && !critical.empty() && random.chance(0.5)) {
    op = critical[random.below(static_cast<int>(critical.size()))];
  } else {
    op = operators_[random.below(static_cast<int>(operators_.size()))];
  }
  Config config;
  bool found = false;
  if (moves.neighbours && random.chance(0.3)) {
    found = copy_neighbour(random, op, strategy, config);
  } else if (random.chance(0.3)) {
    // The degrees stay, the devices change.
    config.split = strategy[op].split;
    const int tasks = static_cast<int>(strategy[op].devices.size());
    if (tasks <= devices_) {
      config.devices = random_devices(random, tasks);
      found = true;
    }
  }
  if (!found) config = random_config(random, op);
  Configs configs;
  if (moves.tied) {
    for (int member : members(op)) configs.emplace_back(member, config);
  } else {
    configs.emplace_back(op, std::move(config));
  }
  if (std::is_sorted(configs.front().second.devices.begin(),
                     configs.front().second.devices.end())) {
    make_canonical(strategy, configs);
  }
  return configs;
}

std::vector<Config> Proposals::all(int op) const {
  std::vector<Config> configs;
  for (int s : splits_[op]) {
    const int tasks = problem_.split(op, s).tasks;
    if (devices_ <= kAllSubsets) {
      std::vector<int> devices(static_cast<std::size_t>(tasks));
      std::iota(devices.begin(), devices.end(), 0);
      while (true) {
        configs.push_back({s, Sums::readers, devices});
        int k = tasks - 1;
        while (k >= 0 && devices[k] == devices_ - tasks + k) --k;
        if (k < 0) break;
        ++devices[k];
        for (int j = k + 1; j < tasks; ++j) devices[j] = devices[j - 1] + 1;
      }
      continue;
    }
    for (int start = 0; start + tasks <= devices_; start += tasks) {
      std::vector<int> devices(static_cast<std::size_t>(tasks));
      std::iota(devices.begin(), devices.end(), start);
      configs.push_back({s, Sums::readers, std::move(devices)});
    }
    const int stride = devices_ / tasks;
    for (int start = 0; stride > 1 && start < stride; ++start) {
      std::vector<int> devices;
      for (int k = 0; k < tasks; ++k) devices.push_back(start + k * stride);
      configs.push_back({s, Sums::readers, std::move(devices)});
    }
  }
  return configs;
}

}  // namespace flexlegion
