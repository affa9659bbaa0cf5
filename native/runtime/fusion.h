// Fused launches: one Legion task runs task k of several launches, where the rule (plan/fusion.h)
// allows it. A Legion task costs the runtime some time, which its processor, or a core beside it,
// lacks.
#pragma once

#include <deque>
#include <vector>

#include "runtime/launch.h"

namespace flexlegion {

// The launch whose tasks run those of `members`, which are a run (plan/fusion.h) of at least two.
RuntimeLaunch fused(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& members);

}  // namespace flexlegion
