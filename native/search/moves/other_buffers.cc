// A move of iterations of several micro-batches: an operator gets more registers, so that more of
// them can be under way there, or fewer, which take less memory.
//
// Twice as many or half as many: what a pipeline needs grows with its stages, and a step of one
// changes little.
#include <algorithm>

#include "search/moves/moves.h"

namespace flexlegion {

extern const double kOtherBuffers = 0.3;

bool other_buffers(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                   OpId op, PricedConfig& config) {
  config = strategy[op];
  const int most = candidates.problem().graph.micro_batches;
  config.buffers = random.chance(0.5) ? std::min(2 * config.buffers, most) : config.buffers / 2;
  config.buffers = std::max(1, config.buffers);
  return config.buffers != strategy[op].buffers;
}

}  // namespace flexlegion
