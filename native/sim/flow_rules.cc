#include "sim/flow_rules.h"

#include <algorithm>
#include <utility>

#include "sim/charges.h"

namespace flexlegion {

namespace {

// What may be spent on flows that are not in use. Beyond, all of them are given up.
constexpr std::int64_t kCachedBytes = std::int64_t{256} << 20;

// The flow of partial values that nobody sums before they are read. There is one for all: many
// operators could be split so, few are.
FlowPtr no_partial_flow() {
  Flow flow;
  flow.transfers.resize(1);
  flow.bounds.resize(2);
  flow.apart.assign(2, -1);
  return std::make_shared<const Flow>(std::move(flow));
}

}  // namespace

FlowRules::FlowRules(const Problem& problem, const LaunchGraph& launch_graph,
                     const PricedStrategy& configs, const std::vector<Block>& blocks)
    : problem_(problem),
      launch_graph_(launch_graph),
      configs_(configs),
      blocks_(blocks),
      geometry_(problem),
      builder_(problem.machine, geometry_),
      no_partial_(no_partial_flow()),
      updates_(problem.graph.operators.size()),
      sums_(problem.graph.operators.size()),
      party_of_launch_(launch_graph.launches.size(), -1),
      returned_(static_cast<std::size_t>(problem.machine.memories)),
      boxes_(static_cast<std::size_t>(problem.machine.memories)) {}

Block FlowRules::block(int launch) {
  Block block = without_contention(launch);
  if (!problem_.costs.contended) return block;
  for (int k = 0; k < static_cast<int>(block.device.size()); ++k) {
    block.contention.push_back(contention(launch, block.device[k], k));
  }
  return block;
}

std::int32_t FlowRules::contention(int launch, int device, int part) const {
  const int kind = problem_.machine.kind_of[device];
  const LaunchKey& key = launch_graph_.launches[launch];
  const PassRow& row = row_of(key.pass);
  if (row.price == Price::of_bytes) return problem_.costs.of_bytes(key.pass, kind).contention;
  return problem_.split(key.op, configs_[key.op].split).contention(key.pass, kind, part);
}

Block FlowRules::without_contention(int launch) {
  const MachineModel& machine = problem_.machine;
  const auto [pass, op, loaded, field, round] = launch_graph_.launches[launch];
  Block block;
  const PassRow& row = row_of(pass);
  // All of their time depends on what flows bring: that of weights, or those of the iteration.
  if (row.closing) {
    for (const ShardTask& task : updates_of(op)) block.device.push_back(task.device);
    if (row.of == Of::iteration) block.device.resize(1);
    block.exe_time.assign(block.device.size(), 0);
    return block;
  }
  if (row.of == Of::input) {
    block.device = load_devices(loaded);
    block.exe_time = load_times(problem_, geometry_, loaded, block.device);
    return block;
  }
  const PricedConfig& config = configs_[op];
  const Split& split = problem_.split(op, config.split);
  if (row.price == Price::of_bytes) {  // those of partial values, which tasks combine
    for (const ShardTask& task : sums_of(op)) {
      block.device.push_back(task.device);
      block.exe_time.push_back(sum_task_time(problem_, op, split.partial_values, task));
    }
    return block;
  }
  block.device = config.devices;
  for (int k = 0; k < split.tasks; ++k) {
    block.exe_time.push_back(split.time(pass, machine.kind_of[block.device[k]], k));
  }
  return block;
}

// The tasks that share out operands of an operator, as it is configured. Several launches and flows
// ask for them.
const std::vector<ShardTask>& FlowRules::sharded(IdVector<OpId, Sharded>& known, OpId op,
                                                 const std::vector<int>& operands) {
  Sharded& its = known[op];
  if (!(its.config == configs_[op])) {
    its.config = configs_[op];
    its.tasks = shard_tasks_of(problem_, geometry_, op, operands, its.config);
  }
  return its.tasks;
}

const std::vector<ShardTask>& FlowRules::updates_of(OpId op) {
  return sharded(updates_, op, problem_.facts.owned_weights(problem_.graph, op));
}

const std::vector<ShardTask>& FlowRules::sums_of(OpId op) {
  static const std::vector<ShardTask> none;
  if (configs_[op].sums == Sums::readers) return none;
  return sharded(sums_, op, problem_.graph.operators[op].outputs());
}

FlowPtr FlowRules::flow(int f) {
  const FlowId& id = launch_graph_.flows[f];
  if (id.kind == FlowKind::weights) return std::make_shared<const Flow>(weights(id));
  if (id.kind == FlowKind::iteration) return std::make_shared<const Flow>(iteration(id));
  if (id.kind == FlowKind::kept) return std::make_shared<const Flow>(kept(id));
  if (id.kind == FlowKind::partial && configs_[id.ops.front()].sums == Sums::readers) {
    return no_partial_;
  }
  const bool shared = launch_graph_.group_sizes[id.group] > 1;
  const Key key = shared ? key_of(id) : Key{};
  if (shared) {
    const auto found = built_.find(key);
    if (found != built_.end()) return found->second;
  }
  auto flow = std::make_shared<const Flow>(id.kind == FlowKind::value     ? value(id)
                                           : id.kind == FlowKind::partial ? partial(id)
                                                                          : gradient(id));
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

// 128 bits, so that two different keys do not meet in the life of a search.
FlowRules::Key FlowRules::key_of(const FlowId& id) const {
  Key key{0x9E3779B97F4A7C15u, static_cast<std::uint64_t>(id.group)};
  const auto mix = [&key](std::uint64_t value) {
    key.first = (key.first ^ value) * 0xFF51AFD7ED558CCDu;
    key.first ^= key.first >> 32;
    key.second = (key.second + value) * 0xC4CEB9FE1A85EC53u;
    key.second ^= key.second >> 29;
  };
  mix(static_cast<std::uint64_t>(id.group));
  for (OpId op : id.ops) {
    mix(2 * static_cast<std::uint64_t>(configs_[op].split) + 1 +
        (configs_[op].sums == Sums::shards));
    for (int device : configs_[op].devices) mix(static_cast<std::uint64_t>(device) + 3);
  }
  return key;
}

void FlowRules::begin(const FlowId& id) {
  std::vector<int> parts;
  for (int party = 0; party < static_cast<int>(id.parties.size()); ++party) {
    party_of_launch_[id.parties[party]] = party;
    if (party < id.writers) {
      parts.push_back(static_cast<int>(blocks_[id.parties[party]].device.size()));
    }
  }
  builder_.begin(parts);
  apart_.assign(id.parties.size(), -1);
  writing_ = {0, id.writers};
  for (int party = 0; party < id.writers; ++party) {
    const auto& devices = blocks_[id.parties[party]].device;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      builder_.set_memory(builder_.writer(party, k), memory_of(devices[k]));
    }
  }
}

Flow FlowRules::finish(const FlowId& id) {
  // Of each party, how many tasks wait for what the flow brings; 0 where bounds do not use it.
  std::vector<int> reading(id.parties.size(), 0);
  for (std::size_t p = 0; p < reading.size(); ++p) {
    if (!id.waits(static_cast<int>(p))) continue;
    reading[p] = static_cast<int>(blocks_[id.parties[p]].device.size());
  }
  Flow flow = builder_.finish(reading, writing_);
  flow.apart = apart_;
  return flow;
}

const Partition& FlowRules::writer_partition(TensorId tensor) {
  const auto [op, operand] = launch_graph_.producers[tensor];
  if (!op.none()) return geometry_.partition(op, operand, configs_[op].split);
  return geometry_.load_partition(tensor, static_cast<int>(load_devices(tensor).size()));
}

std::vector<int> FlowRules::load_devices(TensorId tensor) const {
  const LoadSource& source = launch_graph_.load_sources[tensor];
  const PricedConfig& reader = configs_[source.first_reader];
  return load_config(problem_.graph, source,
                     problem_.split(source.first_reader, reader.split).degrees, reader.devices)
      .devices;
}

void FlowRules::box(int memory, const Rect& rect, bool written) {
  if (rect.empty()) return;
  Boxes& boxes = boxes_[memory];
  if (boxes.read.empty() && boxes.written.empty()) boxed_.push_back(memory);
  Rect& mine = written ? boxes.written : boxes.read;
  mine = mine.bounding(rect);
}

// Counts the memory of a tensor's field, or of several alike (optimizer states), once its boxes are
// complete. The plan's rule says which instances follow from the boxes (rect.h).
void FlowRules::hold_boxes(Content content, std::int64_t element_bytes, int fields) {
  for (int memory : boxed_) {
    Boxes& boxes = boxes_[memory];
    builder_.hold(memory, content,
                  fields * held_elements(boxes.read, boxes.written) * element_bytes);
    boxes = {};
  }
  boxed_.clear();
}

// Fills contributions_ and pieces_, and orders those who add after whom they add to.
void FlowRules::add_contributions(TensorId tensor, const FlowId& id) {
  contributions_.clear();
  pieces_.clear();
  contributors_.clear();
  for (int party = 0; party < id.writers; ++party) {
    const int launch = id.parties[party];
    if (launch_graph_.launches[launch].pass != Pass::backward) continue;
    const OpId op = launch_graph_.launches[launch].op;
    const PricedConfig& config = configs_[op];
    const auto& operands = problem_.graph.operators[op].operands;
    for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
      if (operands[i].tensor != tensor || operands[i].role == Role::output) continue;
      // Of a linear input, the first part contributes for all.
      const Partition& partition = geometry_.partition(op, i, config.split, operands[i].linear);
      contributions_.next_requirement();
      const int number = static_cast<int>(contributors_.size());
      int pieces = 0, added = 0, before = -1;  // contributors
      bool alike = true;                       // task k adds to what task k of one of them wrote
      for (int k = 0; k < static_cast<int>(config.devices.size()); ++k) {
        const int mine = partition.parts.of_part[k];
        if (partition.ids[mine] < 0) continue;
        const Rect& rect = partition.parts.rects[mine];
        const auto entry =
            contributions_.add(partition.ids[mine], rect, config.devices[k], launch, k);
        ++pieces;
        if (entry.adds) {
          builder_.edge(builder_.writer(party_of_launch_[entry.earlier_launch], entry.earlier_part),
                        {party, k});
          int& contributor = pieces_[entry.piece].contributor;
          alike = alike && entry.earlier_part == k && (added == 0 || contributor == before);
          before = std::max(before, std::exchange(contributor, number));
          ++added;
        } else {
          pieces_.push_back({&partition, mine, number});
          const int slot = contributions_.pieces()[entry.piece].slot;
          box(memory_of(config.devices[k]), rect.in_slots(slot, slot + 1), true);
        }
      }
      contributors_.push_back({party, pieces});
      alike = alike && added == pieces && (added == 0 || contributors_[before].pieces == pieces);
      if (added > 0 && !alike) set_apart(party, contributors_[before].party);
    }
  }
}

