// Builds one block or one flow at a time (flow_rules.h tells how a flow follows from pieces).
//
// Flows that differ in their operators' names alone are equal: those of a network's repeated
// layers, say. They are of one group, and a flow is looked up by its group and the configurations
// of its operators before it is built. A search asks for many of them again, also of a group of
// one: it often proposes a configuration of an operator that it has turned down before.
#include "sim/flow_rules.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace flexlegion {

namespace {

using R = RequirementRole;

// What all task graphs of the process together may spend on flows that are not in use, each an
// equal share: of a race's 32 chains on a thousand devices, flows would take ten gigabytes. Beyond
// its share, a task graph gives up all of them.
constexpr std::int64_t kCachedBytes = std::int64_t{1} << 30, kMostCachedBytes = kCachedBytes / 4;
std::atomic<int> sharers{0};

}  // namespace

FlowRules::FlowRules(const Problem& problem, const LaunchGraph& launch_graph,
                     const PricedStrategy& configs, const std::vector<Block>& blocks,
                     const std::vector<FlowPtr>& flows, Detail detail)
    : problem_(problem),
      launch_graph_(launch_graph),
      configs_(configs),
      blocks_(blocks),
      flows_(flows),
      placements_(problem, launch_graph, configs),
      builder_(problem.machine, placements_.geometry(), detail),
      devices_of_others_(launch_graph.others.size()),
      boxes_(static_cast<std::size_t>(problem.machine.devices())),
      in_memory_(static_cast<std::size_t>(problem.machine.memories)) {
  ++sharers;
}

FlowRules::~FlowRules() { --sharers; }

// The tasks of a launch: where they run, and what they take before flows add to it.
Block FlowRules::block(int launch) {
  Block block;
  block.device = placements_.devices(launch_graph_.launches[launch]);
  block.exe_time = times(launch, block.device);
  if (!problem_.costs.contended) return block;
  for (int k = 0; k < static_cast<int>(block.device.size()); ++k) {
    block.contention.push_back(contention(launch, block.device[k], k));
  }
  return block;
}

std::vector<std::int64_t> FlowRules::times(int launch, const std::vector<int>& devices) {
  const LaunchKey& key = launch_graph_.launches[launch];
  const PassRow& row = row_of(key.pass);
  // All of their time depends on what flows bring: that of weights, or those of the iteration.
  if (row.price == Price::nothing) return std::vector<std::int64_t>(devices.size(), 1);
  if (row.closing) return std::vector<std::int64_t>(devices.size(), 0);
  if (row.of == Of::input) {
    return load_times(problem_, placements_.geometry(), key.tensor, devices);
  }
  const Split& split = problem_.split(key.op, configs_[key.op].split);
  std::vector<std::int64_t> times;
  if (row.price == Price::of_bytes) {
    const std::vector<std::int64_t> copied = copied_bytes(key);
    for (const ShardTask& task : placements_.shard_tasks(key)) {
      if (row.shares == Shares::outputs) {
        times.push_back(sum_task_time(problem_, key.op, split.partial_values, task));
        continue;
      }
      std::int64_t bytes = 0;
      for (const auto& [which, shard] : task.shards) {
        bytes += shard.volume() * copied[static_cast<std::size_t>(which)];
      }
      times.push_back(time_of_bytes(problem_, key.pass, task.device, bytes));
    }
    return times;
  }
  for (int k = 0; k < split.tasks; ++k) {
    times.push_back(split.time(key.pass, problem_.machine.kind_of[devices[k]], k));
  }
  return times;
}

// What a launch copies of each operand that its tasks share out, in bytes of an element. What is
// summed of gradients, flows say.
std::vector<std::int64_t> FlowRules::copied_bytes(const LaunchKey& key) const {
  const auto operands =
      shared_operands(problem_.graph, problem_.facts, key.op, row_of(key.pass).shares);
  std::vector<std::int64_t> bytes(operands.size(), 0);
  for (const Use& use : uses_of(problem_.graph, problem_.facts, key)) {
    const auto which = std::find(operands.begin(), operands.end(), use.operand) - operands.begin();
    if (use.role == R::gathered) {
      bytes[static_cast<std::size_t>(which)] = element_bytes(type_of(problem_.graph, use));
    }
  }
  return bytes;
}

// How much longer a task takes beside busy neighbours: as was measured of its split, or of the rate
// of its pass.
std::int32_t FlowRules::contention(int launch, int device, int part) const {
  const int kind = problem_.machine.kind_of[device];
  const LaunchKey& key = launch_graph_.launches[launch];
  const PassRow& row = row_of(key.pass);
  if (row.price == Price::nothing) return 0;
  if (row.price == Price::of_bytes) return problem_.costs.of_bytes(key.pass, kind).contention;
  return problem_.split(key.op, configs_[key.op].split).contention(key.pass, kind, part);
}

