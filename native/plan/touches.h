// What tasks touch, as rectangles to compare: what `verify` looks at.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "plan/launches.h"

namespace flexlegion {

std::string text(const Rect& rect);

// Whether the rectangles of a field have the slot in front.
bool is_stacked(Field field);
// A rectangle of a stack, without its slots; of none, nothing.
Rect without_slots(const Rect& stacked);
std::vector<Rect> without_slots(const Requirement& r);

std::int64_t volume(const std::vector<Rect>& rects);

// One task's rectangle of a requirement.
struct Touch {
  Rect rect;
  int requirement, task;
  bool writes;
};

// Calls `visit` for pairs that overlap, until it says true. The rectangles are not empty, and of
// one rank.
template <typename Visit>
void for_each_overlap(std::vector<Touch> touches, Visit visit) {
  if (touches.size() < 2) return;
  // In the order of the dimension that keeps most of them apart, those that can overlap are close.
  int along = 0;
  std::size_t most = 0;
  for (int d = 0; d < touches.front().rect.rank; ++d) {
    std::set<std::int64_t> starts;
    for (const Touch& touch : touches) starts.insert(touch.rect.lo[d]);
    if (starts.size() > most) {
      most = starts.size();
      along = d;
    }
  }
  std::stable_sort(touches.begin(), touches.end(), [along](const Touch& a, const Touch& b) {
    return a.rect.lo[along] < b.rect.lo[along];
  });
  for (std::size_t i = 0; i < touches.size(); ++i) {
    for (std::size_t j = i + 1; j < touches.size(); ++j) {
      if (touches[j].rect.lo[along] >= touches[i].rect.hi[along]) break;
      if (touches[i].rect.overlaps(touches[j].rect) && visit(touches[i], touches[j])) return;
    }
  }
}

}  // namespace flexlegion
