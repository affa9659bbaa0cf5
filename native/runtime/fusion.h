// Fused launches: where consecutive launches have their tasks on the same devices, and hand
// everything on from task k to task k, one Legion task runs task k of each, one after another. A
// Legion task costs the runtime some time, which its processor, or a core beside it, lacks.
//
// No task waits for that: launches become one only if they wait for the same results of other
// devices, and none joins after one whose results another device awaits.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/launch.h"

namespace flexlegion {

// Cuts the launches that `order` issues (indices into `launches`) into runs to be fused, each of at
// most `longest`; a launch that cannot be fused is a run of its own.
std::vector<std::vector<int>> fusible_runs(const std::deque<RuntimeLaunch>& launches,
                                           const std::vector<int>& order, std::size_t longest);

// The launch whose tasks run those of `members`, which are such a run.
RuntimeLaunch fused(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& members);

}  // namespace flexlegion