FlowPtr FlowRules::flow(int f) {
  const Key key = key_of(f);
  if (FlowPtr known = find(key)) return known;
  FlowPtr flow = built(f);
  keep(key, flow);
  return flow;
}

FlowPtr FlowRules::find(const Key& key) const {
  const auto found = built_.find(key);
  return found == built_.end() ? nullptr : found->second;
}

FlowPtr FlowRules::built(int f) {
  return std::make_shared<const Flow>(build(launch_graph_.flows[f]));
}

void FlowRules::keep(const Key& key, const FlowPtr& flow) {
  built_bytes_ += flow->own_bytes();
  // All at once: flows that are held elsewhere live on, and the others are soon built again.
  if (built_bytes_ > std::min(kMostCachedBytes, kCachedBytes / sharers)) {
    built_.clear();
    built_bytes_ = 0;
  }
  built_.emplace(key, flow);
}

// 128 bits, so that two different keys do not meet in the life of a search.
FlowRules::Key FlowRules::key_of(int f) const {
  const FlowId& id = launch_graph_.flows[f];
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
    mix(2 * static_cast<std::uint64_t>(configs_[op].buffers) + (configs_[op].hierarchical ? 1 : 0));
    for (int device : configs_[op].devices) mix(static_cast<std::uint64_t>(device) + 3);
    // Which devices sum the shards of an output goes by the operator (plan/shards.h).
    if (configs_[op].sums == Sums::shards) mix(static_cast<std::uint64_t>(op.value));
  }
  return key;
}

Flow FlowRules::build(const FlowId& id) {
  begin(id);
  for (const PlaceUses& its : id.places) carry(its);
  take_turns(id);
  return finish(id);
}

// Numbers the writing tasks, and says in which memory each of them writes.
void FlowRules::begin(const FlowId& id) {
  id_ = &id;
  std::vector<int> parts;
  for (int party = 0; party < id.writers; ++party) {
    parts.push_back(static_cast<int>(blocks_[id.parties[party]].device.size()));
  }
  builder_.begin(parts);
  for (int party = 0; party < id.writers; ++party) {
    const auto& devices = blocks_[id.parties[party]].device;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      builder_.set_memory(builder_.writer(party, k), memory_of(devices[k]));
    }
  }
  apart_.assign(id.parties.size(), -1);
  writing_ = {id.writers, 0};
  fed_.resize(id.fed.size());
  for (std::size_t i = 0; i < id.fed.size(); ++i) {
    const std::size_t tasks = blocks_[id.fed[i]].device.size();
    fed_[i].times.assign(tasks, 0);
    fed_[i].bytes.assign(tasks, {});
  }
  stacks_ = 0;
  tenant_ = 0;
  local_.clear();
  buffers_ = 1;
  around_.clear();
  touched_.clear();
  overlaps_.clear();
  elements_of_fields_.clear();
}

// One place. Those that write it come first among its uses, then those that spread it, then those
// that read it. So a piece is there before a task needs it.
void FlowRules::carry(const PlaceUses& its) {
  pieces_.clear();
  written_by_.clear();
  contributions_.clear();
  needed_.clear();
  elements_ = 0;
  for (const FlowUse& use : its.uses) {
    touched_.push_back(0);
    if (!takes_part(use, its.place)) continue;
    const View view = view_of(use);
    if (has_register()) touched_.back() = touches(view);
    if (use.comes == Comes::spreads) {
      spread(view);
    } else if (use.comes != Comes::writes) {
      read(view);
    } else if (use.role == R::contribution) {
      contribute(view);
    } else {
      write(view);
    }
    charge(view);
  }
  if (!contributions_.pieces().empty() && pieces_.front().node >= 0) box_contributions();
  hold(its);
  stacks_ += static_cast<int>(pieces_.size());
}

// Whether a use is of this place under the strategy. The graph lists an output at its value and at
// its partial values, and an update at partial gradients and at nodes' sums; one of two is touched.
bool FlowRules::takes_part(const FlowUse& use, const Place& place) {
  if (use.sums_gradient()) {
    return placements_.nodes(use.tensor).any() == (place.field == Field::node_sums);
  }
  if (use.role != R::output) return true;
  const ValueStack stack = placements_.stack(use.tensor);
  return stack.summed == (place.field == Field::partial);
}

