// The flows of FlowRules that weights have: gradients to updates, by way of launches before them
// that read the same gradients, and updated shards to who reads them next. And the flows of the
// iteration's fields.
#include <algorithm>
#include <utility>

#include "sim/charges.h"
#include "sim/flow_rules.h"

namespace flexlegion {

namespace {

// Of an element of the iteration's fields.
constexpr std::int64_t kElementBytes = element_bytes(kStateType);

}  // namespace

Flow FlowRules::weights(const FlowId& id) {
  const OpId op = id.op;
  const Graph& graph = problem_.graph;
  const auto& operands = graph.operators[op].operands;
  const std::vector<int> owned = problem_.facts.owned_weights(graph, op);
  const std::vector<ShardTask>& tasks = updates_of(op);
  const int update = launch_graph_.closing[op].back();
  begin(id);
  const int party = party_of_launch_[update];
  const int reader = party_of_launch_[id.fed.front()];  // the update, or a launch before it
  std::vector<UpdateBytes> bytes(tasks.size());
  int stack = 0;
  for (int w = 0; w < static_cast<int>(owned.size()); ++w) {
    const TensorId tensor = operands[owned[w]].tensor;
    const bool is_table = problem_.facts.is_table(tensor);
    for (const GradientSource& source : gradient_sources(problem_, tensor)) {
      add_contributions(source.tensor, id);
      for (int j = 0; j < static_cast<int>(tasks.size()); ++j) {
        for (const auto& [weight, shard] : tasks[j].shards) {
          if (weight != w) continue;
          const Rect rect = gradient_rect(graph, source, shard);
          bytes[j].gather(problem_, source.tensor,
                          gather_shard(source.tensor, rect, tasks[j].device, {reader, j}, stack));
          box_stack(source.tensor, memory_of(tasks[j].device), rect);
        }
      }
      end_reading(reader);
      hold_boxes(is_table ? Content::gradient : Content::weight_gradient,
                 gradient_bytes(source.tensor));
      stack += static_cast<int>(pieces_.size());
    }
    for (int j = 0; j < static_cast<int>(tasks.size()); ++j) {
      for (const auto& [weight, shard] : tasks[j].shards) {
        if (weight != w) continue;
        bytes[j].change(problem_, tensor, shard);
        box(memory_of(tasks[j].device), shard, true);
      }
    }
    hold_boxes(Content::optimizer_state, element_bytes(kStateType),
               problem_.facts.optimizer.states_of(graph.tensors[tensor]));
    return_weight(tensor, w, tasks, builder_.writer(party, 0), stack++);
  }
  apart_[party] = apart_[reader];
  Flow flow = finish(id);
  flow.fed_times.resize(id.fed.size());
  for (std::size_t j = 0; j < tasks.size(); ++j) {
    const int device = tasks[j].device;
    for (std::vector<std::int64_t>& times : flow.fed_times) {
      const bool updates = &times == &flow.fed_times.back();
      times.push_back(updates ? bytes[j].update_time(problem_, device)
                              : bytes[j].norm_time(problem_, device));
    }
  }
  return flow;
}

// Each task that writes the field writes an element, and each task that reads it reads all
// elements. What it was given for an element that it wrote itself does not do for that, if there
// are several.
Flow FlowRules::iteration(const FlowId& id) {
  begin(id);
  int count = 0;
  for (int party = 0; party < id.writers; ++party) {
    count += static_cast<int>(blocks_[id.parties[party]].device.size());
  }
  const Rect all = Rect::of_shape({count});
  FlowBuilder::Need need{kElementBytes};
  need.reads = geometry_.id_of(all);
  need.partition = kShards;
  need.volume = 1;
  Rect mine = Rect::of_shape({1});
  for (int writer = 0; writer < id.writers; ++writer) {
    const auto& devices = blocks_[id.parties[writer]].device;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      need.wrote = geometry_.id_of(mine);
      for (int party = id.writers; party < static_cast<int>(id.parties.size()); ++party) {
        const auto& readers = blocks_[id.parties[party]].device;
        for (int j = 0; j < static_cast<int>(readers.size()); ++j) {
          builder_.need(builder_.writer(writer, k), need, memory_of(readers[j]), {party, j});
        }
      }
      box(memory_of(devices[k]), mine, true);
      ++mine.lo[0];
      ++mine.hi[0];
    }
  }
  for (int party = id.writers; party < static_cast<int>(id.parties.size()); ++party) {
    const auto& devices = blocks_[id.parties[party]].device;
    for (int device : devices) box(memory_of(device), all, false);
    if (count > 1 || devices.size() > 1) set_apart(party, id.writers - 1);
  }
  hold_boxes(Content::weight_gradient, kElementBytes);
  Flow flow = finish(id);
  flow.fed_times.resize(id.fed.size());
  for (std::size_t i = 0; i < id.fed.size(); ++i) {
    for (int device : blocks_[id.fed[i]].device) {
      flow.fed_times[i].push_back(update_time(problem_, device, count * kElementBytes));
    }
  }
  return flow;
}

