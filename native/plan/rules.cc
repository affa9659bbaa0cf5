// Slots of gradients (Contributions), and what updates of tables need (rules.h).
//
// The rule for a piece that a task contributes: if an earlier launch contributed the same rectangle
// from the same device, add to its piece; otherwise take the first slot in which no piece overlaps
// it. So a weight that the steps of a recurrent layer share has one slot for each device, not one
// for each step. First-fit keeps the stack low: tasks of a launch whose rectangles are disjoint
// share a slot. Where a gradient is summed inside nodes first, a slot belongs to one node.
//
// A stack need not be zeroed if each slot is written as a whole before it is read. That holds if
// the pieces of a slot fill the tensor, and no launch has both tasks that add and tasks that write:
// its privilege would let the writing ones read what nothing has written.
//
// Costs: thousands of devices contribute few different rectangles. So a rectangle remembers up to
// which of a node's slots there is no room for it (slots only fill up), and readers ask each
// different rectangle once. Where all differ, a piece is compared with all pieces of its slot.
#include "plan/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace flexlegion {

// For the next gradient, without giving memory back.
void Contributions::clear() {
  for (std::size_t s = 0; s < used_slots_; ++s) {
    slots_of_[static_cast<std::size_t>(slots_[s].node)].clear();
    slots_[s].rects.clear();
  }
  used_slots_ = 0;
  pieces_.clear();
  numbers_.clear();
  distinct_.clear();
  for (int device : used_devices_) on_device_[device].clear();
  used_devices_.clear();
  next_requirement();
  mixed_ = false;
  before_.clear();
  asked_volume_ = -1;
}

void Contributions::next_requirement() { adds_ = writes_ = false; }

Contributions::Entry Contributions::add(int rect, const Rect& where, int device, int launch,
                                        int part, int node, int partition) {
  before_.clear();
  asked_volume_ = -1;
  if (device >= static_cast<int>(on_device_.size())) on_device_.resize(device + 1);
  auto& mine = on_device_[device];
  for (int index : mine) {
    Piece& piece = pieces_[index];
    // Two tasks of one launch run side by side, so neither adds to what the other writes.
    if (piece.rect != rect || piece.launch == launch) continue;
    const Entry entry{index, true, piece.launch, piece.part};
    piece.launch = launch;
    piece.part = part;
    adds_ = true;
    mixed_ |= writes_;
    return entry;
  }
  writes_ = true;
  mixed_ |= adds_;
  const int slot = slot_for(rect, where, node, partition);
  if (mine.empty()) used_devices_.push_back(device);
  mine.push_back(static_cast<int>(pieces_.size()));
  pieces_.push_back({rect, device, launch, part, slot});
  return {mine.back(), false, -1, -1};
}

std::size_t Contributions::distinct_of(int rect, const Rect& where) {
  // Neighbours in number often have the same.
  if (!numbers_.empty() && numbers_.back() == rect) return numbers_.size() - 1;
  const auto known = std::find(numbers_.begin(), numbers_.end(), rect);
  if (known == numbers_.end()) {
    numbers_.push_back(rect);
    distinct_.push_back({where, std::numeric_limits<int>::max(), 0, {}});
    return numbers_.size() - 1;
  }
  return static_cast<std::size_t>(known - numbers_.begin());
}

// The first slot of a node that has room, or a new one. A rectangle of the partition that a slot
// holds has room there unless it is there itself.
int Contributions::slot_for(int rect, const Rect& where, int node, int partition) {
  const std::size_t d = distinct_of(rect, where);
  Distinct& its = distinct_[d];
  const auto n = static_cast<std::size_t>(node);
  if (n >= slots_of_.size()) slots_of_.resize(n + 1);
  if (n >= its.nodes.size()) its.nodes.resize(n + 1);
  std::vector<int>& slots = slots_of_[n];
  std::size_t& full = its.nodes[n].full;
  int& last = its.nodes[n].last;
  const auto has_room = [&](int number) {
    const Slot& slot = slots_[static_cast<std::size_t>(number)];
    if (partition >= 0 && slot.partition == partition) return number != last;
    return std::none_of(slot.rects.begin(), slot.rects.end(), [&](std::size_t other) {
      return other == d || distinct_[other].rect.overlaps(where);
    });
  };
  while (full < slots.size() && !has_room(slots[full])) ++full;
  if (full == slots.size()) {
    slots.push_back(static_cast<int>(used_slots_));
    if (slots_.size() == used_slots_) slots_.emplace_back();
    Slot& slot = slots_[used_slots_++];
    slot.written = 0;
    slot.node = node;
    slot.partition = partition;
  }
  const int number = last = slots[full];
  Slot& slot = slots_[static_cast<std::size_t>(number)];
  if (slot.partition != partition) slot.partition = -1;
  slot.written += where.volume();
  slot.rects.push_back(d);
  its.first = std::min(its.first, number);
  its.last = std::max(its.last, number + 1);
  return number;
}

