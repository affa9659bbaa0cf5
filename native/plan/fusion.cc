#include "plan/fusion.h"

#include <algorithm>

namespace flexlegion {

void FusionRule::begin(int launches) {
  words_ = (static_cast<std::size_t>(launches) + kBits - 1) / kBits;
  told_.clear();
  far_.assign(static_cast<std::size_t>(launches) * words_, 0);
  for (std::vector<Awaited>& of_task : awaited_) of_task.clear();
}

void FusionRule::add(const std::vector<int>& devices, bool fusible, bool closing) {
  settle();
  told_.push_back({&devices, fusible, closing, false, -1});
  awaited_.resize(std::max(awaited_.size(), devices.size()));
  waited_for_ = -1;
}

void FusionRule::wait(int k, int before, int j, bool one_memory) {
  Told& told = told_.back();
  Word* mine = far(static_cast<int>(told_.size()) - 1);
  if (before != waited_for_) {
    const Word* its = far(before);
    for (std::size_t w = 0; w < words_; ++w) mine[w] |= its[w];
    waited_for_ = before;
  }
  const int other = (*told_[static_cast<std::size_t>(before)].devices)[static_cast<std::size_t>(j)];
  if ((*told.devices)[static_cast<std::size_t>(k)] == other) {
    if (k != j) told.crossing = std::max(told.crossing, before);
    return;
  }
  mine[static_cast<std::size_t>(before) / kBits] |= Word{1}
                                                    << (static_cast<std::size_t>(before) % kBits);
  // Between devices of one memory, nothing is gained by an early update.
  if (told.closing && one_memory) return;
  std::vector<Awaited>& of_task = awaited_[static_cast<std::size_t>(k)];
  for (Awaited& awaited : of_task) {
    if (awaited.device != other) continue;
    awaited.launch = std::max(awaited.launch, before);
    return;
  }
  of_task.push_back({other, before});
}

void FusionRule::settle() {
  for (std::vector<Awaited>& of_task : awaited_) {
    for (const Awaited& awaited : of_task) {
      told_[static_cast<std::size_t>(awaited.launch)].awaited = true;
    }
    of_task.clear();
  }
}

bool FusionRule::joins(int launch, int first, int longest) const {
  if (launch <= first || launch - first >= longest) return false;
  const Told& told = told_[static_cast<std::size_t>(launch)];
  const Told& before = told_[static_cast<std::size_t>(launch) - 1];
  return told.fusible && before.fusible && !before.awaited && told.crossing < first &&
         *told.devices == *before.devices &&
         std::equal(far(launch), far(launch) + words_, far(launch - 1));
}

}  // namespace flexlegion