// The partial gradients of a tensor that an update task sums for one shard; returns their
// elements.
std::int64_t FlowRules::gather_shard(TensorId tensor, const Rect& shard, int device, TaskRef task,
                                     int first_stack) {
  const int memory = memory_of(device);
  const int id = geometry_.id_of(shard);
  const std::int64_t own = shard.volume();
  std::int64_t elements = 0;
  int rect = -1;  // the last piece's, for most have the same
  std::int64_t volume = 0;
  for (int p = 0; p < static_cast<int>(pieces_.size()); ++p) {
    const Contributions::Piece& last = contributions_.pieces()[p];
    if (last.rect != rect) {
      rect = last.rect;
      volume = geometry_.rect(rect).intersect(shard).volume();
    }
    if (volume == 0) continue;
    elements += volume;
    read_piece(p, task.part, volume, own);
    FlowBuilder::Need need{gradient_bytes(tensor)};
    need.stack = first_stack + p;
    need.wrote = rect;
    need.reads = id;
    need.partition = kShards;
    need.volume = volume;
    builder_.need(builder_.writer(party_of_launch_[last.launch], last.part), need, memory, task);
  }
  reading_.alike = reading_.alike && elements == own;
  return elements;
}

// What the next iteration's readers need of the updated shards.
void FlowRules::return_weight(TensorId tensor, int weight, const std::vector<ShardTask>& tasks,
                              int first_writer, int stack) {
  // Rectangles that each memory reads, once each.
  returns_.clear();
  for (const auto& [op, operand] : launch_graph_.readers[tensor]) {
    const PricedConfig& config = configs_[op];
    const Partition& partition = geometry_.partition(op, operand, config.split);
    for (int k = 0; k < static_cast<int>(config.devices.size()); ++k) {
      const int mine = partition.parts.of_part[k];
      if (partition.ids[mine] < 0) continue;
      const int memory = memory_of(config.devices[k]);
      auto& seen = returned_[memory];
      if (std::find(seen.begin(), seen.end(), partition.ids[mine]) != seen.end()) continue;
      if (seen.empty()) returned_memories_.push_back(memory);
      seen.push_back(partition.ids[mine]);
      returns_.push_back({memory, partition.ids[mine], partition.disjoint ? partition.number : -1});
      box(memory, partition.parts.rects[mine], false);
    }
  }
  for (const OperandRef& use : launch_graph_.other_readers[tensor]) box_weight(use, false);
  for (int memory : returned_memories_) returned_[memory].clear();
  returned_memories_.clear();
  for (int j = 0; j < static_cast<int>(tasks.size()); ++j) {
    for (const auto& [which, shard] : tasks[j].shards) {
      if (which != weight) continue;
      box(memory_of(tasks[j].device), shard, true);
      const int id = geometry_.id_of(shard);
      int rect = -1;
      std::int64_t volume = 0;
      for (const Return& r : returns_) {
        if (r.memory == memory_of(tasks[j].device)) continue;
        if (r.rect != rect) {
          rect = r.rect;
          volume = geometry_.rect(rect).intersect(shard).volume();
        }
        if (volume == 0) continue;
        builder_.need(first_writer + j,
                      {value_bytes(tensor), stack, id, r.rect, r.partition, volume}, r.memory, {});
      }
    }
  }
  hold_boxes(Content::weight, value_bytes(tensor));
}

// The tasks of an operator hold what they read of a weight; they write it as well, if it is the
// operator's state.
void FlowRules::box_weight(const OperandRef& reader, bool state) {
  const PricedConfig& config = configs_[reader.op];
  const Partition& partition = geometry_.partition(reader.op, reader.operand, config.split);
  for (int k = 0; k < static_cast<int>(config.devices.size()); ++k) {
    box(memory_of(config.devices[k]), partition.of_task(k), state);
  }
}

Flow FlowRules::kept(const FlowId& id) {
  const Tensor& tensor = problem_.graph.tensors[id.tensor];
  if (tensor.kind != TensorKind::weight) return untrained(id);
  begin(id);
  for (const auto* readers : {&launch_graph_.readers, &launch_graph_.other_readers}) {
    for (const OperandRef& use : (*readers)[id.tensor]) box_weight(use, tensor.is_state);
  }
  for (OpId op : launch_graph_.lookups_of[id.tensor]) {
    const OpId owner = problem_.facts.owner[problem_.facts.table[op]];
    const int update = launch_graph_.closing[owner].back();
    for (int device : blocks_[update].device) {
      box(memory_of(device), looked_up_tokens(problem_.graph, op), false);
    }
  }
  hold_boxes(Content::weight, value_bytes(id.tensor));
  return finish(id);
}

}  // namespace flexlegion
