// Rectangles by number. A proposal changes which devices hold which parts, seldom the parts
// themselves, so the partition of each (operand, degrees) and the overlaps between two of these are
// computed once and looked up from then on.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/problem.h"
#include "sim/tiles.h"
#include "support/rect.h"

namespace flexlegion {

// Rectangles without overlap that cover the same elements as those added.
class RectUnion {
 public:
  void add(const Rect& rect);
  std::int64_t volume() const;

 private:
  std::vector<Rect> parts_;
};

constexpr int kShards = 1 << 30;  // the number of all partitions that Geometry does not keep

// What the tasks of one operator, cut in one way, touch of one operand: in Legion's terms a
// partition of the tensor, disjoint or aliased.
struct Partition : Tiles {
  using Tiles::Tiles;

  int number = 0;
  std::vector<int> ids;  // a distinct rectangle: its number among all; -1: empty
  bool disjoint = true;  // distinct rectangles do not overlap

  bool kept() const { return number != kShards; }
};

class Geometry {
 public:
  explicit Geometry(const Problem& problem);

  // `first_part`: as of_first_part() says.
  const Partition& partition(OpId op, int operand, int split, bool first_part = false);
  // Rectangles that do not overlap unless they are the same, such as shards; they are not kept.
  std::unique_ptr<Partition> shards(const std::vector<Rect>& rects);
  // The tiles of an input tensor that is loaded in `parts` parts.
  const Partition& load_partition(TensorId tensor, int parts);
  // Of two that are kept.
  const Overlaps& overlaps(const Partition& a, const Partition& b);
  const Rect& rect(int id) const { return rects_[static_cast<std::size_t>(id)]; }
  int id_of(const Rect& rect);

 private:
  struct Hash {
    std::size_t operator()(const Rect& rect) const;
  };

  std::unique_ptr<Partition> make_partition(const std::vector<Rect>& rects);

  const Problem& problem_;
  std::vector<Rect> rects_;
  std::unordered_map<Rect, int, Hash> ids_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Partition>> partitions_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Overlaps>> overlaps_;
  int next_partition_ = 0;
};

}  // namespace flexlegion
