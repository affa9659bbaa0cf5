// The search space: which configurations each operator may have (candidates.h).
//
// An operator's splits are those of the cost table that make no more tasks than there are devices.
// Devices are sets: task k runs on the k-th device in ascending order, or as dimensions take turns
// in another order, unless a move follows a neighbour task by task. With up to 8 devices every set
// can be tried; with more, blocks and strides stand for them, since they are the sets that share
// nodes and links.
//
// Neighbours are matched once by their access maps: a dimension of the producer goes along with one
// of the consumer if both index the same dimension of the tensor between them. Split alike in these
// dimensions, every consumer task finds its input in its own memory.
#include "search/candidates.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace flexlegion {

namespace {

constexpr double kOtherOrder = 0.25;  // the share of draws in which dimensions take turns
constexpr int kAllSubsets = 8;        // devices; with more, there are too many sets to try each

// Fills in which dimensions of a producer and a consumer go along with each other in the tensor
// between them. What the producer reduces goes along with the parts of a linear input.
void match(const Graph& graph, const Operand& written, const Operand& read, Neighbour& producer,
           Neighbour& consumer) {
  const Operator& before = graph.operators[producer.op];
  const Operator& after = graph.operators[consumer.op];
  // A producer that is cut along what it reduces gives partial values. A consumer that is linear in
  // them can work on each apart: its parts follow that cut.
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

}  // namespace

Candidates::Candidates(const Problem& problem, IdVector<OpId, int> groups)
    : problem_(problem), devices_(problem.machine.devices()), groups_(std::move(groups)) {
  const Graph& graph = problem.graph;
  splits_.resize(graph.operators.size());
  splits_by_tasks_.resize(graph.operators.size());
  divisible_.resize(graph.operators.size());
  hierarchical_.resize(graph.operators.size());
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
    if (!members.empty() &&
        graph.operators[members.front()].dims.size() != graph.operators[op].dims.size()) {
      throw std::invalid_argument("operators '" + graph.operators[op].name + "' and '" +
                                  graph.operators[members.front()].name +
                                  "' are tied, but have other dimensions");
    }
    members.push_back(op);
    const auto& splits = problem.costs.splits[problem.costs.class_of[op]];
    // In lists of equal numbers of tasks, for any_config() draws that number first.
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
    hierarchical_[op] = flexlegion::can_be_hierarchical(problem, op);
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

// Tasks are numbered with the last dimension the fastest, so its parts are on devices that stand
// side by side, of one node mostly. Which dimension should be there depends on what its parts
// exchange. So in a quarter of the draws, dimensions take turns in a random order.
std::vector<int> Candidates::random_devices(Random& random, const Split& split) const {
  std::vector<int> devices = random_set(random, split.tasks);
  if (problem_.in_order || devices_ <= kAllSubsets) return devices;
  std::vector<int> cut;  // dimensions
  for (int d = 0; d < static_cast<int>(split.degrees.size()); ++d) {
    if (split.degrees[d] > 1) cut.push_back(d);
  }
  if (cut.size() < 2 || !random.chance(kOtherOrder)) return devices;
  std::vector<int> order = cut;
  for (int i = static_cast<int>(order.size()) - 1; i > 0; --i) {
    std::swap(order[i], order[random.below(i + 1)]);
  }
  const std::vector<int> set = devices;
  std::vector<int> part(split.degrees.size());
  for (int k = 0; k < split.tasks; ++k) {
    int rest = k;
    for (auto d = cut.rbegin(); d != cut.rend(); ++d) {
      part[*d] = rest % split.degrees[*d];
      rest /= split.degrees[*d];
    }
    int place = 0;
    for (int d : order) place = place * split.degrees[d] + part[d];
    devices[k] = set[place];
  }
  return devices;
}

// Half of the draws are blocks and a quarter strides: most good strategies keep an operator's tasks
// on near devices, but any set can be drawn, so the chain can reach every strategy.
std::vector<int> Candidates::random_set(Random& random, int tasks) const {
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
      // Selection sampling: each device is taken with probability (still to take) / (still to see),
      // which makes all sets equally likely.
      if (random.below(devices_ - d) >= left) continue;
      *next++ = d;
      --left;
    }
  }
  return devices;
}

// Members of a group need not be of one class: the first step of a recurrent layer has no step
// before it. They get the same degrees, unless they cannot be split so.
PartialStrategy Candidates::changes(OpId op, const PricedConfig& config, bool tied) const {
  PartialStrategy configs{{op, config}};
  configs.back().second.hierarchical = config.hierarchical && hierarchical_[op];
  if (!tied) return configs;
  const auto& class_of = problem_.costs.class_of;
  const std::vector<int>& degrees = problem_.split(op, config.split).degrees;
  for (OpId member : members(op)) {
    if (member == op) continue;
    PricedConfig its = config;
    its.hierarchical = config.hierarchical && hierarchical_[member];
    if (class_of[member] != class_of[op]) {
      const auto& numbers = problem_.costs.number_of[class_of[member]];
      const auto found = numbers.find(degrees);
      if (found == numbers.end()) continue;
      its.split = found->second;
      if (!problem_.split(member, its.split).can_sum_by_shards) its.sums = Sums::readers;
    }
    configs.emplace_back(member, std::move(its));
  }
  return configs;
}

void Candidates::choose_sums(Random& random, OpId op, PricedConfig& config) const {
  constexpr double kHierarchical = 0.75;  // which is seldom worse
  const bool choice = problem_.split(op, config.split).can_sum_by_shards;
  config.sums = choice && random.chance(0.5) ? Sums::shards : Sums::readers;
  config.hierarchical = hierarchical_[op] && random.chance(kHierarchical);
}

std::vector<PricedConfig> Candidates::all(OpId op) const {
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
  const std::size_t direct = hierarchical_[op] ? configs.size() : 0;
  for (std::size_t i = 0; i < direct; ++i) {
    configs.push_back(configs[i]);
    configs.back().hierarchical = true;
  }
  return configs;
}

std::vector<std::vector<int>> Candidates::device_sets(int tasks) const {
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
      // The next subset in lexicographic order: the last element that can still grow does, and
      // those after it follow closely.
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
