// Numbers rectangles, and keeps partitions and overlaps by number (geometry.h).
//
// A key packs what a partition depends on: the operators' class, the operand, the split, and
// whether the first part alone counts. Loads of inputs have a bit of their own. Partitions of
// shards depend on devices, too. There are too many of these to be kept, so they all have the
// number kShards.
//
// RectUnion gives the volume of rectangles that overlap. It keeps disjoint pieces: from a new
// rectangle all old pieces are cut away, and what is left is added. Inclusion and exclusion would
// be simpler, but takes exponential time.
#include "sim/geometry.h"

#include <utility>

namespace flexlegion {

namespace {

// `from` without `what`, in slabs: below and above it, dimension by dimension.
void subtract(Rect from, const Rect& what, std::vector<Rect>& rest) {
  if (from.empty()) return;
  if (!from.overlaps(what)) {
    rest.push_back(from);
    return;
  }
  for (int d = 0; d < from.rank; ++d) {
    if (from.lo[d] < what.lo[d]) {
      rest.push_back(from);
      rest.back().hi[d] = what.lo[d];
      from.lo[d] = what.lo[d];
    }
    if (what.hi[d] < from.hi[d]) {
      rest.push_back(from);
      rest.back().lo[d] = what.hi[d];
      from.hi[d] = what.hi[d];
    }
  }
}

}  // namespace

void RectUnion::add(const Rect& rect) {
  std::vector<Rect> fresh = {rect};
  for (const Rect& old : parts_) {
    std::vector<Rect> rest;
    for (const Rect& piece : fresh) subtract(piece, old, rest);
    fresh = std::move(rest);
  }
  parts_.insert(parts_.end(), fresh.begin(), fresh.end());
}

std::int64_t RectUnion::volume() const {
  std::int64_t sum = 0;
  for (const Rect& part : parts_) sum += part.volume();
  return sum;
}

Geometry::Geometry(const Problem& problem) : problem_(problem) {}

// Odd factors and a shift spread the bounds over all bits: tiles differ in few and low ones.
std::size_t Geometry::Hash::operator()(const Rect& rect) const {
  std::uint64_t h = static_cast<std::uint64_t>(rect.rank);
  for (int d = 0; d < rect.rank; ++d) {
    h = (h ^ static_cast<std::uint64_t>(rect.lo[d])) * 0x9E3779B97F4A7C15u;
    h = (h ^ static_cast<std::uint64_t>(rect.hi[d])) * 0xC2B2AE3D27D4EB4Fu;
    h ^= h >> 29;
  }
  return h;
}

// Equal rectangles have equal numbers, wherever they come from: comparing numbers compares
// rectangles.
int Geometry::id_of(const Rect& rect) {
  const auto [entry, fresh] = ids_.try_emplace(rect, static_cast<int>(rects_.size()));
  if (fresh) rects_.push_back(rect);
  return entry->second;
}

std::unique_ptr<Partition> Geometry::make_partition(const std::vector<Rect>& tasks) {
  auto partition = std::make_unique<Partition>(tasks);
  partition->number = next_partition_++;
  std::vector<RectIndex::Item> overlapping;
  for (const Rect& rect : partition->parts.rects) {
    partition->ids.push_back(rect.empty() ? -1 : id_of(rect));
    overlapping.clear();
    // The first rectangle that overlaps another one settles it, and no more overlaps are searched
    // for.
    if (partition->disjoint) partition->index.find(rect, overlapping);
    partition->disjoint = partition->disjoint && overlapping.size() <= 1;  // itself
  }
  return partition;
}

// Operators of one class touch the same rectangles when they are split alike, so the class is the
// key.
const Partition& Geometry::partition(OpId op, int operand, int split, bool first_part) {
  first_part = first_part && problem_.split(op, split).parts > 1;
  const auto key = (static_cast<std::uint64_t>(first_part) << 62) |
                   (static_cast<std::uint64_t>(problem_.costs.class_of[op].value) << 40) |
                   (static_cast<std::uint64_t>(operand) << 24) | static_cast<std::uint64_t>(split);
  auto& slot = partitions_[key];
  if (!slot) {
    const Graph& graph = problem_.graph;
    const Operator& its = graph.operators[op];
    const Operand& touched = its.operands[operand];
    slot =
        make_partition(accessed_rects(graph, op, first_part ? of_first_part(its, touched) : touched,
                                      problem_.split(op, split).degrees));
  }
  return *slot;
}

// Shards are disjoint by how they are cut, which need not be found out.
std::unique_ptr<Partition> Geometry::shards(const std::vector<Rect>& rects) {
  auto partition = std::make_unique<Partition>(rects);
  partition->number = kShards;
  for (const Rect& rect : partition->parts.rects) {
    partition->ids.push_back(rect.empty() ? -1 : id_of(rect));
  }
  return partition;
}

// A batch is cut along its samples alone.
const Partition& Geometry::load_partition(TensorId tensor, int parts) {
  const auto key = (std::uint64_t{1} << 63) | (static_cast<std::uint64_t>(tensor.value) << 24) |
                   static_cast<std::uint64_t>(parts);
  auto& slot = partitions_[key];
  if (!slot) {
    const Rect whole = Rect::of_shape(problem_.graph.tensors[tensor].shape);
    std::vector<int> degrees(static_cast<std::size_t>(whole.rank), 1);
    degrees[0] = parts;
    std::vector<Rect> tiles;
    for (int k = 0; k < parts; ++k) tiles.push_back(tile_of(whole, degrees, k));
    slot = make_partition(tiles);
  }
  return *slot;
}

const Overlaps& Geometry::overlaps(const Partition& a, const Partition& b) {
  const auto key =
      (static_cast<std::uint64_t>(a.number) << 32) | static_cast<std::uint64_t>(b.number);
  auto& slot = overlaps_[key];
  if (!slot) slot = std::make_unique<Overlaps>(a, b);
  return *slot;
}

}  // namespace flexlegion