// Task `part` of a launch reads so many elements of a piece, for a tile of `own` elements.
void FlowRules::read_piece(int piece, int part, std::int64_t elements, std::int64_t own) {
  const int contributor = pieces_[piece].contributor;
  reading_.alike = reading_.alike && elements == own &&
                   contributions_.pieces()[piece].part == part &&
                   (reading_.last < 0 || reading_.last == contributor);
  reading_.last = std::max(reading_.last, contributor);
}

// A party has told of all that its tasks read of a gradient.
void FlowRules::end_reading(int party) {
  if (!reading_.alike && reading_.last >= 0) {
    set_apart(party, contributors_[reading_.last].party);
  }
  reading_ = {};
}

void FlowRules::set_apart(int party, int writer) {
  apart_[party] = std::max(apart_[party], writer);
}

// A task reads, in that memory, a rectangle of the gradient that contributions_ describe.
void FlowRules::box_stack(TensorId tensor, int memory, const Rect& rect) {
  const Rect stacked = contributions_.stacked(rect);
  box(memory, stacked, false);
  const Rect whole = Rect::of_shape(problem_.graph.tensors[tensor].shape);
  if (!contributions_.fully_written(whole.volume())) {
    box(memory, stacked.in_all_slots(contributions_.slots()), true);
  }
}

