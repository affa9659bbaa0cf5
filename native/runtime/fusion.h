// Fused launches: one Legion task runs task k of several launches, where the rule (plan/fusion.h)
// allows it. A Legion task costs the runtime some time, which its processor, or a core beside it,
// lacks.
#pragma once

#include <deque>
#include <vector>

#include "runtime/launch.h"

namespace flexlegion {

// Cuts the launches that `order` issues (indices into `launches`) into runs to be fused, each of at
// most `longest`; a launch that cannot be fused is a run of its own.
std::vector<std::vector<int>> fusible_runs(const std::deque<RuntimeLaunch>& launches,
                                           const std::vector<int>& order, int longest);

// The launch whose tasks run those of `members`, which are such a run.
RuntimeLaunch fused(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& members);

}  // namespace flexlegion