bool FlowRules::touches(const View& view) {
  for (int k = 0; k < view.tasks(); ++k) {
    if (!view.rect(k).empty()) return true;
  }
  return false;
}

// A use as the tasks of its launch see it: devices, rectangles, slots, and the nodes that sum a
// gradient.
FlowRules::View FlowRules::view_of(const FlowUse& use) {
  View view;
  view.use = &use;
  const LaunchKey& key = launch_graph_.key_of(use.launch);
  const auto trained = static_cast<int>(blocks_.size());
  if (use.launch < trained) {
    view.devices = &blocks_[use.launch].device;
  } else {
    auto& devices = devices_of_others_[static_cast<std::size_t>(use.launch - trained)];
    devices = placements_.devices(key);
    view.devices = &devices;
  }
  view.bytes = element_bytes(type_of(problem_.graph, use));
  view.tiles = use.tensor.none() ? &elements_of(use, view.tasks()) : &placements_.tiles(key, use);
  const bool weight =
      !use.tensor.none() && problem_.graph.tensors[use.tensor].kind == TensorKind::weight;
  if (weight && placements_.nodes(use.tensor).any()) {
    const SummingNodes& nodes = placements_.nodes(use.tensor);
    for (int device : *view.devices) view.nodes.push_back(nodes.of(problem_.graph, device));
  }
  const bool value =
      use.field == Field::value || use.field == Field::partial || use.field == Field::copy;
  if (value) view.terms = placements_.terms(key, use);
  return view;
}

// Of a field of the iteration, each task that writes has an element of its own, and each that reads
// reads all of them.
const Partition& FlowRules::elements_of(const FlowUse& use, int tasks) {
  Rect mine = Rect::of_shape({elements_});
  std::vector<Rect> rects;
  for (int k = 0; k < tasks; ++k) {
    if (use.comes == Comes::writes) {
      mine.lo[0] = elements_++;
      mine.hi[0] = elements_;
    }
    rects.push_back(mine);
  }
  elements_of_fields_.push_back(placements_.geometry().shards(rects));
  return *elements_of_fields_.back();
}

// --- who writes ---

// Each task that writes leaves its rectangle in its slot.
void FlowRules::write(const View& view) {
  box(view);
  const int party = view.use->party;
  if (party < 0 || view.tasks() == 0) return;  // nothing moves
  writing_ = {std::min(writing_.first, party), std::max(writing_.end, party + 1)};
  const int number = static_cast<int>(written_by_.size());
  int pieces = 0;
  for (int k = 0; k < view.tasks(); ++k) {
    const int mine = view.tiles->parts.of_part[k];
    if (view.tiles->ids[mine] < 0) continue;
    const int slot = view.use->role == R::node_sum ? view.node(k) : k % view.terms.slots;
    pieces_.push_back({view.tiles, mine, slot, {party, k}, number});
    ++pieces;
  }
  written_by_.push_back({party, pieces});
}

// Puts partial gradients into slots, and orders those who add after whom they add to.
void FlowRules::contribute(const View& view) {
  const int party = view.use->party, launch = view.use->launch;
  writing_ = {std::min(writing_.first, party), std::max(writing_.end, party + 1)};
  contributions_.next_requirement();
  const int number = static_cast<int>(written_by_.size());
  int pieces = 0, added = 0, before = -1;  // who wrote what is added to
  bool alike = true;                       // task k adds to what task k of one of them wrote
  for (int k = 0; k < view.tasks(); ++k) {
    const int mine = view.tiles->parts.of_part[k];
    if (view.tiles->ids[mine] < 0) continue;
    const Rect& rect = view.tiles->parts.rects[mine];
    const int device = (*view.devices)[k];
    const int node = view.node(k);
    const auto entry =
        contributions_.add(view.tiles->ids[mine], rect, device, launch, k, std::max(node, 0),
                           view.tiles->disjoint && view.tiles->kept() ? view.tiles->number : -1);
    ++pieces;
    if (!entry.adds) {
      const int slot = contributions_.pieces()[entry.piece].slot;
      pieces_.push_back({view.tiles, mine, slot, {party, k}, number, node});
      // Slots that are numbered node by node get their numbers when all are known.
      if (node < 0) box(device, rect.in_slots(slot, slot + 1), true);
      continue;
    }
    Piece& piece = pieces_[entry.piece];
    builder_.edge(builder_.writer(piece.writer.party, piece.writer.part), {party, k});
    alike = alike && piece.writer.part == k && (added == 0 || piece.written_by == before);
    before = std::max(before, piece.written_by);
    piece.writer = {party, k};
    piece.written_by = number;
    ++added;
  }
  written_by_.push_back({party, pieces});
  alike = alike && added == pieces && (added == 0 || written_by_[before].pieces == pieces);
  if (added > 0 && !alike) set_apart(party, written_by_[before].party);
}