// Volumes suffice: pieces of one slot never overlap.
bool Contributions::fully_written(std::int64_t volume) const {
  if (asked_volume_ != volume) {
    asked_volume_ = volume;
    fully_written_ =
        !mixed_ && std::all_of(slots_.begin(), slots_.begin() + slots(),
                               [volume](const Slot& slot) { return slot.written == volume; });
  }
  return fully_written_;
}

// The range of slots from the first to the last in which a piece overlaps the rectangle; slots
// between may hold other pieces, which the reader's rectangle leaves out.
Rect Contributions::stacked(const Rect& rect) const {
  if (slots() <= 1) return rect.in_slots(0, 1);
  int first = slots(), last = 0;
  for (const Distinct& its : distinct_) {
    if ((first <= its.first && its.last <= last) || !its.rect.overlaps(rect)) continue;
    first = std::min(first, its.first);
    last = std::max(last, its.last);
  }
  // Nothing contributes (a strided window skipped the tile): one slot of zeros.
  return last > first ? rect.in_slots(first, last) : rect.in_slots(0, 1);
}

// A stable sort by node: the slots of a node follow each other, and keep their order.
std::vector<int> Contributions::numbers() const {
  std::vector<int> order(used_slots_), numbers(used_slots_);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int a, int b) {
    return slots_[static_cast<std::size_t>(a)].node < slots_[static_cast<std::size_t>(b)].node;
  });
  for (std::size_t n = 0; n < order.size(); ++n) numbers[order[n]] = static_cast<int>(n);
  return numbers;
}

Slots Contributions::of_node(int node) const {
  const auto n = static_cast<std::size_t>(node);
  if (before_.empty()) {
    before_.push_back(0);
    for (const auto& its : slots_of_) {
      before_.push_back(before_.back() + static_cast<int>(its.size()));
    }
  }
  return n + 1 < before_.size() ? Slots{before_[n], before_[n + 1]} : Slots{slots(), slots()};
}

Rect looked_up_tokens(const Graph& graph, OpId op) {
  const Operator& reader = graph.operators[op];
  const Operand& tokens = *reader.tokens();
  const Rect whole = Rect::of_shape(graph.tensors[reader.primary_output().tensor].shape);
  return accessed(tokens, graph.tensors[tokens.tensor], whole);
}

// The rows of the gradient are the lookups, and its columns are those of the table.
Rect looked_up_gradient(const Graph& graph, OpId op, const Rect& shard) {
  const Operator& reader = graph.operators[op];
  Rect rect = Rect::of_shape(graph.tensors[reader.primary_output().tensor].shape);
  for (int d = 0; d < shard.rank; ++d) {
    const int along = reader.table()->map[d].out_dim;
    if (along < 0 || along >= rect.rank) continue;  // rows, of which each shard reads all
    rect.lo[along] = shard.lo[d];
    rect.hi[along] = shard.hi[d];
  }
  return rect;
}

// Every micro-batch looks up its own tokens; those that are constant are the same in each. Which
// rows they will name is not known: a shard of some rows has its share of them, rounded up.
std::int64_t updated_elements(const Graph& graph, const GraphFacts& facts, TensorId tensor,
                              const Rect& shard) {
  const auto lookups = facts.lookups.find(tensor);
  if (lookups == facts.lookups.end() || !facts.optimizer.lazy) return shard.volume();
  const std::int64_t rows = graph.tensors[tensor].shape.front();
  std::int64_t named = 0;
  for (OpId op : lookups->second) {
    const bool constant =
        graph.tensors[graph.operators[op].tokens()->tensor].kind == TensorKind::weight;
    named += looked_up_tokens(graph, op).volume() * (constant ? 1 : graph.micro_batches);
  }
  if (named >= rows) return shard.volume();
  const double product = static_cast<double>(named) * static_cast<double>(shard.extent(0));
  return static_cast<std::int64_t>(std::ceil(product / static_cast<double>(rows))) *
         shard.extent(1);
}

}  // namespace flexlegion
