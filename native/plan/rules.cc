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
// Costs: a piece is compared with all pieces of the tensor.
#include "plan/rules.h"

#include <algorithm>
#include <numeric>

namespace flexlegion {

// For the next gradient, without giving memory back.
void Contributions::clear() {
  pieces_.clear();
  rects_.clear();
  written_.clear();
  node_of_.clear();
  for (int device : used_devices_) on_device_[device].clear();
  used_devices_.clear();
  next_requirement();
  mixed_ = false;
}

void Contributions::next_requirement() { adds_ = writes_ = false; }

Contributions::Entry Contributions::add(int rect, const Rect& where, int device, int launch,
                                        int part, int node) {
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
  // One more than there are: the last is a new slot, which is free.
  taken_.assign(written_.size() + 1, 0);
  for (std::size_t s = 0; s < written_.size(); ++s) taken_[s] = node_of_[s] != node;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    char& taken = taken_[pieces_[p].slot];
    if (!taken) taken = pieces_[p].rect == rect || rects_[p].overlaps(where);
  }
  const auto slot = std::find(taken_.begin(), taken_.end(), 0) - taken_.begin();
  if (slot == static_cast<std::ptrdiff_t>(written_.size())) {
    written_.push_back(0);
    node_of_.push_back(node);
  }
  written_[slot] += where.volume();
  if (mine.empty()) used_devices_.push_back(device);
  mine.push_back(static_cast<int>(pieces_.size()));
  pieces_.push_back({rect, device, launch, part, static_cast<int>(slot)});
  rects_.push_back(where);
  return {mine.back(), false, -1, -1};
}

// Volumes suffice: pieces of one slot never overlap.
bool Contributions::fully_written(std::int64_t volume) const {
  return !mixed_ && std::all_of(written_.begin(), written_.end(),
                                [volume](std::int64_t written) { return written == volume; });
}

// The range of slots from the first to the last in which a piece overlaps the rectangle; slots
// between may hold other pieces, which the reader's rectangle leaves out.
Rect Contributions::stacked(const Rect& rect) const {
  int first = slots(), last = 0;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const int slot = pieces_[p].slot;
    if ((first <= slot && slot < last) || !rects_[p].overlaps(rect)) continue;
    first = std::min(first, slot);
    last = std::max(last, slot + 1);
  }
  // Nothing contributes (a strided window skipped the tile): one slot of zeros.
  return last > first ? rect.in_slots(first, last) : rect.in_slots(0, 1);
}

// A stable sort by node: the slots of a node follow each other, and keep their order.
std::vector<int> Contributions::numbers() const {
  std::vector<int> order(written_.size()), numbers(written_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [this](int a, int b) { return node_of_[a] < node_of_[b]; });
  for (std::size_t n = 0; n < order.size(); ++n) numbers[order[n]] = static_cast<int>(n);
  return numbers;
}

Slots Contributions::of_node(int node) const {
  const auto before =
      std::count_if(node_of_.begin(), node_of_.end(), [node](int its) { return its < node; });
  const auto mine = std::count(node_of_.begin(), node_of_.end(), node);
  return {static_cast<int>(before), static_cast<int>(before + mine)};
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

// With optimizer states that decay, every row changes in each update, whether it was looked up or
// not.
std::int64_t updated_elements(const Graph& graph, const GraphFacts& facts, TensorId tensor,
                              const Rect& shard, int optimizer_states) {
  const auto lookups = facts.lookups.find(tensor);
  if (lookups == facts.lookups.end() || optimizer_states > 0) return shard.volume();
  std::int64_t rows = 0;
  for (OpId op : lookups->second) rows += looked_up_tokens(graph, op).volume();
  return std::min(rows, shard.extent(0)) * shard.extent(1);
}

}  // namespace flexlegion
