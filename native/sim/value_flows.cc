// The flows of FlowRules that values of inputs and activations have: from who wrote them to who
// reads them; and where sum launches combine partial values, from who wrote these to who sums. Of
// what prediction computes, what is held.
#include <algorithm>

#include "sim/charges.h"
#include "sim/flow_rules.h"

namespace flexlegion {

// How a tensor's value was written, as its producer is configured.
void FlowRules::find_written(TensorId tensor) {
  const auto [op, output] = launch_graph_.producers[tensor];
  written_.tiles = &writer_partition(tensor);
  written_.bytes = value_bytes(tensor);
  written_.values = op.none() ? 1 : problem_.split(op, configs_[op].split).partial_values;
  written_.summed = !op.none() && configs_[op].sums == Sums::shards;
  written_.is_sum =
      op.none() || problem_.graph.operators[op].operands[output].combine == Combine::sum;
  written_.index.reset();
  if (!written_.summed) return;
  const std::vector<int> outputs = problem_.graph.operators[op].outputs();
  const std::vector<ShardTask>& tasks = sums_of(op);
  Rect none;
  none.rank = static_cast<int>(problem_.graph.tensors[tensor].shape.size());
  written_.shards.assign(tasks.size(), none);
  for (std::size_t j = 0; j < tasks.size(); ++j) {
    for (const auto& [which, shard] : tasks[j].shards) {
      if (outputs[static_cast<std::size_t>(which)] == output) written_.shards[j] = shard;
    }
  }
  written_.index.emplace(written_.shards);
}

// The tasks on `devices` that computed the tensor write its tiles: each partial value in a slot.
void FlowRules::box_tiles(const std::vector<int>& devices) {
  for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
    const Rect& mine = written_.tiles->of_task(k);
    const int slot = k % written_.values;
    box(memory_of(devices[k]), written_.values == 1 ? mine : mine.in_slots(slot, slot + 1), true);
  }
}

// The sum tasks of the tensor's producer write their shards.
void FlowRules::box_summed(OpId op) {
  const std::vector<ShardTask>& tasks = sums_of(op);
  for (std::size_t j = 0; j < tasks.size(); ++j) {
    box(memory_of(tasks[j].device), written_.shards[j], true);
  }
}

// Whoever read the tensor in training is told of. What remains are the others.
void FlowRules::hold_value(TensorId tensor) {
  for (const OperandRef& use : launch_graph_.other_readers[tensor]) {
    const Read read = read_of(use);
    const std::vector<int>& devices = configs_[use.op].devices;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      box(memory_of(devices[k]), as_read(read.partition->of_task(k), slots_of(read, k)), false);
    }
  }
  const bool loaded = launch_graph_.producers[tensor].op.none();
  if (loaded) {
    // The next batch is staged while the present one computes.
    for (int memory : boxed_) {
      builder_.hold(memory, Content::batch, boxes_[memory].written.volume() * value_bytes(tensor));
    }
  }
  hold_boxes(loaded ? Content::batch : Content::activation, value_bytes(tensor));
}

// How the value is read: the parts of a linear input share out the partial values of a sum; what is
// no such sum, the first part reads.
FlowRules::Read FlowRules::read_of(const OperandRef& use) {
  const int split = configs_[use.op].split;
  if (!problem_.graph.operators[use.op].operands[use.operand].linear) {
    return {&geometry_.partition(use.op, use.operand, split)};
  }
  if (values_read() == 1 || !written_.is_sum) {
    return {&geometry_.partition(use.op, use.operand, split, true)};
  }
  return {&geometry_.partition(use.op, use.operand, split), problem_.split(use.op, split).parts};
}

// The partial values that task k reads.
Slots FlowRules::slots_of(const Read& read, int k) const {
  return slots_of_part(written_.values, read.parts, k);
}

// What is read for a rectangle of the value: it, or partial values of it.
Rect FlowRules::as_read(const Rect& rect, const Slots& slots) const {
  return values_read() > 1 ? rect.in_slots(slots.first, slots.last) : rect;
}

// A task needs, of so many elements of a tile, these partial values.
void FlowRules::need_tile(int tile, FlowBuilder::Need need, const Slots& slots, int memory,
                          TaskRef reader) {
  need.wrote = written_.tiles->ids[tile];
  const int first = written_.tiles->first_task(tile, written_.values);
  for (need.stack = slots.first; need.stack < slots.last; ++need.stack) {
    builder_.need(builder_.writer(0, first + need.stack), need, memory, reader);
  }
}

