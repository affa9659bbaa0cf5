// Small helpers for comparing what tasks touch (touches.h): rectangles with and without the slot in
// front, and as text for messages.
#include "plan/touches.h"

namespace flexlegion {

// As Python writes slices: [0:2, 16:32].
std::string text(const Rect& rect) {
  std::string s = "[";
  for (int d = 0; d < rect.rank; ++d) {
    s += (d > 0 ? ", " : "") + std::to_string(rect.lo[d]) + ":" + std::to_string(rect.hi[d]);
  }
  return s + "]";
}

// The slot is the first dimension of a stack. An empty rectangle becomes one without dimensions:
// where it would lie means nothing, and touch_alike() takes empty rectangles for equal.
Rect without_slots(const Rect& stacked) {
  Rect r;
  if (stacked.empty()) return r;
  r.rank = stacked.rank - 1;
  std::copy(stacked.lo.begin() + 1, stacked.lo.end(), r.lo.begin());
  std::copy(stacked.hi.begin() + 1, stacked.hi.end(), r.hi.begin());
  return r;
}

bool is_stacked(Field field) {
  return field == Field::partial || field == Field::gradient || field == Field::node_sums;
}

std::vector<Rect> without_slots(const Requirement& r) {
  if (!is_stacked(r.field)) return r.rects;
  std::vector<Rect> rects;
  for (const Rect& rect : r.rects) rects.push_back(without_slots(rect));
  return rects;
}

// What rectangles have in common counts once for each. So if they do not overlap, and have as many
// elements as a tensor, they cover it.
std::int64_t volume(const std::vector<Rect>& rects) {
  std::int64_t sum = 0;
  for (const Rect& rect : rects) sum += rect.volume();
  return sum;
}

}  // namespace flexlegion