// --- who reads ---

// What a reader holds, and what it needs of the pieces. It needs nothing if a launch with the same
// tasks has read or written the same before.
void FlowRules::read(const View& view) {
  const Comes comes = view.use->comes;
  const bool found = comes == Comes::found || (comes == Comes::found_unless_partial &&
                                               placements_.stack(view.use->tensor).slots == 1);
  // An instance that was only written may be smaller than one that is read, too.
  if (comes != Comes::found) box(view);
  read_.assign(static_cast<std::size_t>(view.tasks()), 0);
  // Nobody in training has written the place, or nobody reads it there: it is held, and nothing
  // moves.
  if (pieces_.empty() || comes == Comes::held) return;
  // Of a value that is found, as it is, nothing is asked: reading it takes no time of its own.
  const bool partial = view.use->field == Field::gradient || view.terms.slots > 1;
  if (comes == Comes::next && needed_before(view)) return;
  if (!found || partial) need(view, found);
}

// The unrolled steps of a layer read the same weights. If they are split alike, on the same
// devices, what the first one needs for the next iteration is all that the others do, and nobody
// waits for it in this one.
bool FlowRules::needed_before(const View& view) {
  for (const View& known : needed_) {
    if (known.tiles == view.tiles && *known.devices == *view.devices) return true;
  }
  needed_.push_back(view);
  return false;
}

// Tasks that spread read a piece and leave it in their node, whose other tasks get it from there.
void FlowRules::spread(const View& view) {
  if (view.tasks() == 0) return;
  read(view);
  pieces_.clear();
  write(view);
  for (Piece& piece : pieces_) piece.node = view.node(piece.writer.part);
}

// Whether a launch can be fused with those that wrote what it reads depends on whether each of its
// tasks reads just one piece, that of its like.
void FlowRules::need(const View& view, bool found) {
  const Partition& tiles = *view.tiles;
  const bool waits = view.use->comes != Comes::next;
  const bool all_slots = view.terms.parts == 1 && !view.terms.own;
  FlowBuilder::Need need{view.bytes};
  need.partition = tiles.disjoint ? tiles.number : -1;
  bool alike = true;
  int last = -1;  // of written_by_
  if (std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& its) { return its.node >= 0; })) {
    list_by_node(view);
  }
  const Overlaps* common = nullptr;
  const Partition* of = nullptr;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const Piece& piece = pieces_[p];
    if (piece.tiles != of) {
      of = piece.tiles;
      common = &overlaps(*of, tiles);
    }
    // Of a piece, only the rectangles that overlap it are visited, and of these, the tasks that
    // have them.
    const int writer = builder_.writer(piece.writer.party, piece.writer.part);
    need.stack = stacks_ + static_cast<int>(p);
    need.wrote = of->ids[piece.distinct];
    for (int i = common->first[piece.distinct]; i < common->first[piece.distinct + 1]; ++i) {
      const RectIndex::Item& item = common->items[i];
      need.reads = tiles.ids[item.rect];
      need.volume = item.volume;
      const bool all = item.volume == tiles.parts.rects[item.rect].volume();
      const Tiles::Range tasks =
          piece.node < 0 ? tiles.tasks_of(item.rect) : tasks_of_node(item.rect, piece.node);
      for (int k : tasks) {
        if (!all_slots) {
          const Slots slots = view.terms.of_task(k);
          if (piece.slot < slots.first || slots.last <= piece.slot) continue;
        }
        read_[k] += item.volume;
        alike = alike && all && piece.writer.part == k && (last < 0 || last == piece.written_by);
        last = std::max(last, piece.written_by);
        if (found) continue;
        builder_.need(writer, need, memory_of((*view.devices)[k]),
                      waits ? TaskRef{view.use->party, k} : TaskRef{});
      }
    }
  }
  if (found || !waits || last < 0) return;
  for (int k = 0; alike && k < view.tasks(); ++k) {
    const Slots slots = view.terms.of_task(k);
    alike = read_[k] == (slots.last - slots.first) * view.rect(k).volume();
  }
  if (!alike) set_apart(view.use->party, written_by_[last].party);
}

