#include "plan/rules.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace flexlegion {

DistinctRects distinct(const std::vector<Rect>& rects) {
  std::vector<int> order(rects.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return rects[a] < rects[b]; });
  DistinctRects result;
  result.of_part.resize(rects.size());
  for (int part : order) {
    if (result.rects.empty() || result.rects.back() != rects[part]) {
      result.rects.push_back(rects[part]);
    }
    result.of_part[part] = static_cast<int>(result.rects.size()) - 1;
  }
  return result;
}

void Contributions::clear() {
  pieces_.clear();
  rects_.clear();
  written_.clear();
  for (int device : used_devices_) on_device_[device].clear();
  used_devices_.clear();
  next_requirement();
  mixed_ = false;
}

void Contributions::next_requirement() { adds_ = writes_ = false; }

Contributions::Entry Contributions::add(int rect, const Rect& where, int device, int launch,
                                        int part) {
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
  taken_.assign(written_.size() + 1, 0);
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    char& taken = taken_[pieces_[p].slot];
    if (!taken) taken = pieces_[p].rect == rect || rects_[p].overlaps(where);
  }
  const auto slot = std::find(taken_.begin(), taken_.end(), 0) - taken_.begin();
  if (slot == static_cast<std::ptrdiff_t>(written_.size())) written_.push_back(0);
  written_[slot] += where.volume();
  if (mine.empty()) used_devices_.push_back(device);
  mine.push_back(static_cast<int>(pieces_.size()));
  pieces_.push_back({rect, device, launch, part, static_cast<int>(slot)});
  rects_.push_back(where);
  return {mine.back(), false, -1, -1};
}

bool Contributions::fully_written(std::int64_t volume) const {
  return !mixed_ && std::all_of(written_.begin(), written_.end(),
                                [volume](std::int64_t written) { return written == volume; });
}

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

Rect looked_up_tokens(const Graph& graph, OpId op) {
  const Operator& reader = graph.operators[op];
  const Operand& tokens = *reader.tokens();
  const Rect whole = Rect::of_shape(graph.tensors[reader.primary_output().tensor].shape);
  return accessed(tokens, graph.tensors[tokens.tensor], whole);
}

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

std::int64_t updated_elements(const Graph& graph, const GraphFacts& facts, TensorId tensor,
                              const Rect& shard, int optimizer_states) {
  const auto lookups = facts.lookups.find(tensor);
  if (lookups == facts.lookups.end() || optimizer_states > 0) return shard.volume();
  std::int64_t rows = 0;
  for (OpId op : lookups->second) rows += looked_up_tokens(graph, op).volume();
  return std::min(rows, shard.extent(0)) * shard.extent(1);
}

std::vector<Shard> shards_of(const Graph& graph, OpId op, TensorId tensor,
                             const DistinctRects& parts, const std::vector<int>& devices) {
  const Rect whole = Rect::of_shape(graph.tensors[tensor].shape);
  const std::int64_t bytes = graph.tensors[tensor].value_bytes();
  std::vector<Rect> rects = parts.rects;
  std::vector<std::vector<int>> users(rects.size());
  std::int64_t volume = 0;
  for (const Rect& rect : rects) volume += rect.volume();
  if (volume == whole.volume()) {
    for (std::size_t k = 0; k < devices.size(); ++k) {
      auto& mine = users[parts.of_part[k]];
      if (std::find(mine.begin(), mine.end(), devices[k]) == mine.end()) {
        mine.push_back(devices[k]);
      }
    }
  } else {  // the parts overlap, or leave something out
    const std::set<int> all(devices.begin(), devices.end());
    rects = {whole};
    users = {{all.begin(), all.end()}};
  }
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < rects.size(); ++i) {
    const Rect& rect = rects[i];
    if (rect.empty()) continue;  // of tasks that touch nothing
    int longest = 0;
    for (int d = 1; d < rect.rank; ++d) {
      if (rect.extent(d) > rect.extent(longest)) longest = d;
    }
    const auto replicas = static_cast<std::int64_t>(users[i].size());
    std::int64_t count = std::min(rect.extent(longest), replicas);
    if (graph.shard_bytes > 0) {
      count = std::clamp<std::int64_t>(rect.volume() * bytes / graph.shard_bytes, 1, count);
    }
    // Along the outermost dimension that can be cut evenly: such a shard is one piece of memory,
    // which moves in one message. Others are gathered through buffers, several messages each.
    int cut = 0;
    while (count > 0 && cut < rect.rank && rect.extent(cut) % count != 0) ++cut;
    if (cut == rect.rank) cut = longest;
    const std::int64_t first = count < replicas ? op.value : 0;
    std::vector<int> degrees(rect.rank, 1);
    degrees[cut] = static_cast<int>(count);
    for (int k = 0; k < degrees[cut]; ++k) {
      const auto user = static_cast<std::size_t>((first + k * replicas / count) % replicas);
      shards.push_back({tile_of(rect, degrees, k), users[i][user]});
    }
  }
  return shards;
}

std::vector<ShardTask> shard_tasks(const std::vector<std::vector<Shard>>& tensors) {
  std::map<std::pair<int, int>, ShardTask> tasks;
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    std::map<int, int> on_device;
    for (const Shard& shard : tensors[i]) {
      ShardTask& task = tasks[{shard.device, on_device[shard.device]++}];
      task.device = shard.device;
      task.shards.emplace_back(i, shard.rect);
    }
  }
  std::vector<ShardTask> result;
  for (auto& [key, task] : tasks) result.push_back(std::move(task));
  return result;
}

}  // namespace flexlegion