Flow FlowRules::gradient(const FlowId& id) {
  begin(id);
  add_contributions(id.tensor, id);
  if (id.fed.empty()) {
    hold_boxes(Content::gradient, gradient_bytes(id.tensor));
    return finish(id);
  }
  const OpId op = launch_graph_.producers[id.tensor].op;
  const int reader = party_of_launch_[id.fed.front()];
  const Partition& partition = writer_partition(id.tensor);
  const Split& split = problem_.split(op, configs_[op].split);
  const int values = split.partial_values;
  // Of these tasks, one each reads.
  const int parts = problem_.facts.first_part_alone(problem_.graph.operators[op]) ? split.parts : 1;
  const auto& devices = configs_[op].devices;
  const std::int64_t bytes = gradient_bytes(id.tensor);
  std::vector<std::int64_t> partial(devices.size(), 0);  // bytes of all partial values
  for (int p = 0; p < static_cast<int>(pieces_.size()); ++p) {
    const Piece& piece = pieces_[p];
    const Contributions::Piece& last = contributions_.pieces()[p];
    const int writer = builder_.writer(party_of_launch_[last.launch], last.part);
    const Overlaps& overlaps = geometry_.relation(*piece.partition, partition).overlaps;
    for (int i = overlaps.first[piece.distinct]; i < overlaps.first[piece.distinct + 1]; ++i) {
      const RectIndex::Item& item = overlaps.items[i];
      FlowBuilder::Need need{bytes};
      need.stack = p;
      need.wrote = last.rect;
      need.reads = partition.ids[item.rect];
      need.partition = partition.disjoint ? partition.number : -1;
      need.volume = item.volume;
      // Of partial values of an output, each has the gradient of that output.
      for (int k = partition.first_task(item.rect, values); k <= partition.last_task[item.rect];
           k += parts) {
        builder_.need(writer, need, memory_of(devices[k]), {reader, k});
        read_piece(p, k, item.volume, partition.parts.rects[item.rect].volume());
        partial[k] += item.volume * bytes;
      }
    }
  }
  for (std::size_t k = 0; k < devices.size(); k += static_cast<std::size_t>(parts)) {
    const Rect& rect = partition.of_task(k);
    reading_.alike = reading_.alike && partial[k] == rect.volume() * bytes;
    if (!rect.empty()) box_stack(id.tensor, memory_of(devices[k]), rect);
  }
  end_reading(reader);
  hold_boxes(Content::gradient, gradient_bytes(id.tensor));
  Flow flow = finish(id);
  for (std::size_t k = 0; k < devices.size(); ++k) {
    const std::int64_t own = partition.of_task(k).volume() * bytes;
    const std::int64_t time = sum_time(problem_, devices[k], partial[k], own);
    if (time == 0) continue;
    if (flow.fed_times.empty()) flow.fed_times = {std::vector<std::int64_t>(devices.size(), 0)};
    flow.fed_times.front()[k] = time;
  }
  return flow;
}

}  // namespace flexlegion
