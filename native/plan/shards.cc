// Which device has which shard (shards.h).
//
// Each part of a weight that the operator's tasks use is cut among the devices that use it, or into
// fewer shards if they would be smaller than the graph's shard_bytes: a message costs time whatever
// its size. Few shards go to devices that are evenly spread and rotate from operator to operator,
// so that no device updates all small weights.
//
// With several nodes and a hierarchical configuration, the cut has two levels, aligned with each
// other: the r places of a node share out the weight, and the nodes share out each place's shard.
// Then what passes the network is each node's sums, once.
#include "plan/shards.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>

namespace flexlegion {

namespace {

// A part, and the devices that use it, each once.
struct UsedPart {
  Rect rect;
  std::vector<int> users;
};

// Parts that overlap, or leave something out, count as one, the whole, which all devices use. Tasks
// that touch nothing use nothing.
std::vector<UsedPart> used_parts(const Graph& graph, TensorId tensor, const DistinctRects& parts,
                                 const std::vector<int>& devices) {
  const Rect whole = Rect::of_shape(graph.tensors[tensor].shape);
  std::int64_t volume = 0;
  for (const Rect& rect : parts.rects) volume += rect.volume();
  if (volume != whole.volume()) {
    const std::set<int> all(devices.begin(), devices.end());
    return {{whole, {all.begin(), all.end()}}};
  }
  std::vector<UsedPart> used;
  for (const Rect& rect : parts.rects) used.push_back({rect, {}});
  std::unordered_set<std::int64_t> known;  // where they are too many to be looked through
  const bool many = devices.size() > 64;
  for (std::size_t k = 0; k < devices.size(); ++k) {
    std::vector<int>& mine = used[static_cast<std::size_t>(parts.of_part[k])].users;
    const bool is_new = many
                            ? known.insert(std::int64_t{parts.of_part[k]} << 32 | devices[k]).second
                            : std::find(mine.begin(), mine.end(), devices[k]) == mine.end();
    if (is_new) mine.push_back(devices[k]);
  }
  used.erase(std::remove_if(used.begin(), used.end(),
                            [](const UsedPart& part) { return part.rect.empty(); }),
             used.end());
  return used;
}

// The users of a part by their nodes.
std::map<int, std::vector<int>> by_node(const Graph& graph, const std::vector<int>& users) {
  std::map<int, std::vector<int>> nodes;
  for (int device : users) nodes[graph.node(device)].push_back(device);
  return nodes;
}

int longest_of(const Rect& rect) {
  int longest = 0;
  for (int d = 1; d < rect.rank; ++d) {
    if (rect.extent(d) > rect.extent(longest)) longest = d;
  }
  return longest;
}

// Into how many shards a part is cut that so many could have.
std::int64_t count_of(const Graph& graph, TensorId tensor, const Rect& rect, std::int64_t users) {
  const std::int64_t bytes = rect.volume() * graph.tensors[tensor].value_bytes();
  const std::int64_t most = std::min(rect.extent(longest_of(rect)), users);
  return graph.shard_bytes > 0 ? std::clamp<std::int64_t>(bytes / graph.shard_bytes, 1, most)
                               : most;
}

// Along which dimension. A shard of the outermost one that can be cut evenly is one piece of
// memory, which moves in one message. Others are gathered through buffers, several messages each.
int dimension_of(const Rect& rect, std::int64_t count) {
  int cut = 0;
  while (cut < rect.rank && rect.extent(cut) % count != 0) ++cut;
  return cut == rect.rank ? longest_of(rect) : cut;
}

std::vector<int> degrees_along(const Rect& rect, int cut, std::int64_t count) {
  std::vector<int> degrees(static_cast<std::size_t>(rect.rank), 1);
  degrees[static_cast<std::size_t>(cut)] = static_cast<int>(count);
  return degrees;
}

// Number k of `count` that are evenly chosen out of `all`, beginning at `first`, unless all are.
std::size_t chosen(std::int64_t k, std::int64_t count, std::int64_t all, std::int64_t first) {
  return static_cast<std::size_t>(((count < all ? first : 0) + k * all / count) % all);
}

void cut_by_devices(const Graph& graph, TensorId tensor, const UsedPart& part, OpId op,
                    std::vector<Shard>& shards) {
  const auto users = static_cast<std::int64_t>(part.users.size());
  if (users == 0) return;
  const std::int64_t count = count_of(graph, tensor, part.rect, users);
  const auto degrees = degrees_along(part.rect, dimension_of(part.rect, count), count);
  for (int k = 0; k < count; ++k) {
    const int device = part.users[chosen(k, count, users, op.value)];
    shards.push_back({tile_of(part.rect, degrees, k), device});
  }
}

// Both levels, aligned: of the part's shards, each node has each in the same place, and the nodes
// share out a place's shard for the update. A place is one of as many devices as the smallest node
// has. Of a small weight, some places have a shard, and some nodes a part of it.
void cut_by_nodes(const Graph& graph, TensorId tensor, const UsedPart& part, const Sharing& sharing,
                  std::vector<Shard>& shards) {
  std::vector<std::vector<int>> nodes;
  for (auto& [node, users] : by_node(graph, part.users)) nodes.push_back(users);
  const auto n_nodes = static_cast<std::int64_t>(nodes.size());
  auto places = static_cast<std::int64_t>(part.users.size());
  for (const auto& users : nodes) {
    places = std::min(places, static_cast<std::int64_t>(users.size()));
  }
  const std::int64_t in_node = count_of(graph, tensor, part.rect, places);
  const std::int64_t all = count_of(graph, tensor, part.rect, places * n_nodes);
  const std::int64_t pieces = std::clamp<std::int64_t>(all / in_node, 1, n_nodes);  // of a shard
  const int cut = dimension_of(part.rect, in_node * pieces);
  const auto coarse = degrees_along(part.rect, cut, in_node);
  const auto fine = degrees_along(part.rect, cut, in_node * pieces);
  const std::int64_t first = sharing.op.value;
  for (int j = 0; j < in_node; ++j) {
    const std::size_t place = chosen(j, in_node, places, first);
    if (sharing.shares == Shares::nodes) {
      for (const auto& users : nodes) {
        shards.push_back({tile_of(part.rect, coarse, j), users[place]});
      }
      continue;
    }
    for (int i = 0; i < pieces; ++i) {
      const auto& users = nodes[chosen(i, pieces, n_nodes, first + j)];
      const int k = j * static_cast<int>(pieces) + i;
      shards.push_back({tile_of(part.rect, fine, k), users[place]});
    }
  }
}

SummingNodes summing_nodes(const Graph& graph, const std::vector<UsedPart>& parts,
                           const Sharing& sharing) {
  if (!sharing.hierarchical || sharing.shares == Shares::outputs || !graph.has_several_nodes()) {
    return {};
  }
  std::set<int> all;
  bool saves = false;
  for (const UsedPart& part : parts) {
    std::set<int> nodes;
    for (int device : part.users) nodes.insert(graph.node(device));
    saves = saves || part.users.size() > nodes.size();
    if (all.empty()) all = nodes;
    if (nodes != all) return {};
  }
  return saves && all.size() > 1 ? SummingNodes({all.begin(), all.end()}) : SummingNodes();
}

}  // namespace

// By sorting, so equal rectangles meet.
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

// A device of a node that sums nothing contributes to some node that does.
int SummingNodes::of(const Graph& graph, int device) const {
  const int node = graph.node(device);
  const auto found = std::lower_bound(nodes_.begin(), nodes_.end(), node);
  if (found != nodes_.end() && *found == node) return static_cast<int>(found - nodes_.begin());
  return node % count();
}

SummingNodes summing_nodes(const Graph& graph, TensorId tensor, const DistinctRects& parts,
                           const Sharing& sharing) {
  if (!sharing.hierarchical) return {};
  return summing_nodes(graph, used_parts(graph, tensor, parts, *sharing.devices), sharing);
}

// The cut in two levels needs nodes that all use every part, or else some node would lack a part's
// sum.
std::vector<Shard> shards_of(const Graph& graph, TensorId tensor, const DistinctRects& parts,
                             const Sharing& sharing) {
  const std::vector<UsedPart> used = used_parts(graph, tensor, parts, *sharing.devices);
  const bool by_nodes = summing_nodes(graph, used, sharing).any();
  std::vector<Shard> shards;
  for (const UsedPart& part : used) {
    if (by_nodes) {
      cut_by_nodes(graph, tensor, part, sharing, shards);
    } else if (sharing.shares != Shares::nodes) {
      cut_by_devices(graph, tensor, part, sharing.op, shards);
    }
  }
  return shards;
}

// The n-th shards that a device has of each tensor make one task: few tasks, and each weight's
// shards on a device stay apart.
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