// A rectangle may have thousands of readers, and a piece's node few of them. So tasks are sorted by
// rectangle and node, and those of a node are found by bisection.
void FlowRules::list_by_node(const View& view) {
  by_node_.clear();
  if (view.nodes.empty()) return;
  for (int k = 0; k < view.tasks(); ++k) {
    by_node_.push_back({view.tiles->parts.of_part[k], view.nodes[k], k});
  }
  std::sort(by_node_.begin(), by_node_.end());
  task_by_node_.clear();
  for (const auto& entry : by_node_) task_by_node_.push_back(entry[2]);
}

Tiles::Range FlowRules::tasks_of_node(int rect, int node) const {
  const auto at = [this](const std::array<int, 3>& key) {
    const auto found = std::lower_bound(by_node_.begin(), by_node_.end(), key);
    return task_by_node_.data() + (found - by_node_.begin());
  };
  return {at({rect, node, 0}), at({rect, node + 1, 0})};
}

// Overlaps of tiles are kept for good (Geometry), those of shards as long as the flow is built.
const Overlaps& FlowRules::overlaps(const Partition& written, const Partition& read) {
  if (written.kept() && read.kept()) return placements_.geometry().overlaps(written, read);
  for (const auto& known : overlaps_) {
    if (known->written == &written && known->read == &read) return known->overlaps;
  }
  overlaps_.push_back(std::make_unique<Found>(Found{&written, &read, Overlaps(written, read)}));
  return overlaps_.back()->overlaps;
}

void FlowRules::set_apart(int party, int writer) {
  apart_[party] = std::max(apart_[party], writer);
}

// --- what it takes ---

// Tasks of operators combine the partial values that they read before they start. Those of updates
// take as long as all that they touch takes.
void FlowRules::charge(const View& view) {
  const FlowUse& use = *view.use;
  const auto at = std::find(id_->fed.begin(), id_->fed.end(), use.launch);
  if (at == id_->fed.end()) return;
  Fed& fed = fed_[static_cast<std::size_t>(at - id_->fed.begin())];
  const bool of_task = row_of(launch_graph_.launches[use.launch].pass).price == Price::of_task;
  for (int k = 0; k < view.tasks(); ++k) {
    if (use.role == R::updated) {
      if (!view.rect(k).empty()) fed.bytes[k].change(problem_, use.tensor, view.rect(k));
    } else if (use.comes == Comes::writes) {
      continue;
    } else if (of_task) {
      const std::int64_t own = view.rect(k).volume() * view.bytes;
      fed.times[k] += sum_time(problem_, (*view.devices)[k], read_[k] * view.bytes, own);
    } else {
      // Of a table, what was looked up in every round; of other weights, the rounds have added up.
      const int rounds = use.lookup.none() ? 1 : problem_.graph.micro_batches;
      fed.bytes[k].gathered += read_[k] * view.bytes * rounds;
    }
  }
}

// Edges and transfers of all places together, their bounds, and what launches take for what is
// brought.
Flow FlowRules::finish(const FlowId& id) {
  // Of each party, how many tasks wait for what the flow brings; 0 where bounds do not use it.
  std::vector<int> parts, reading(id.parties.size(), 0);
  for (std::size_t p = 0; p < reading.size(); ++p) {
    parts.push_back(static_cast<int>(blocks_[id.parties[p]].device.size()));
    if (id.waits[p] && id.kind != FlowKind::turns) reading[p] = parts[p];
  }
  if (writing_.first >= writing_.end) writing_ = {};
  Flow flow = builder_.finish(parts, reading, writing_);
  flow.apart = apart_;
  flow.tenant = tenant_;
  flow.local = local_;
  flow.buffers = buffers_;
  flow.around = around_;
  if (tenant_ != 0 && !uniform_) flow.touched = touched_;
  bool longer = false;
  for (std::size_t i = 0; i < id.fed.size(); ++i) {
    const Pass pass = launch_graph_.launches[id.fed[i]].pass;
    if (row_of(pass).price == Price::of_bytes) {
      const auto& devices = blocks_[id.fed[i]].device;
      // Of a launch in the middle of the iteration, its own time has what it takes for nothing.
      const bool all = row_of(pass).closing;
      for (std::size_t k = 0; k < devices.size(); ++k) {
        fed_[i].times[k] = fed_[i].bytes[k].time(problem_, pass, devices[k]) -
                           (all ? 0 : time_of_bytes(problem_, pass, devices[k], 0));
      }
    }
    for (std::int64_t time : fed_[i].times) longer = longer || time > 0;
  }
  if (!longer) return flow;
  for (std::size_t i = 0; i < id.fed.size(); ++i) flow.fed_times.push_back(fed_[i].times);
  return flow;
}

}  // namespace flexlegion
