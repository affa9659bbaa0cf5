// What neighbours cost a task (contention.h): its time, times its contention, times the share of
// the other devices of its memory that are busy.
//
// A sibling of the same launch counts as busy without a look at the clock, since siblings start at
// about the same time, and the one that is served first cannot see the others yet.
#include "sim/contention.h"

#include <algorithm>

namespace flexlegion {

std::int64_t Contention::extra(const Block& block, int part, std::int64_t start,
                               const std::vector<std::int64_t>& free) const {
  // Of a task that was measured without contention, nothing is known.
  if (block.contention.empty()) return 0;
  const int device = block.device[part];
  const auto& users = users_[machine_.memory_of[device]];
  const auto others = static_cast<std::int64_t>(users.size()) - 1;
  if (others == 0) return 0;
  const auto& siblings = block.device;
  const auto busy = std::count_if(users.begin(), users.end(), [&](int d) {
    if (d == device) return false;
    return free[d] > start || std::find(siblings.begin(), siblings.end(), d) != siblings.end();
  });
  // 128 bits: a time, a contention and a number of devices can overflow 64 together.
  const auto scaled = static_cast<__int128>(block.exe_time[part]) * block.contention[part] * busy;
  const auto extra = scaled / (kContentionUnit * others);
  return static_cast<std::int64_t>(std::min<__int128>(extra, kMaxTime));
}

}  // namespace flexlegion