// A task needs a rectangle of a value whose shards were summed.
void FlowRules::need_shards(const Rect& rect, FlowBuilder::Need need, int memory, TaskRef reader) {
  written_.index->visit(rect, [&](int task, std::int64_t volume) {
    need.wrote = geometry_.id_of(written_.shards[static_cast<std::size_t>(task)]);
    need.volume = volume;
    builder_.need(builder_.writer(1, task), need, memory, reader);
  });
}

// Whether each task has just been given what it reads.
bool FlowRules::is_given(const Read& read) const {
  const Partition& partition = *read.partition;
  const std::size_t tasks = partition.parts.of_part.size();
  if (written_.summed) {
    bool given = tasks == written_.shards.size();
    for (std::size_t k = 0; given && k < tasks; ++k) {
      given = written_.shards[k].contains(partition.of_task(static_cast<int>(k)));
    }
    return given;
  }
  if (read.parts == 1 || tasks != written_.tiles->parts.of_part.size()) return false;
  for (int k = 0; k < static_cast<int>(tasks); ++k) {
    const Slots slots = slots_of(read, k);
    const bool alone = slots.last - slots.first == 1 && slots.first == k % written_.values &&
                       written_.tiles->of_task(k).contains(partition.of_task(k));
    if (slots.first < slots.last && !alone) return false;
  }
  return true;
}

// The tasks of a launch, on `devices`, read the value.
void FlowRules::read_value(const Read& read, const std::vector<int>& devices, int party) {
  const Partition& partition = *read.partition;
  const auto& [overlaps, inside] = geometry_.relation(partition, *written_.tiles);
  const bool given = (inside && written_.values == 1) || is_given(read);
  if (!overlaps.items.empty() && !given) set_apart(party, writing_.first);
  for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
    const int mine = partition.parts.of_part[k];
    if (partition.ids[mine] < 0) continue;
    const Rect& rect = partition.parts.rects[mine];
    const int memory = memory_of(devices[k]);
    const Slots slots = slots_of(read, k);
    box(memory, as_read(rect, slots), false);
    FlowBuilder::Need need{written_.bytes};
    need.reads = partition.ids[mine];
    need.partition = partition.disjoint ? partition.number : -1;
    if (written_.summed) {
      need_shards(rect, need, memory, {party, k});
      continue;
    }
    for (int i = overlaps.first[mine]; i < overlaps.first[mine + 1]; ++i) {
      need.volume = overlaps.items[i].volume;
      need_tile(overlaps.items[i].rect, need, slots, memory, {party, k});
    }
  }
}

// The update of a table, or the norm launch before it, reads the tokens by which `op` reads rows.
void FlowRules::read_tokens(OpId op) {
  const Rect rect = looked_up_tokens(problem_.graph, op);
  const int reader = launch_graph_.first_reader(problem_.facts.owner[problem_.facts.table[op]]);
  const auto& devices = blocks_[reader].device;
  const int party = party_of_launch_[reader];
  const Partition& tiles = *written_.tiles;
  const std::vector<int>& tasks = tiles.parts.of_part;
  const bool given = written_.values == 1 && tasks.size() == devices.size() &&
                     std::all_of(tasks.begin(), tasks.end(),
                                 [&](int its) { return tiles.parts.rects[its].contains(rect); });
  if (!given) set_apart(party, writing_.first);
  const Slots all{0, written_.values};
  FlowBuilder::Need need{written_.bytes};
  need.reads = geometry_.id_of(rect);
  for (int j = 0; j < static_cast<int>(devices.size()); ++j) {
    const int memory = memory_of(devices[j]);
    box(memory, as_read(rect, all), false);
    if (written_.summed) {
      need_shards(rect, need, memory, {party, j});
      continue;
    }
    tiles.index.visit(rect, [&](int tile, std::int64_t volume) {
      need.volume = volume;
      need_tile(tile, need, all, memory, {party, j});
    });
  }
}

