#include "search/proposals.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <stdexcept>

namespace flexlegion {

namespace {

constexpr int kAllSubsets = 8;      // devices; with more, there are too many sets to try each
constexpr double kTogether = 0.02;  // the share of proposals that change neighbours, too

// Fills in which dimensions of a producer and a consumer go along with each other in the tensor
// between them. What the producer reduces goes along with the parts of a linear input.
void match(const Graph& graph, const Operand& written, const Operand& read, Neighbour& producer,
           Neighbour& consumer) {
  const Operator& before = graph.operators[producer.op];
  const Operator& after = graph.operators[consumer.op];
  if (read.linear && after.part() >= 0 && written.combine == Combine::sum) {
    const std::size_t rank = before.dims.size() - before.reductions.size();
    for (std::size_t d = rank; d < before.dims.size(); ++d) {
      if (before.dims[d] != DimKind::none) producer.followers[d] = after.part();
    }
  }
  for (std::size_t d = 0; d < written.map.size(); ++d) {
    const int mine = written.map[d].out_dim, theirs = read.map[d].out_dim;
    if (mine < 0 || theirs < 0 || read.map[d].prefix) continue;
    producer.followers[mine] = theirs;
    consumer.followers[theirs] = mine;
  }
}

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

void Proposals::make_canonical(const PricedStrategy& strategy, PartialStrategy& configs) const {
  std::vector<char> used(static_cast<std::size_t>(devices_), 0);
  IdVector<OpId, char> changes(strategy.size(), 0);
  for (const auto& [op, config] : configs) changes[op] = 1;
  int unused = devices_;
  for (OpId op : operators_) {
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

Proposals::Proposals(const Problem& problem, IdVector<OpId, int> groups)
    : problem_(problem),
      devices_(problem.machine.devices()),
      symmetric_(symmetric_devices(problem.machine)),
      groups_(std::move(groups)) {
  const Graph& graph = problem.graph;
  splits_.resize(graph.operators.size());
  splits_by_tasks_.resize(graph.operators.size());
  divisible_.resize(graph.operators.size());
  neighbours_.resize(graph.operators.size());
  std::map<int, int> numbers;
  for (int& group : groups_) {
    group = numbers.try_emplace(group, static_cast<int>(numbers.size())).first->second;
  }
  members_.resize(numbers.size());
  struct Written {
    OpId op;
    const Operand* output = nullptr;
  };
  IdVector<TensorId, Written> written(graph.tensors.size());
  for (OpId op : graph.operators.ids()) {
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
    std::map<int, std::vector<int>> by_tasks;
    for (int s = 0; s < static_cast<int>(splits.size()); ++s) {
      // Into parts, an operator is cut for what a neighbour does (follow), or not at all.
      if (splits[s].tasks > devices_ || splits[s].parts > 1) continue;
      splits_[op].push_back(s);
      by_tasks[splits[s].tasks].push_back(s);
      for (std::size_t d = 0; d < splits[s].degrees.size(); ++d) {
        if (splits[s].degrees[d] > 1) divisible_[op] |= 1u << d;
      }
    }
    for (auto& [tasks, its] : by_tasks) splits_by_tasks_[op].push_back(std::move(its));
    if (splits_[op].empty()) {
      throw std::invalid_argument("the cost table has no split of operator '" +
                                  graph.operators[op].name + "' for this machine");
    }
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role == Role::output) {
        written[o.tensor] = {op, &o};
      } else if (o.role == Role::input && !written[o.tensor].op.none()) {
        const OpId other = written[o.tensor].op;
        const auto named = [&](OpId number, OpId its) {
          const std::size_t rank = problem.split(number, 0).degrees.size();
          return Neighbour{number, std::vector<int>(rank, -1), neighbours_[its].size()};
        };
        Neighbour producer = named(other, other), consumer = named(op, op);
        match(graph, *written[o.tensor].output, o, producer, consumer);
        neighbours_[op].push_back(std::move(producer));
        neighbours_[other].push_back(std::move(consumer));
      }
    }
  }
  if (operators_.empty()) throw std::invalid_argument("the graph has no operator to train");
}

std::vector<int> Proposals::random_devices(Random& random, int tasks) const {
  std::vector<int> devices(static_cast<std::size_t>(tasks));
  if (problem_.in_order) {
    std::iota(devices.begin(), devices.end(), 0);
    return devices;
  }
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

Sums Proposals::random_sums(Random& random, OpId op, int split) const {
  const bool choice = problem_.split(op, split).can_sum_by_shards;
  return choice && random.chance(0.5) ? Sums::shards : Sums::readers;
}

// First how many tasks, then one of the splits into so many. The more dimensions an operator has,
// the more of its splits make as many tasks as there are devices: if each were as likely, most
// proposals would be of these, which take longest to simulate.
PricedConfig Proposals::random_config(Random& random, OpId op) const {
  const auto& by_tasks = splits_by_tasks_[op];
  const auto& splits = by_tasks[random.below(static_cast<int>(by_tasks.size()))];
  PricedConfig config;
  config.split = splits[random.below(static_cast<int>(splits.size()))];
  config.sums = random_sums(random, op, config.split);
  config.devices = random_devices(random, problem_.split(op, config.split).tasks);
  return config;
}

// Takes a neighbour's devices, and its degrees as far as the operator can be split by them.
bool Proposals::copy_neighbour(Random& random, OpId op, const PricedStrategy& strategy,
                               PricedConfig& config) const {
  const auto& neighbours = neighbours_[op];
  if (neighbours.empty()) return false;
  const Neighbour& other = neighbours[random.below(static_cast<int>(neighbours.size()))];
  const PricedConfig& theirs = strategy[other.op];
  if (!(random.chance(0.7) && follow(random, op, other, theirs, config)) &&
      !take_degrees(op, other, theirs, config)) {
    return false;
  }
  config.sums = random_sums(random, op, config.split);
  return true;
}

// Splits `op` along the dimensions that go with the neighbour's, and puts each task where the
// neighbour's task of the same part is. What the neighbour splits besides (a dimension that is not
// in the tensor, such as one it reduces) splits any other dimension, and its parts go on in order.
bool Proposals::follow(Random& random, OpId op, const Neighbour& neighbour,
                       const PricedConfig& theirs, PricedConfig& config) const {
  const std::vector<int>& degrees = problem_.split(neighbour.op, theirs.split).degrees;
  std::vector<int> mine(problem_.split(op, 0).degrees.size(), 1);
  std::array<int, kMaxRegionRank> followed;  // a dimension of mine: which of theirs it goes with
  followed.fill(-1);
  const auto take = [&](int d, int e) {
    mine[d] = degrees[e];
    followed[d] = e;
  };
  const int rank = static_cast<int>(mine.size());
  std::array<bool, kMaxRegionRank>
      goes{};  // a dimension of theirs: whether it goes with one of mine
  for (int e = 0; e < static_cast<int>(degrees.size()); ++e) {
    int along = neighbour.followers[e];
    // Partial values stay apart, if there are any, or are combined by whoever reads them.
    const bool apart = along >= 0 && along == problem_.graph.operators[op].part();
    if (degrees[e] == 1 || (apart && (theirs.sums == Sums::shards || random.chance(0.5)))) {
      along = -1;
    }
    if (along >= 0) take(along, e);
    goes[e] = along >= 0;
  }
  for (int e = 0; e < static_cast<int>(degrees.size()); ++e) {
    if (degrees[e] == 1 || goes[e]) continue;
    std::array<int, kMaxRegionRank> free;
    int count = 0;
    for (int d = 0; d < rank; ++d) {
      if (followed[d] < 0 && (divisible_[op] >> d & 1u) != 0) free[count++] = d;
    }
    if (count > 0) take(free[random.below(count)], e);
  }
  const auto& table = problem_.costs.number_of[problem_.costs.class_of[op]];
  const auto its = table.find(mine);
  if (its == table.end()) return false;
  config.split = its->second;
  const int tasks = problem_.split(op, config.split).tasks;
  std::array<int, kMaxRegionRank> stride;  // of theirs, in tasks
  int volume = 1;
  for (int e = static_cast<int>(degrees.size()) - 1; e >= 0; --e) {
    stride[e] = volume;
    volume *= degrees[e];
  }
  if (problem_.in_order && tasks > devices_) return false;
  config.devices.resize(static_cast<std::size_t>(tasks));
  if (problem_.in_order) {
    std::iota(config.devices.begin(), config.devices.end(), 0);
    return true;
  }
  for (int k = 0; k < tasks; ++k) {
    int rest = k, task = 0;
    for (int d = rank - 1; d >= 0; --d) {
      if (followed[d] >= 0) task += rest % mine[d] * stride[followed[d]];
      rest /= mine[d];
    }
    config.devices[k] = theirs.devices[task];
  }
  return true;
}

// As many tasks as the neighbour has on the same devices: of the same degrees, or along the first
// dimension that can be cut into so many parts.
bool Proposals::take_degrees(OpId op, const Neighbour& neighbour, const PricedConfig& theirs,
                             PricedConfig& config) const {
  const Split& split = problem_.split(neighbour.op, theirs.split);
  const std::size_t rank = problem_.split(op, 0).degrees.size();
  const auto& table = problem_.costs.number_of[problem_.costs.class_of[op]];
  config.devices = theirs.devices;
  if (split.degrees.size() == rank) {
    const auto same = table.find(split.degrees);
    if (same != table.end() && problem_.split(op, same->second).parts == 1) {
      config.split = same->second;
      return true;
    }
  }
  for (std::size_t d = 0; d < rank; ++d) {
    std::vector<int> degrees(rank, 1);
    degrees[d] = split.tasks;
    const auto along = table.find(degrees);
    if (along == table.end() || problem_.split(op, along->second).parts > 1) continue;
    config.split = along->second;
    return true;
  }
  return false;
}

// Goes on with a change to operators around it, each of which follows the one that it was reached
// from: to one or many, as far as a pair of layers, or a block of them.
void Proposals::spread(Random& random, bool tied, PartialStrategy& configs) const {
  const int most = 2 << random.below(4);
  IdVector<OpId, char> changed(groups_.size(), 0);
  PartialStrategy reached;
  const auto reach = [&](OpId op, const PricedConfig& config) {
    const std::vector<OpId> alone{op};
    for (OpId member : tied ? members(op) : alone) {
      changed[member] = 1;
      if (!reached.empty()) configs.emplace_back(member, config);
    }
    reached.emplace_back(op, config);
  };
  reach(configs.front().first, PricedConfig(configs.front().second));
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const auto [from, theirs] = reached[i];
    const auto& around = neighbours_[from];
    const int count = static_cast<int>(around.size());
    const int first = count > 0 ? random.below(count) : 0;
    for (int n = 0; n < count && static_cast<int>(reached.size()) < most; ++n) {
      const Neighbour& there = around[(first + n) % count];
      PricedConfig config;
      if (changed[there.op] ||
          !follow(random, there.op, neighbours_[there.op][there.back], theirs, config)) {
        continue;
      }
      config.sums = random_sums(random, there.op, config.split);
      reach(there.op, config);
    }
  }
}

PartialStrategy Proposals::draw_uniform(Random& random) const {
  const OpId op = operators_[random.below(static_cast<int>(operators_.size()))];
  all_of_class_.resize(groups_.size());
  std::vector<PricedConfig>& configs = all_of_class_[problem_.costs.class_of[op]];
  if (configs.empty()) configs = all(op);
  return {{op, configs[random.below(static_cast<int>(configs.size()))]}};
}

PartialStrategy Proposals::draw(Random& random, const PricedStrategy& strategy, const Moves& moves,
                                const std::vector<OpId>& critical) const {
  if (moves.uniform) return draw_uniform(random);
  OpId op;
  if (moves.critical && !critical.empty() && random.chance(0.5)) {
    op = critical[random.below(static_cast<int>(critical.size()))];
  } else {
    op = operators_[random.below(static_cast<int>(operators_.size()))];
  }
  PricedConfig config;
  bool found = false;
  if (moves.neighbours && random.chance(0.3)) {
    found = copy_neighbour(random, op, strategy, config);
  } else if (random.chance(0.3)) {
    // The degrees stay; who combines partial values changes, or the devices.
    const PricedConfig& mine = strategy[op];
    const int tasks = static_cast<int>(mine.devices.size());
    config = mine;
    if (problem_.split(op, mine.split).can_sum_by_shards && random.chance(0.3)) {
      config.sums = mine.sums == Sums::shards ? Sums::readers : Sums::shards;
      found = true;
    } else if (!problem_.in_order && tasks <= devices_) {
      config.devices = random_devices(random, tasks);
      found = true;
    }
  }
  if (!found) config = random_config(random, op);
  PartialStrategy configs;
  if (moves.tied) {
    for (OpId member : members(op)) configs.emplace_back(member, config);
  } else {
    configs.emplace_back(op, std::move(config));
  }
  if (!problem_.in_order && std::is_sorted(configs.front().second.devices.begin(),
                                           configs.front().second.devices.end())) {
    make_canonical(strategy, configs);
  }
  if (moves.neighbours && random.chance(kTogether)) spread(random, moves.tied, configs);
  return configs;
}

std::vector<PricedConfig> Proposals::all(OpId op) const {
  std::vector<PricedConfig> configs;
  for (int s : splits_[op]) {
    const std::size_t first = configs.size();
    const int tasks = problem_.split(op, s).tasks;
    for (std::vector<int>& devices : device_sets(tasks)) {
      configs.push_back({s, Sums::readers, std::move(devices)});
    }
    if (!problem_.split(op, s).can_sum_by_shards) continue;
    const std::size_t last = configs.size();
    for (std::size_t i = first; i < last; ++i) {
      configs.push_back({s, Sums::shards, configs[i].devices});
    }
  }
  return configs;
}

std::vector<std::vector<int>> Proposals::device_sets(int tasks) const {
  std::vector<std::vector<int>> sets;
  std::vector<int> devices(static_cast<std::size_t>(tasks));
  if (problem_.in_order) {
    std::iota(devices.begin(), devices.end(), 0);
    return {devices};
  }
  if (devices_ <= kAllSubsets) {
    std::iota(devices.begin(), devices.end(), 0);
    while (true) {
      sets.push_back(devices);
      int k = tasks - 1;
      while (k >= 0 && devices[k] == devices_ - tasks + k) --k;
      if (k < 0) return sets;
      ++devices[k];
      for (int j = k + 1; j < tasks; ++j) devices[j] = devices[j - 1] + 1;
    }
  }
  for (int start = 0; start + tasks <= devices_; start += tasks) {
    std::iota(devices.begin(), devices.end(), start);
    sets.push_back(devices);
  }
  const int stride = devices_ / tasks;
  for (int start = 0; stride > 1 && start < stride; ++start) {
    for (int k = 0; k < tasks; ++k) devices[k] = start + k * stride;
    sets.push_back(devices);
  }
  return sets;
}

}  // namespace flexlegion
