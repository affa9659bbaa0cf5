// A rectangle of a tensor: the one way in which tiles are written, in the plan, the runtime and the
// kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace flexlegion {

// Legion is built for six dimensions; one is kept for the slots of partial gradients (see plan.h).
constexpr int kMaxRank = 5;
constexpr int kMaxRegionRank = kMaxRank + 1;

// Half-open in every dimension: [lo, hi).
struct Rect {
  int rank = 0;
  std::array<std::int64_t, kMaxRegionRank> lo{};
  std::array<std::int64_t, kMaxRegionRank> hi{};

  static Rect of_shape(const std::vector<std::int64_t>& shape) {
    Rect r;
    r.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), r.hi.begin());
    return r;
  }

  std::int64_t extent(int d) const { return hi[d] - lo[d]; }

  // A default-made rectangle, of no dimension, is empty too.
  bool empty() const {
    if (rank == 0) return true;
    for (int d = 0; d < rank; ++d) {
      if (hi[d] <= lo[d]) return true;
    }
    return false;
  }

  std::int64_t volume() const {
    if (empty()) return 0;
    std::int64_t v = 1;
    for (int d = 0; d < rank; ++d) v *= extent(d);
    return v;
  }

  Rect intersect(const Rect& other) const {
    Rect r = *this;
    for (int d = 0; d < rank; ++d) {
      r.lo[d] = std::max(lo[d], other.lo[d]);
      r.hi[d] = std::min(hi[d], other.hi[d]);
    }
    return r;
  }

  bool overlaps(const Rect& other) const {
    for (int d = 0; d < rank; ++d) {
      if (std::max(lo[d], other.lo[d]) >= std::min(hi[d], other.hi[d])) return false;
    }
    return rank > 0;
  }

  // Whether all of the other lies in this one; an empty one lies anywhere.
  bool contains(const Rect& other) const { return other.empty() || bounding(other) == *this; }

  // The smallest rectangle that holds both; an empty one does not count.
  Rect bounding(const Rect& other) const {
    if (empty()) return other;
    if (other.empty()) return *this;
    Rect r = *this;
    for (int d = 0; d < rank; ++d) {
      r.lo[d] = std::min(lo[d], other.lo[d]);
      r.hi[d] = std::max(hi[d], other.hi[d]);
    }
    return r;
  }

  // This rectangle within the slots [first, last) of a stack of partial gradients: one dimension
  // more, in front.
  Rect in_slots(std::int64_t first, std::int64_t last) const {
    Rect r;
    r.rank = rank + 1;
    r.lo[0] = first;
    r.hi[0] = last;
    for (int d = 0; d < rank; ++d) {
      r.lo[d + 1] = lo[d];
      r.hi[d + 1] = hi[d];
    }
    return r;
  }

  // A rectangle of a stack, in all its slots.
  Rect in_all_slots(int slots) const {
    Rect r = *this;
    r.lo[0] = 0;
    r.hi[0] = slots;
    return r;
  }

  bool operator==(const Rect& other) const {
    return rank == other.rank && lo == other.lo && hi == other.hi;
  }
  bool operator!=(const Rect& other) const { return !(*this == other); }
  bool operator<(const Rect& other) const {
    if (rank != other.rank) return rank < other.rank;
    return lo != other.lo ? lo < other.lo : hi < other.hi;
  }
};

// Of one tensor field, a memory holds one instance for what is read and what is written there,
// unless two apart take less: of a gradient's partial values, say, a device writes a whole slot but
// reads its shard of every slot.
inline bool share_instance(const Rect& read, const Rect& written) {
  return read.bounding(written).volume() <= read.volume() + written.volume();
}

// Elements of these instances.
inline std::int64_t held_elements(const Rect& read, const Rect& written) {
  return share_instance(read, written) ? read.bounding(written).volume()
                                       : read.volume() + written.volume();
}

}  // namespace flexlegion