Flow FlowRules::value(const FlowId& id) {
  begin(id);
  find_written(id.tensor);
  const auto [producer, output] = launch_graph_.producers[id.tensor];
  const auto& writers = blocks_[id.parties[0]].device;
  if (written_.summed) {
    writing_ = {1, 2};
    box_summed(producer);
  } else {
    writing_ = {0, 1};
    box_tiles(writers);
  }
  if (!producer.none() && problem_.facts.backward[producer] &&
      problem_.graph.operators[producer].operands[output].saved_for_backward) {
    if (written_.values == 1) {  // it is where backward needs it
      for (int k = 0; k < static_cast<int>(writers.size()); ++k) {
        box(memory_of(writers[k]), written_.tiles->of_task(k), false);
      }
    } else {
      read_value({written_.tiles}, writers,
                 party_of_launch_[launch_graph_.launch_of(Pass::backward, producer)]);
    }
  }
  for (const OperandRef& use : launch_graph_.readers[id.tensor]) {
    read_value(read_of(use), configs_[use.op].devices,
               party_of_launch_[launch_graph_.launch_of(Pass::forward, use.op)]);
  }
  for (OpId op : launch_graph_.lookups_of[id.tensor]) read_tokens(op);
  hold_value(id.tensor);
  Flow flow = finish(id);
  if (written_.values > 1 && !written_.summed) flow.fed_times = combining_times(id);
  return flow;
}

// How long the launches that a value's flow feeds take to combine the partial values that they
// read.
std::vector<std::vector<std::int64_t>> FlowRules::combining_times(const FlowId& id) {
  std::vector<std::vector<std::int64_t>> times;
  for (int launch : id.fed) times.emplace_back(blocks_[launch].device.size(), 0);
  const auto add = [&](Pass pass, const OperandRef& use) {
    const int launch = launch_graph_.launch_of(pass, use.op);
    const auto at = std::find(id.fed.begin(), id.fed.end(), launch) - id.fed.begin();
    const Read read = read_of(use);
    const std::vector<int>& devices = configs_[use.op].devices;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      const std::int64_t own = read.partition->of_task(k).volume() * value_bytes(id.tensor);
      const Slots slots = slots_of(read, k);
      times[static_cast<std::size_t>(at)][k] +=
          combining_time(problem_, devices[k], own, slots.last - slots.first);
    }
  };
  const auto saved = [&](const OperandRef& use) {
    return problem_.facts.backward[use.op] &&
           problem_.graph.operators[use.op].operands[use.operand].saved_for_backward;
  };
  for (const OperandRef& use : launch_graph_.readers[id.tensor]) {
    add(Pass::forward, use);
    if (saved(use)) add(Pass::backward, use);
  }
  const OperandRef producer = launch_graph_.producers[id.tensor];
  if (saved(producer)) add(Pass::backward, producer);
  return times;
}

// What prediction or evaluation alone computes or loads.
Flow FlowRules::untrained(const FlowId& id) {
  begin(id);
  find_written(id.tensor);
  const OpId producer = launch_graph_.producers[id.tensor].op;
  box_tiles(producer.none() ? load_devices(id.tensor) : configs_[producer].devices);
  if (written_.summed) {
    for (std::size_t j = 0; j < written_.shards.size(); ++j) {
      const Rect& shard = written_.shards[j];
      box(memory_of(sums_of(producer)[j].device), shard.in_slots(0, written_.values), false);
    }
    hold_boxes(Content::activation, value_bytes(id.tensor));
    box_summed(producer);
  }
  hold_value(id.tensor);
  return finish(id);
}

// Partial values, on their way to the tasks that sum them.
Flow FlowRules::partial(const FlowId& id) {
  begin(id);
  find_written(id.tensor);
  box_tiles(blocks_[id.parties[0]].device);
  const auto& devices = blocks_[id.parties[1]].device;
  FlowBuilder::Need need{written_.bytes};
  need.partition = kShards;
  for (int j = 0; j < static_cast<int>(devices.size()); ++j) {
    const Rect& shard = written_.shards[static_cast<std::size_t>(j)];
    if (shard.empty()) continue;
    const int memory = memory_of(devices[j]);
    box(memory, shard.in_slots(0, written_.values), false);
    need.reads = geometry_.id_of(shard);
    written_.tiles->index.visit(shard, [&](int tile, std::int64_t volume) {
      need.volume = volume;
      need_tile(tile, need, {0, written_.values}, memory, {1, j});
    });
  }
  set_apart(1, 0);
  hold_boxes(Content::activation, value_bytes(id.tensor));
  return finish(id);
}

}  // namespace flexlegion
